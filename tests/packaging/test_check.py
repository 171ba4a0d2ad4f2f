"""`make check` finds the tests that a change reaches, the nearest first."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

grimp = pytest.importorskip("grimp")
ROOT = Path(__file__).parents[2]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tool_check", ROOT / "tools/check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check = _load()


def test_what_imports_a_changed_module_is_as_far_away_as_there_are_imports() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("d", "c"), ("c", "e")):
        graph.add_import(importer=importer, imported=imported)
    assert check.distances(graph, ["c", "no.module"]) == {"c": 0, "b": 1, "d": 1, "a": 2}


def test_the_tests_of_a_module_come_before_those_that_reach_it_through_others() -> None:
    found = [test.relative_to(ROOT).as_posix() for test in check.tests_of([Path("netstack/outbound/selector.py")])]
    near, far = (
        found.index(f"tests/netstack/{name}.py") for name in ("outbound/test_selector", "jobmanager/test_local")
    )
    assert near < far


def test_a_changed_test_and_the_tests_of_a_changed_helper_run() -> None:
    found = check.tests_of([Path("tests/system/test_jobs.py"), Path("tests/system/jobworld.py")])
    assert found[0] == ROOT / "tests/system/test_jobs.py"
    assert ROOT / "tests/system/test_placement.py" in found or ROOT / "tests/system/test_tune.py" in found
