"""The diagrams in the documents are those of the tables, and a difference is noticed."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from tool_modules import load_tool

from netstack.exchange.wire.states import TRANSITIONS, Input, State

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("render_states")


def test_documents_are_up_to_date(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0


@pytest.fixture
def tree(tool: ModuleType, tmp_path: Path) -> Path:
    for diagram in tool.DIAGRAMS:
        target = tmp_path / diagram.document
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((ROOT / diagram.document).read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path


def test_check_notices_a_difference_and_changes_nothing(
    tool: ModuleType, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tree / "netstack/exchange/wire/SPEC.md"
    changed = path.read_text(encoding="utf-8").replace(
        "greeting --> open : hello received", "greeting --> closed : hello"
    )
    path.write_text(changed, encoding="utf-8")
    assert tool.main(["--check"], root=tree) == 1
    assert "+    greeting --> open : hello received" in capsys.readouterr().out
    assert path.read_text(encoding="utf-8") == changed
    assert tool.main([], root=tree) == 0
    assert tool.main(["--check"], root=tree) == 0
    assert path.read_text(encoding="utf-8") == (ROOT / "netstack/exchange/wire/SPEC.md").read_text(encoding="utf-8")


def test_missing_markers_are_an_error(tool: ModuleType) -> None:
    with pytest.raises(ValueError, match="markers"):
        tool.updated("nothing here", tool.DIAGRAMS[0])


def test_every_state_and_transition_is_shown(tool: ModuleType) -> None:
    text = tool.render(tool.DIAGRAMS[0])
    for state in State:
        assert f"| **{state.value}** |" in text
    for (state, what), following in TRANSITIONS.items():
        cells = next(line for line in text.splitlines() if line.startswith(f"| **{state.value}** |")).split("|")
        assert cells[2 + list(Input).index(what)].strip() == following.value
    assert text.count("| error") == len(State) * len(Input) - len(TRANSITIONS)
