"""A worker of a pair that fails ends the measurement with an error that says so, and leaves no process behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from netstack.base.errors import ConfigError
from netstack_bench.places.conversation import MeasurementFailed, RunState
from netstack_bench.places.local.runner import PhaseLimits, Summaries, run_pair

pytestmark = pytest.mark.slow

WORKER = """
import os, sys
from pathlib import Path
import trio
from netstack_bench.places.local.pair_io import serve
from netstack.base.errors import ConfigError

def note(role):
    Path(__file__).with_name(role + ".pid").write_text(str(os.getpid()))

async def produce(io):
    note("producer")
    io.publish("here")
    first = await io.ready()
    return {"first": first, "second": await io.ready(), "twice": 2 * io.settings["number"]}

async def consume(io):
    note("consumer")
    address = await io.peer_address()
    first = await io.ready()
    INSTEAD
    second = await io.ready()
    summary = await io.producer_summary()
    return {"address": address, "first": first, "second": second, "told": summary["twice"]}

sys.exit(serve(produce, consume))
"""


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> object:
    yield
    for path in tmp_path.glob("*.pid"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, instead: str = "pass", **options: Any) -> Summaries:
    (folder / "worker_under_test.py").write_text(WORKER.replace("INSTEAD", instead))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return run_pair("worker_under_test", "a pair", {"number": 21}, deadlines=PhaseLimits(), expected_s=1.0, **options)


def test_both_sides_meet_as_often_as_they_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunState] = []
    actual = run(tmp_path, monkeypatch, on_progress=seen.append)
    assert actual.consumer["address"] == "here"
    assert actual.consumer["told"] == actual.producer["twice"] == 42
    assert actual.producer["first"] == actual.consumer["first"] < actual.producer["second"] == actual.consumer["second"]
    assert actual.remarks == ()
    assert {progress.engine for progress in seen} == {"a pair"}
    assert seen[0].phase == "starting"
    assert seen[-1].phase == "draining"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("instead", "error", "reported"),
    [
        ("print('last words', file=sys.stderr, flush=True); os._exit(7)", MeasurementFailed, "code 7\n    last words"),
        ("raise ExceptionGroup('several', [ConfigError('in a group')])", ConfigError, "in a group"),
    ],
)
def test_a_side_that_fails_is_quoted(
    instead: str, error: type[Exception], reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(error, match=reported):
        run(tmp_path, monkeypatch, instead)


def test_ctrl_c_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(progress: RunState) -> None:
        if progress.phase == "running":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, monkeypatch, "await trio.sleep_forever()", on_progress=interrupt)
    assert len(list(tmp_path.glob("*.pid"))) == 2
