"""What holds of every page that the benchmark writes."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Final

_VOID: Final = {"meta", "input", "br", "hr", "link", "img"}


class _Balance(HTMLParser):
    """Checks that every element is closed, and gathers what the page would fetch, and its ids."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.open.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def assert_whole(page: str) -> None:
    """Every element is closed, no id stands twice, and the page fetches nothing."""
    parser = _Balance()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert [url for url in parser.fetched if not url.startswith("#")] == []
    assert len(parser.ids) == len(set(parser.ids))
    assert "default-src 'none'" in page
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org/2000/svg)", page)
