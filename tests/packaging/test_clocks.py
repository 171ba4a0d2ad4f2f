"""No test of `make test` judges by a wall clock: a busy machine changes no verdict.

Takes: the sources of the tests that are not `long`. Gives: each sleep that hopes that something has happened meanwhile,
and each reading of a clock that is more than a limit of a minute or longer, which only ends a hang. A loop may sleep
between two looks; a test in virtual time may sleep as it likes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).resolve().parents[1]
CLOCKS: Final = {
    f"time.{name}{end}"
    for name in ("monotonic", "perf_counter", "process_time", "thread_time", "time")
    for end in ("", "_ns")
}
SLEEPS: Final = {"time.sleep", "trio.sleep", "asyncio.sleep"}
LIMITS: Final = ("deadline", "until", "until_s", "end_s")
LEAST_LIMIT_S: Final = 60
VIRTUAL: Final = ("autojump_clock", "run_virtual", "MockClock", "virtual_clock", "netstack.testing.simulate")

ALLOWED: Final = {
    "support/fuzz/search.py:search": "a program that searches for so long",
    "netstack/network/blocking/test_portal.py:test_what_was_done_when_the_time_was_up_counts": "it may take long",
    "netstack/cluster/taskmanager/installed/userjobs/jobs.py:compute": "an operator that computes for so long",
    "netstack/cluster/task/test_latency.py:test_setting_the_clock_of_a_host_makes_no_latency": "the clock that it sets",
    "netstack/cluster/task/test_latency.py:test_the_steady_time_is_that_of_the_host_and_does_not_jump": "two clocks",
    "netstack/base/timing/test_alarm.py:test_it_wakes_not_before_its_time_and_at_once_after_it": "never early",
    "netstack/base/timing/test_alarm.py:test_a_cancelled_wait_changes_nothing_and_no_file_is_left": "times to wake at",
    "support/leftovers.py:left_since": "a limit of 30 s for processes and threads that are ending",
    "support/trio_runs.py:_RealLimit": "ends a hang",
    "support/trio_runs.py:virtual_clock": "virtual time rests while a thread works",
    "support/cluster_jobs.py:computes": "an operator that computes for so long",
    "support/system/flood_processes.py:tell": "a program of long tests",
    "system/spark_driver.py:main": "a program of long tests",
    "system/test_flame_graphs.py:test_the_page_draws_where_a_task_spends_its_time": "what must not happen; never wrong",
    "system/test_floods.py:Victim": "of long tests",
    "system/test_floods.py:victim": "of long tests",
    "system/test_job_hosts.py:unplug": "of long tests",
    "support/transports/shm_process.py:_pause": "a program that comes and goes at random times",
}


def judged(path: str, source: str) -> Iterator[str]:
    """What of a file looks at a wall clock."""
    if not any(word in source for word in (*SLEEPS, *CLOCKS)):
        return
    tree = ast.parse(source)
    if any(
        isinstance(each, ast.Assign) and _is_long(each.value) and "pytestmark" in _names(each) for each in tree.body
    ):
        return
    is_virtual = any(word in source for word in VIRTUAL)
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        place = f"{path}:{function.name}"
        if place in ALLOWED or any(_is_long(each) for each in function.decorator_list):
            continue
        limits, looping = _limits(function), _in_loops(function)
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called in CLOCKS and node not in limits:
                yield f"{place} line {node.lineno}: {called}"
            hopes = called in SLEEPS and node not in looping and not ast.unparse(node).endswith("(0)")
            if hopes and (called == "time.sleep" or not is_virtual) and Path(path).name.startswith("test_"):
                yield f"{place} line {node.lineno}: {ast.unparse(node)}"


def _is_long(mark: ast.expr) -> bool:
    return "mark.long" in ast.unparse(mark) and "pytest.param(" not in ast.unparse(mark)


def _names(assignment: ast.Assign) -> list[str]:
    return [ast.unparse(each) for each in assignment.targets]


def _in_loops(function: ast.stmt) -> set[ast.AST]:
    return {each for loop in ast.walk(function) if isinstance(loop, ast.While | ast.For) for each in ast.walk(loop)}


def _limits(function: ast.stmt) -> set[ast.AST]:
    """The readings of a clock that set a generous limit, or look whether it is over."""
    actual: set[ast.AST] = set()
    for node in ast.walk(function):
        match node:
            case ast.Assign() if any(name.split(", ")[-1].rstrip(")") in LIMITS for name in _names(node)):
                added = [each.right for each in ast.walk(node.value) if isinstance(each, ast.BinOp)]
                short = [each for each in added if isinstance(each, ast.Constant) and each.value < LEAST_LIMIT_S]
                actual |= set() if short or not added else set(ast.walk(node.value))
            case ast.Compare() | ast.BinOp() if any(
                isinstance(each, ast.Name) and each.id in LIMITS for each in ast.walk(node)
            ):
                actual |= set(ast.walk(node))
    return actual


def test_no_test_that_runs_on_every_change_judges_by_a_wall_clock() -> None:
    files = sorted(TESTS.rglob("*.py"))
    assert len(files) > 300
    actual = [each for path in files for each in judged(path.relative_to(TESTS).as_posix(), path.read_text())]
    assert actual == [], "take a virtual clock, a count or an order, or mark the test `long`"


def test_what_is_allowed_is_there() -> None:
    for place in ALLOWED:
        path, _, name = place.partition(":")
        assert f" {name}(" in (TESTS / path).read_text() or f"class {name}" in (TESTS / path).read_text(), place


@pytest.mark.parametrize(
    ("body", "is_refused"),
    [
        ("began_s = time.monotonic()\n    assert time.monotonic() - began_s < 5", True),
        ("time.sleep(0.5)", True),
        ("trio.sleep(0.5)", True),
        ("trio.sleep(0)", False),
        ("while not ready():\n        time.sleep(0.01)", False),
        ("deadline = time.monotonic() + 5\n    while ready():\n        assert time.monotonic() < deadline", True),
        ("deadline = time.monotonic() + 60\n    while ready():\n        assert time.monotonic() < deadline", False),
    ],
)
def test_it_tells_a_limit_from_a_verdict(body: str, is_refused: bool) -> None:
    source = f"def test_it():\n    {body}\n"
    assert bool([*judged("test_it.py", source)]) == is_refused
    assert [*judged("test_it.py", f"@pytest.mark.long\n{source}")] == []
