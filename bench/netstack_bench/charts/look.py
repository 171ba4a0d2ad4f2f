"""The look of lines: colour, stroke and mark, and the buttons of their legend."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from html import escape
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
