"""Filters: the reader chooses which values of each swept setting are shown.

Takes: an `Analysis`. Gives: the panel of filters, and the filter values that each part of the page belongs to.

Rules: a part carries one token per setting (`0-2`: the first setting, its third value); the script hides parts with a
token that is not chosen. Without the script everything is shown except the panel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Final, final

from ..labels import setting_name, setting_text
from .points import Analysis, Line, facet

_AXES: Final = ("buffer_timeout_s", "record_bytes", "channels")


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting with its values, in order, as text."""

    name: str
    values: tuple[str, ...]


@final
class Filters:
    """Every setting with more than one value among the rows of a report."""

    def __init__(self, analysis: Analysis) -> None:
        tags = [name for name in analysis.varying if name == "sweep"]
        names = [*tags, *_AXES, *(name for name in analysis.varying if name not in tags)]
        choices = []
        for name in names:
            rows = [row for row in analysis.rows if name not in _AXES or f"settings_{name}" in row]
            texts = dict.fromkeys(
                choice_text(name, value) for value in sorted({facet(row, name) for row in rows}, key=_order)
            )
            if len(texts) > 1:
                choices.append(Choice(name, tuple(texts)))
        self.choices: Final = tuple(choices)
        self._tokens = {
            (choice.name, text): f"{number}-{place}"
            for number, choice in enumerate(self.choices)
            for place, text in enumerate(choice.values)
        }

    def of(self, texts: Mapping[str, str]) -> str:
        """The tokens of a part with these values, by setting name."""
        return " ".join(self._tokens[item] for item in texts.items() if item in self._tokens)

    def timeout(self, timeout_s: float | None) -> str:
        """The token of a buffer timeout."""
        return self.settings({"buffer_timeout_s": timeout_s})

    def line(self, line: Line) -> str:
        """The tokens of a whole line."""
        axes = {name: choice_text(name, getattr(line, name)) for name in ("record_bytes", "channels")}
        return self.of({**axes, **dict(line.extras)})

    def point(self, line: Line, timeout_s: float | None) -> str:
        """The tokens of one point."""
        return " ".join(filter(None, (self.timeout(timeout_s), self.line(line))))

    def row(self, row: Mapping[str, Any]) -> str:
        """The tokens of one run."""
        return self.settings({choice.name: facet(row, choice.name) for choice in self.choices})

    def settings(self, settings: Mapping[str, Any]) -> str:
        """The tokens of settings by name; other settings are ignored."""
        return self.of({name: choice_text(name, value) for name, value in settings.items()})

    def panel(self, runs: int) -> str:
        """The panel of filters, hidden until the script runs; empty without choices. The page lists so many `runs`."""
        if not self.choices:
            return ""
        groups = "".join(self._group(number, choice) for number, choice in enumerate(self.choices))
        return (
            '<details id="choose" class="card" hidden><summary><span>Choose settings</span>'
            f'<output id="shown" data-runs="{runs}">all {runs} runs shown</output></summary>'
            f'<form><div class="groups">{groups}</div>'
            '<p class="note"><button type="reset">Show everything</button> Alt + click shows one value only. '
            "The axes adapt to the shown values.</p></form></details>"
        )

    def _group(self, number: int, choice: Choice) -> str:
        chips = "".join(
            f'<label><input type="checkbox" checked value="{number}-{place}"><span>{escape(text)}</span></label>'
            for place, text in enumerate(choice.values)
        )
        return f"<fieldset><legend>{escape(setting_name(choice.name))}</legend>{chips}</fieldset>"


def choice_text(name: str, value: Any) -> str:
    """A value as text, the same in all parts of the page."""
    if name == "channels" and value is not None:
        return f"{value:,}"
    text = setting_text(name, value)
    return text.replace("us", "\u00b5s") if name == "buffer_timeout_s" else text


def _order(value: Any) -> tuple[bool, bool, Any]:
    return value is None, isinstance(value, str), "" if value is None else value
