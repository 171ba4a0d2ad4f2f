"""`make check` finds the tests that a change reaches, the nearest first."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tool_modules import load_tool

from netstack.base.own_packages import OWN_PACKAGES

grimp = pytest.importorskip("grimp")
ROOT = Path(__file__).parents[2]


check = load_tool("check")


def test_the_library_and_the_tools_know_the_packages_of_the_wheel() -> None:
    assert tuple(package.name for package in load_tool("import_packages").PACKAGES) == OWN_PACKAGES


def test_what_imports_a_changed_module_is_as_far_away_as_there_are_imports() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("d", "c"), ("c", "e")):
        graph.add_import(importer=importer, imported=imported)
    assert check.distances(graph, ["c", "no.module"]) == {"c": 0, "b": 1, "d": 1, "a": 2}


@pytest.mark.whole
def test_the_tests_of_a_module_come_before_those_that_reach_it_through_others() -> None:
    actual = [
        test.relative_to(ROOT).as_posix() for test in check.tests_of([Path("netstack/exchange/outbound/selector.py")])
    ]
    near, far = (
        actual.index(f"tests/netstack/{name}.py")
        for name in ("exchange/outbound/test_selector", "cluster/jobmanager/test_local")
    )
    assert near < far


@pytest.mark.whole
def test_a_changed_test_and_the_tests_of_a_changed_helper_run() -> None:
    actual = check.tests_of([Path("tests/system/test_jobs.py"), Path("tests/support/jobworld.py")])
    assert actual[0] == ROOT / "tests/system/test_jobs.py"
    assert ROOT / "tests/system/test_placement.py" in actual or ROOT / "tests/system/test_tune.py" in actual


def test_a_long_module_of_the_packages_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    module, test = Path("netstack/exchange/outbound/selector.py"), Path("tests/packaging/test_check.py")
    assert list(check.long_modules([module, test])) == []
    monkeypatch.setattr(check, "LINES", 99)
    (warning,) = check.long_modules([module, test, Path("netstack/gone.py")])
    assert warning.startswith(f"warning: {module} has ")


def test_flaky_tests_are_counted(tmp_path: Path) -> None:
    failed = tmp_path / "lastfailed"
    history = {**os.environ, "FLAKES": str(tmp_path / "flakes.txt")}
    for tests in ({"tests/a.py::test[a b]": True, "tests/b.py::test": True}, {"tests/b.py::test": True}):
        failed.write_text(json.dumps(tests))
        subprocess.run([ROOT / ".ci/flakes", failed], env=history, cwd=ROOT, check=True, capture_output=True)
    done = subprocess.run([ROOT / ".ci/flakes"], env=history, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["   2 tests/b.py::test", "   1 tests/a.py::test[a b]"]
