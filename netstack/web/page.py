"""The page as one text: markup, style and scripts of `page/` put together, so that nothing is loaded from elsewhere.

Takes: the files beside this one; for a page that needs no server, a history. Gives: HTML.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final

SCRIPTS: Final = ("tools.js", "history.js", "graph.js", "channels.js", "flames.js", "tables.js", "main.js")
"""In this order; each adds to the one object `ns`."""


def page(history: str = "null") -> str:
    """All of it.

    Args:
        history: a JSON list as `History.text` makes it, for a page that shows just this; `null` asks the server.
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
