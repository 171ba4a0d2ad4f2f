"""What goes wrong with a worker ends the measurement with an error that says so, and leaves no process behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from netstack.base.errors import ConfigError
from netstack_bench.places.conversation import MeasurementFailed, RunState
from netstack_bench.places.local.runner import PhaseLimits, Workers, run_once
from netstack_bench.rows import InputError
from netstack_bench.spec import RunSpec

pytestmark = pytest.mark.slow

WORKING = """
import os
from pathlib import Path
from netstack_bench.places.local.worker_io import Facts

def note(role):
    Path(__file__).with_name(role + ".pid").write_text(str(os.getpid()))

def produce(spec, io):
    note("producer")
    print("a stray print does no harm")
    io.ready()
    while io.next_span() is not None:
        pass
    return Facts()

def consume(spec, io):
    note("consumer")
    io.ready()
    return Facts()
"""
IMPATIENT = PhaseLimits(setup_s=20, silent_s=5, stalled_s=1.0, exit_s=5)
TINY = RunSpec(records=5)

BrokenEngine = Callable[[str, str], str]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BrokenEngine:
    """Writes an engine whose producer or consumer does `instead` once it is ready."""
    package = tmp_path / "engines_under_test"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(role: str, instead: str) -> str:
        head = {"producer": "def produce(spec, io):", "consumer": "def consume(spec, io):"}[role]
        body = "".join(f"    {line}\n" for line in [f"note({role!r})", *instead.splitlines()])
        text = WORKING.replace(head, f"def unused_{role}(spec, io):") + f"\n{head}\n{body}"
        (package / "broken.py").write_text(text)
        return "engines_under_test.broken"

    return write


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> object:
    yield
    pids = [int(path.read_text()) for path in tmp_path.glob("engines_under_test/*.pid")]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.whole
@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_a_worker_that_dies_is_quoted(engine: BrokenEngine, role: str) -> None:
    name = engine(role, "import sys, os\nprint('cannot go on', file=sys.stderr, flush=True)\nio.ready()\nos._exit(7)")
    with pytest.raises(MeasurementFailed) as caught:
        run_once(TINY, engine=name)
    text = str(caught.value)
    assert f"the {role} exited with code 7" in text
    assert "cannot go on" in text
    assert name in text


def test_a_worker_that_is_killed(engine: BrokenEngine) -> None:
    name = engine("consumer", "import os, signal\nio.ready()\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(MeasurementFailed, match="the consumer was ended by signal 9"):
        run_once(TINY, engine=name)


def test_an_unexpected_exception_shows_its_traceback(engine: BrokenEngine) -> None:
    with pytest.raises(MeasurementFailed, match=r"(?s)exited with code 1.*ZeroDivisionError"):
        run_once(TINY, engine=engine("producer", "1 / 0"))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("instead", "expected"),
    [
        ("from netstack.base.errors import ConfigError\nraise ConfigError('no such thing')", ConfigError),
        ("from netstack_bench.rows import InputError\nraise InputError('no such thing')", InputError),
        ("from netstack.base.errors import ConnectionLost\nraise ConnectionLost('no such thing')", MeasurementFailed),
    ],
)
def test_a_typed_error_arrives_as_itself(engine: BrokenEngine, instead: str, expected: type[Exception]) -> None:
    with pytest.raises(expected, match="no such thing"):
        run_once(TINY, engine=engine("consumer", instead))


def test_a_typed_error_within_trios_groups(engine: BrokenEngine) -> None:
    name = engine("producer", "pass")
    path = Path(os.environ["PYTHONPATH"]) / "engines_under_test" / "broken.py"
    path.write_text(
        path.read_text()
        + """
import trio
from netstack.base.errors import ConfigError

async def fail():
    raise ConfigError("deep down")

async def produce(spec, io):
    await io.ready_async()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
"""
    )
    with pytest.raises(ConfigError, match="deep down"):
        run_once(TINY, engine=name)


def test_a_worker_that_stops_is_noticed(engine: BrokenEngine) -> None:
    name = engine("consumer", "import os, signal\nio.ready()\nos.kill(os.getpid(), signal.SIGSTOP)")
    with pytest.raises(MeasurementFailed, match=r"the consumer sent nothing for 1\.5 s"):
        run_once(TINY, engine=name, deadlines=PhaseLimits(silent_s=1.5))


def test_a_run_without_progress_is_ended(engine: BrokenEngine) -> None:
    name = engine("consumer", "import threading\nio.ready()\nthreading.Event().wait()")
    with pytest.raises(MeasurementFailed, match=r"no progress for 1 s .*producer 5, consumer 0"):
        run_once(TINY, engine=name, deadlines=IMPATIENT)


def test_a_worker_that_never_gets_ready(engine: BrokenEngine) -> None:
    name = engine("producer", "io.peer_address()")
    with pytest.raises(MeasurementFailed, match="did not become ready"):
        run_once(TINY, engine=name, deadlines=PhaseLimits(setup_s=1.0))


def test_what_never_arrived_is_told_not_raised(engine: BrokenEngine) -> None:
    row = run_once(TINY, engine=engine("consumer", "io.ready()\nreturn Facts()"))
    assert row["delivered"] is False
    assert "delivery: producer sent 5 records, 0 arrived" in row["warnings"]


def test_ctrl_c_ends_both_workers(engine: BrokenEngine) -> None:
    def interrupt(progress: RunState) -> None:
        if progress.phase != "starting":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_once(RunSpec(seconds=60), engine=engine("consumer", "io.ready()\nio.peer_address()"), on_progress=interrupt)


def test_no_such_engine() -> None:
    with pytest.raises(ConfigError, match="'carrier-pigeon'; there are"):
        run_once(TINY, engine="carrier-pigeon")


def test_a_worker_does_not_outlive_its_runner() -> None:
    command = [sys.executable, "-m", "netstack_bench.places.local.worker", "--role", "consumer", "--engine", "raw"]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=120, check=False).returncode == 3


def test_leaving_early_ends_the_workers() -> None:
    with Workers("raw", PhaseLimits(exit_s=0.1)) as workers:
        pass
    assert all("did not exit" in line or "exit" in line for line in workers.last_words())
