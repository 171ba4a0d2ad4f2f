"""The page around the charts: one HTML file that needs nothing else, neither a network nor a script, to be read.

Takes: a title and the parts of a body as HTML. Gives: the whole file: policy, style sheet and script are inside.

Rules: what came from outside is escaped by whoever made the parts; the page's own policy forbids it to load anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Final

WIDE_PX: Final = (580, 380)
NARROW_PX: Final = (350, 320)
"""Sizes in which a chart is drawn, for wide and for narrow screens; the style sheet shows one."""

_HERE: Final = __name__.rpartition(".")[0]
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
# Ahead of the script itself, so that a page which breaks says so.
_WATCH: Final = "window.onerror=(m)=>{const e=document.documentElement;e.dataset.errors=(e.dataset.errors||'')+m+'; '};"


def document(title: str, body: Iterable[str], *, styles: Sequence[str] = (), scripts: Sequence[str] = ()) -> str:
    """The whole file.

    Args:
        title: plain text.
        body: HTML.
        styles: CSS beyond the common style sheet.
        scripts: beyond the common script, after it.
    """
    code = (asset(_HERE, "page.js"), *scripts, asset(_HERE, "export.js"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><script>{_WATCH}</script>"
        f"<style>{''.join((asset(_HERE, 'page.css'), *styles))}</style></head><body><main>{''.join(body)}</main>"
        f"{''.join(f'<script>{each}</script>' for each in code)}</body></html>\n"
    )


def asset(package: str, name: str) -> str:
    """A file beside the modules of a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def both_sizes(wide: str, narrow: str) -> str:
    """One chart drawn twice."""
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def facts(title: str, found: Iterable[tuple[str, str]]) -> str:
    """A card of names and values, plain text."""
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in found)
    return f'<div class="card"><h2>{title}</h2><dl class="facts">{items}</dl></div>'


def callout(head: str, lines: Sequence[str], *, bad: bool = False) -> str:
    """A box that stands out, with a list of plain text; empty without lines."""
    if not lines:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in lines)
    kind = ' class="callout bad" role="alert"' if bad else ' class="callout"'
    return f"<div{kind}><strong>{escape(head)}</strong><ul>{items}</ul></div>"


def notes(title: str, texts: Sequence[str], *, name: str = "") -> str:
    """A card with a list of sentences, plain text."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    own = f' id="{name}"' if name else ""
    return f'<section class="card"{own}><h2>{escape(title)}</h2><ul class="plain">{items}</ul></section>'
