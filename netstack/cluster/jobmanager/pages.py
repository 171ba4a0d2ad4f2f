"""Answers that list things of many users, in pages that fit into a message.

Takes: the entries of one or more lists, each with its position. Gives: the next page behind a position.

Rules: a page ends behind the entry that brings it to `PAGE_BYTES`, so an entry must not exceed `ENTRY_BYTES`. Positions
never change and order the entries, so an entry that is present all the time is in exactly one page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, Final, TypeAlias

from ...base.errors import ConfigError
from ...base.text.safe_text import safe_repr
from .views.bounds import sendable

Document: TypeAlias = dict[str, Any]

Position: TypeAlias = tuple[float, str]
"""When an entry came, in seconds since 1970, and its unique name."""

Entries: TypeAlias = Iterable[tuple[Position, Callable[[], Document]]]
"""Positions of entries in any order, and functions that create their documents."""

PAGE_BYTES: Final = 1 << 20

ENTRY_BYTES: Final = 2 << 20
"""Limit of an entry: with a page that is almost full before it, the answer fits into a frame of 4 MiB."""


def page(request: Mapping[str, Any], lists: Mapping[str, Entries]) -> Document:
    """Returns the page that a client requests.

    Args:
        request: its `after` is that of the previous page; None or missing: the first page.
        lists: the entries of each list, in the order in which clients receive the lists.

    Returns:
        For each list its entries in this page, and `after` if there are more.

    Raises:
        ConfigError: `after` is malformed.
    """
    names = list(lists)
    start = _start(request.get("after"), names)
    answer: Document = {name: [] for name in names}
    size = 0
    last: tuple[int, float, str] | None = None
    for number, name in enumerate(names):
        for position, create in sorted(lists[name], key=itemgetter(0)):
            here = number, *position
            if start is not None and here <= start:
                continue
            if size > PAGE_BYTES and last is not None:
                return answer | {"after": [names[last[0]], *last[1:]]}
            entry, entry_bytes = sendable(create())
            answer[name].append(entry)
            size += entry_bytes
            last = here
    return answer


def _start(after: object, names: list[str]) -> tuple[int, float, str] | None:
    if after is None:
        return None
    if type(after) is list and [type(each) for each in after] == [str, float, str] and after[0] in names:
        return names.index(after[0]), after[1], after[2]
    raise ConfigError(f"after={safe_repr(after)} of a request is not where a page ended")
