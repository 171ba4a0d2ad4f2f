"""How lines are told apart: a colour, a stroke and a mark for each, and the buttons of their legend.

Takes: what lines have in common. Gives: a `Look` for each, no two alike, as long as there are any left.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from html import escape
from typing import Final, TypeAlias

from .facets import facets_attribute
from .svg import SHAPES, marker

HUES: Final = 8
DASHES: Final = 4
LOOKS: Final = HUES * DASHES * SHAPES
"""How many lines of one chart can look different."""

Look: TypeAlias = tuple[int, int, int]
"""(hue, dash, shape): classes of the style sheet, and the mark."""

_MOST_BUTTONS: Final = 12  # of a legend: more are folded


def distinct(wanted: Iterable[tuple[int, int, int]]) -> list[Look]:
    """For each wish a look that no earlier one has: the wish itself, else with another shape, stroke, or colour.

    Args:
        wanted: hue, dash and shape as numbers of any size; equal numbers keep what they stand for together as long as
            there are looks left. Beyond `LOOKS` they repeat.
    """
    taken: set[Look] = set()
    found = []
    for hue, dash, shape in wanted:
        # Marks and strokes first: the colour is what a reader sees from afar, and says most.
        turns = itertools.product(range(HUES), range(DASHES), range(SHAPES))
        looks = (((hue + a) % HUES, (dash + hue // HUES + b) % DASHES, (shape + c) % SHAPES) for a, b, c in turns)
        look = next((each for each in looks if each not in taken), (hue % HUES, dash % DASHES, shape % SHAPES))
        taken.add(look)
        found.append(look)
    return found


def numbered(count: int) -> list[Look]:
    """For so many lines that have nothing in common: all colours in one stroke, then in the next."""
    return [(number % HUES, number // HUES % DASHES, (number + number // HUES) % SHAPES) for number in range(count)]


def swatch(hue: int, dash: int, shape: int | None) -> str:
    """A piece of a line with its mark; None is a line without marks."""
    return (
        f'<svg class="swatch h{hue} d{dash}" viewBox="0 0 34 16" aria-hidden="true">'
        f'<path class="line" d="M1 8H33"/>{"" if shape is None else marker(shape, 17, 8)}</svg>'
    )


def legend(lines: Iterable[tuple[int, tuple[int, int, int | None], str, str]]) -> str:
    """A legend of (number, look, label, choices) of each line: a button each; without a script it is a plain list."""
    items = [
        f'<li{facets_attribute(facets)}><button type="button" disabled aria-pressed="true" data-series="{number}">'
        f"{swatch(*look)}{escape(label)}</button></li>"
        for number, look, label, facets in lines
    ]
    shown = f'<ul class="legend" aria-label="Lines: click to hide or show">{"".join(items)}</ul>'
    folded = f"<details><summary>The {len(items)} lines</summary>{shown}</details>"
    return folded if len(items) > _MOST_BUTTONS else shown
