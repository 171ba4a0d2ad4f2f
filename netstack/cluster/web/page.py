"""Builds the page: markup, style and scripts of `page/` in one HTML text, so that it loads nothing from elsewhere.

Takes: the files in `page/`; for a page without a server, a history. Gives: HTML.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final

SCRIPTS: Final = ("tools.js", "history.js", "graph.js", "channels.js", "flames.js", "tables.js", "main.js")
"""In loading order; each script extends the object `ns`."""


def page(history: str = "null") -> str:
    """Returns the page.

    Args:
        history: a JSON list from `History.text`, for a page without a server; `null`: loaded from the server.
    """
    return _bundle().replace("/*HISTORY*/", history.replace("<", "\\u003c"))


@cache
def _bundle() -> str:
    files = resources.files(__package__).joinpath("page")

    def read(name: str) -> str:
        return files.joinpath(name).read_text(encoding="utf-8")

    return (
        read("page.html").replace("/*STYLE*/", read("style.css")).replace("/*SCRIPTS*/", "\n".join(map(read, SCRIPTS)))
    )
