"""METRICS.md shows the catalogue as it is, and a difference is noticed."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from tool_modules import load_tool

from netstack.network.metrics.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = "netstack/METRICS.md"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("render_metrics")


def test_the_document_is_up_to_date(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0


def test_check_notices_a_difference_and_changes_nothing(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = (ROOT / DOCUMENT).read_text(encoding="utf-8")
    path = tmp_path / DOCUMENT
    path.parent.mkdir()
    changed = original.replace(CATALOGUE[0].definition, "Something else.")
    path.write_text(changed, encoding="utf-8")
    assert tool.main(["--check"], root=tmp_path) == 1
    assert f"| {CATALOGUE[0].definition} |" in capsys.readouterr().out
    assert path.read_text(encoding="utf-8") == changed
    assert tool.main([], root=tmp_path) == 0
    assert tool.main(["--check"], root=tmp_path) == 0
    assert path.read_text(encoding="utf-8") == original


def test_missing_markers_are_an_error(tool: ModuleType) -> None:
    with pytest.raises(ValueError, match="markers"):
        tool.updated("nothing here")


def test_every_metric_is_shown_once(tool: ModuleType) -> None:
    text = tool.render()
    for metric in CATALOGUE:
        assert text.count(f"| `{metric.name}` |") == 1
        assert metric.definition in text
        assert "|" not in metric.definition
