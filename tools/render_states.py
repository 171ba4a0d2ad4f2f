"""Renders the state tables of the core into the documents that show them, so that neither can change alone.

Takes: the tables in `DIAGRAMS`. Gives: a diagram and a table between the markers `<!-- states:NAME -->` and
`<!-- /states:NAME -->` of each document. Run it after changing a table; `--check` writes nothing and fails when a
document is out of date.

    python tools/render_states.py [--check]
"""

from __future__ import annotations

import argparse
import difflib
import enum
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from netstack.exchange.wire.states import TRANSITIONS, Input, State  # noqa: E402
from netstack.network.connection.outgoing import (  # noqa: E402
    OUTGOING_TRANSITIONS,
    OutgoingInput,
    OutgoingState,
)
from netstack.schedule.execution import (  # noqa: E402 - the tree beside this file, installed or not
    EXECUTION_TRANSITIONS,
    JOB_TRANSITIONS,
    ExecutionInput,
    ExecutionState,
    JobInput,
    JobState,
)


@dataclass(frozen=True, slots=True)
class Diagram:
    """One table and where it is shown.

    Attributes:
        name: of the markers.
        document: relative to the repository.
        states: the enum of states; its first member is where everything starts.
        inputs: the enum of inputs.
        transitions: (state, input) -> next state.
    """

    name: str
    document: str
    states: type[enum.Enum]
    inputs: type[enum.Enum]
    transitions: Mapping[Any, enum.Enum]


DIAGRAMS = (
    Diagram("connection", "netstack/exchange/wire/SPEC.md", State, Input, {**TRANSITIONS}),
    Diagram("execution", "netstack/DESIGN.md", ExecutionState, ExecutionInput, {**EXECUTION_TRANSITIONS}),
    Diagram("job", "netstack/DESIGN.md", JobState, JobInput, {**JOB_TRANSITIONS}),
    Diagram("outgoing", "netstack/DESIGN.md", OutgoingState, OutgoingInput, {**OUTGOING_TRANSITIONS}),
)


def render(diagram: Diagram) -> str:
    """The diagram (Mermaid) and the complete table, as Markdown."""
    states, inputs, transitions = list(diagram.states), list(diagram.inputs), diagram.transitions
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {states[0].value}"]
    for state in states:
        leads_on = False
        for following in states:
            causes = [what.value for what in inputs if transitions.get((state, what)) is following]
            if causes and following is not state:
                leads_on = True
                lines.append(f"    {state.value} --> {following.value} : {' / '.join(causes)}")
        if not leads_on:
            lines.append(f"    {state.value} --> [*]")
    lines += ["```", "", "| state | " + " | ".join(what.value for what in inputs) + " |"]
    lines.append("|---" * (len(inputs) + 1) + "|")
    for state in states:
        cells = [getattr(transitions.get((state, what)), "value", "error") for what in inputs]
        lines.append(f"| **{state.value}** | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def updated(text: str, diagram: Diagram) -> str:
    """The document with this diagram as it should be.

    Raises:
        ValueError: it has not exactly one pair of markers.
    """
    begin, end = f"<!-- states:{diagram.name} -->\n", f"<!-- /states:{diagram.name} -->\n"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(
            f"{diagram.document}: the markers {begin.strip()} and {end.strip()} must stand there once each"
        )
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}{render(diagram)}\n{end}{after}"


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Rewrites the documents, or compares; returns the exit code."""
    parser = argparse.ArgumentParser(description="Render the state tables into their documents.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a document is out of date")
    options = parser.parse_args(arguments)
    stale = False
    for diagram in DIAGRAMS:
        path = root / diagram.document
        text = path.read_text(encoding="utf-8")
        wanted = updated(text, diagram)
        if text == wanted:
            continue
        if options.check:
            stale = True
            print(f"{diagram.document}: the diagram {diagram.name!r} is out of date; run tools/render_states.py")
            print("".join(difflib.unified_diff(text.splitlines(True), wanted.splitlines(True), "is", "should be")))
        else:
            path.write_text(wanted, encoding="utf-8")
            print(f"{diagram.document}: diagram {diagram.name!r} rewritten")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
