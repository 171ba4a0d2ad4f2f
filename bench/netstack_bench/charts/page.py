"""The page around charts: one self-contained HTML file with policy, style sheet and script inside.

Callers escape external text; the page's own policy forbids loading anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib import resources
from typing import Final

from .svg import SHAPES, Look, facets_attribute, marker

HUES: Final = 8
DASHES: Final = 4
LOOKS: Final = HUES * DASHES * SHAPES
"""The number of different looks."""

_MOST_BUTTONS: Final = 12  # of a legend: more are folded


def distinct(wishes: Iterable[tuple[int, int, int]]) -> list[Look]:
    """A look for each wish, all different: the wish itself, else with another shape, stroke or colour.

    Wishes are hue, dash and shape as numbers of any size; equal numbers stay equal as long as looks remain. Beyond
    `LOOKS` they repeat.
    """
    taken: set[Look] = set()
    unique = []
    for hue, dash, shape in wishes:
        # Marks and strokes change first: the colour is the most visible part.
        turns = itertools.product(range(HUES), range(DASHES), range(SHAPES))
        looks = (((hue + a) % HUES, (dash + hue // HUES + b) % DASHES, (shape + c) % SHAPES) for a, b, c in turns)
        look = next((each for each in looks if each not in taken), (hue % HUES, dash % DASHES, shape % SHAPES))
        taken.add(look)
        unique.append(look)
    return unique


def numbered(count: int) -> list[Look]:
    """Looks of this many unrelated lines: all colours in one stroke, then in the next."""
    return [(number % HUES, number // HUES % DASHES, (number + number // HUES) % SHAPES) for number in range(count)]


def swatch(hue: int, dash: int, shape: int | None) -> str:
    """A sample of a line with its mark; None is a line without marks."""
    return (
        f'<svg class="swatch h{hue} d{dash}" viewBox="0 0 34 16" aria-hidden="true">'
        f'<path class="line" d="M1 8H33"/>{"" if shape is None else marker(shape, 17, 8)}</svg>'
    )


def legend(lines: Iterable[tuple[int, tuple[int, int, int | None], str, str]]) -> str:
    """A legend of (number, look, label, choices) of each line: a button each; a plain list without a script."""
    items = [
        f'<li{facets_attribute(facets)}><button type="button" disabled aria-pressed="true" data-series="{number}">'
        f"{swatch(*look)}{escape(label)}</button></li>"
        for number, look, label, facets in lines
    ]
    buttons = f'<ul class="legend" aria-label="Lines: click to hide or show">{"".join(items)}</ul>'
    folded = f"<details><summary>The {len(items)} lines</summary>{buttons}</details>"
    return folded if len(items) > _MOST_BUTTONS else buttons


WIDE_PX: Final = (580, 380)
NARROW_PX: Final = (350, 320)
"""Chart sizes for wide and narrow screens; the style sheet shows one."""

_HERE: Final = __name__.rpartition(".")[0]
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
# Before the script, so that a broken page shows an error.
_WATCH: Final = "window.onerror=(m)=>{const e=document.documentElement;e.dataset.errors=(e.dataset.errors||'')+m+'; '};"


def document(title: str, body: Iterable[str], *, styles: Sequence[str] = (), scripts: Sequence[str] = ()) -> str:
    """The whole file, from a plain title and HTML; styles and scripts go beyond the common ones."""
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
    """The text of a file in a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def both_sizes(
    draw: Callable[..., str],
    wide: tuple[int, int] = WIDE_PX,
    narrow: tuple[int, int] = NARROW_PX,
    *,
    direct: bool = True,
) -> str:
    """One chart in two sizes; `draw` receives the size, and whether there is room for names at the ends of lines."""
    drawn = draw(width=wide[0], height=wide[1], direct_labels=direct)
    small = draw(width=narrow[0], height=narrow[1], direct_labels=False)
    return f'<div class="wide">{drawn}</div><div class="narrow">{small}</div>'


def figure(title: str, drawn: str, note: str = "", *, level: int = 2, facets: str = "") -> str:
    """A card around a chart; `title` and `note` are HTML."""
    below = f'<span class="note">{note}</span>' if note else ""
    return (
        f'<figure class="card"{facets_attribute(facets)}><figcaption><h{level}>{title}</h{level}>{below}</figcaption>'
        f"{drawn}</figure>"
    )


def heads(*words: str, left: int = 1, kind: str = "") -> str:
    """Head cells of a table, HTML: text columns, then figure columns, which may have a class."""
    kinds = ["l" if number < left else kind for number in range(len(words))]
    return "".join(f'<th scope="col"{_class(own)}>{word}</th>' for word, own in zip(words, kinds, strict=True))


def table(head: str, rows: Iterable[str], kind: str = "", caption: str = "", *, caption_kind: str = "vh") -> str:
    """A scrolling table from head cells and rows, as HTML.

    Its caption is plain text; by default only screen readers see it.
    """
    caption_html = f'<caption class="{caption_kind}">{escape(caption)}</caption>' if caption else ""
    return (
        f'<div class="scroll" tabindex="0"><table{_class(kind)}>{caption_html}<thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def facts(title: str, entries: Iterable[tuple[str, str]]) -> str:
    """A card of names and values, plain text."""
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in entries)
    return f'<div class="card"><h2>{title}</h2><dl class="facts">{items}</dl></div>'


def chart_grid(figures: Sequence[str], most_open: int) -> str:
    """Charts side by side; those beyond `most_open` are folded."""
    more = figures[most_open:]
    folded = f'<details><summary>{len(more)} more</summary><div class="charts">{"".join(more)}</div></details>'
    return f'<div class="charts">{"".join(figures[:most_open])}</div>{folded if more else ""}'


def findings(cards: Iterable[tuple[str, str, str]]) -> str:
    """Cards of (topic, figure, sentence), HTML."""
    items = "".join(
        f'<div class="card"><dt>{topic}</dt><dd class="big">{figure}</dd><dd class="sentence">{sentence}</dd></div>'
        for topic, figure, sentence in cards
    )
    return f'<dl class="findings">{items}</dl>' if items else ""


def alert(head: str, rest: str) -> str:
    """A red box, HTML: something is wrong with the figures."""
    return f'<div class="callout bad" role="alert"><strong>{head}</strong> {rest}</div>'


def callout(head: str, lines: Sequence[str]) -> str:
    """A highlighted box with a list of plain text; empty without lines."""
    if not lines:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in lines)
    return f'<div class="callout"><strong>{escape(head)}</strong><ul>{items}</ul></div>'


def notes(title: str, texts: Sequence[str], *, name: str = "") -> str:
    """A card with a list of sentences, plain text."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    own = f' id="{name}"' if name else ""
    return f'<section class="card"{own}><h2>{escape(title)}</h2><ul class="plain">{items}</ul></section>'
