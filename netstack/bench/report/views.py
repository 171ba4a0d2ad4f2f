"""Sections with one part per point of the sweep, of which one is shown at a time.

Takes: `View`s. Gives: HTML: a list to fold open, or a selection field with the script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..charts.svg import facets_attribute


@dataclass(frozen=True, slots=True)
class View:
    """The part of one point: label, filter tokens, HTML."""

    label: str
    facets: str
    content: str


def views(name: str, entries: Sequence[View], first: int = 0) -> str:
    """The views of the section `name` (at least one), of which number `first` is open."""
    options = "".join(
        f'<option value="{number}"{" selected" if number == first else ""}>{escape(view.label)}</option>'
        for number, view in enumerate(entries)
    )
    choose = (
        f'<div class="pickview" hidden><label for="{name}-view">Setting</label>'
        f'<button type="button" data-step="-1" aria-label="Previous setting">&lsaquo;</button>'
        f'<select id="{name}-view">{options}</select>'
        f'<button type="button" data-step="1" aria-label="Next setting">&rsaquo;</button></div>'
    )
    parts = "".join(
        f'<details class="view"{" open" if number == first else ""}{facets_attribute(view.facets)}>'
        f"<summary>{escape(view.label)}</summary>{view.content}</details>"
        for number, view in enumerate(entries)
    )
    return f'<div class="views">{choose if len(entries) > 1 else ""}{parts}<p class="none note" hidden></p></div>'
