"""tools/flink-shuffle with a real Flink: its tasks write to netstack, its input gates read from there."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.java, pytest.mark.flink, pytest.mark.long]

JOB = Path(__file__).with_name("flink_job") / "WordJob.java"
TOOL = Path(__file__).parents[2] / "tools" / "flink-shuffle" / "flink_shuffle.py"


def test_a_job_that_fails_once_over_a_long_line_counts_exactly_from_an_unaligned_checkpoint() -> None:
    flags = ("--link", "10ms", "--unaligned", "--aligned-timeout", "50ms", "--fail", "--watch")
    demo = ("--records", "12800", "--work-us", "1000")
    done = subprocess.run(
        [sys.executable, str(TOOL), "run", *flags, *demo], capture_output=True, text=True, check=False, timeout=150
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "keys with an exact count: 64 of 64, after a failure: true" in done.stdout
    actual = re.search(r"checkpoints: (\d+) completed, \d+ failed, 1 restored; (\d+) bytes in flight", done.stdout)
    assert actual is not None, done.stdout
    assert int(actual[1]) >= 2
    assert int(actual[2]) > 0, "nothing was overtaken"
    assert "credits" in done.stderr


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder whose path is short: that of a socket in it may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ns-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def job_jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of a user's, in a jar of its own."""
    from netstack_bench.engines.flink import jar
    from netstack_bench.engines.flink.java_build import jars

    folder = tmp_path_factory.mktemp("job")
    path = os.pathsep.join(map(str, jars(jar.flink_libraries())))
    subprocess.run(["javac", "-d", str(folder), "-cp", path, str(JOB)], check=True, timeout=120)
    with zipfile.ZipFile(folder / "job.jar", "w") as archive:
        for each in sorted(folder.rglob("*.class")):
            archive.write(each, each.relative_to(folder))
    return folder / "job.jar"


def start(job: Path, scratch: Path, *words: str) -> subprocess.Popen[str]:
    mode, *flags = words
    options = [f"--option={each}" for each in flags if "=" in each]
    more = [each for each in flags if "=" not in each]
    job_of = ["--jar", str(job), "--main", "words.WordJob"]
    command = [
        sys.executable,
        str(TOOL),
        "run",
        "--checkpoints",
        "200ms",
        *options,
        *job_of,
        "--",
        mode,
        "100",
        "1000",
        *more,
    ]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(scratch), "XDG_CACHE_HOME": str(job.parent / "cache")},
    )


def kill(process: subprocess.Popen[str]) -> None:
    """Ends a run that did not end, with its JVM and netstack processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def netstack_processes(scratch: Path) -> list[int]:
    """The netstack processes of the task managers whose sockets are in a folder."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().decode(errors="replace").split("\0")
            if "serve" in words and any(word.startswith(str(scratch)) for word in words):
                pids.append(int(entry.parent.name))
    return pids


def finish(process: subprocess.Popen[str], scratch: Path) -> tuple[str, str]:
    output, errors = process.communicate(timeout=300)
    assert not netstack_processes(scratch)
    assert not list(scratch.iterdir()), "files were left outside of io.tmp.dirs"
    return output, errors


def test_a_job_of_its_own_jar_survives_the_death_of_a_netstack_process(job_jar: Path, scratch: Path) -> None:
    process = start(job_jar, scratch, "STREAMING")
    try:
        until_s = time.monotonic() + 240
        while not list(scratch.glob("*/checkpoints/*/chk-*/_metadata")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until_s, "no checkpoint was completed"
            time.sleep(0.1)
        os.kill(netstack_processes(scratch)[0], signal.SIGKILL)
        output, errors = finish(process, scratch)
    finally:
        kill(process)
    assert process.returncode == 0, errors[-3000:]
    assert ": 32 of 32" in output
    assert "another one is started" in errors
    restored = re.search(r"(\d+) restored", output)
    assert restored is not None
    assert int(restored[1]) >= 1


def test_another_parallelism_after_an_unaligned_checkpoint_is_refused(scratch: Path, tmp_path: Path) -> None:
    kept = f"--option=execution.checkpointing.dir=file://{tmp_path}"
    command = [sys.executable, str(TOOL), "run", "--link", "10ms", "--unaligned", "--work-us", "1000", kept]
    environment = {**os.environ, "TMPDIR": str(scratch)}

    def begin(*more: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*command, *more], stdout=pipe, stderr=pipe, text=True, start_new_session=True, env=environment
        )

    process = begin()
    try:
        until_s = time.monotonic() + 240
        while not list(tmp_path.glob("*/chk-[2-9]/_metadata")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until_s, "no checkpoint was completed"
            time.sleep(0.1)
        os.kill(int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]), signal.SIGKILL)
        finish(process, scratch)  # both task managers were killed: nothing is left of them
        newest = sorted(tmp_path.glob("*/chk-*/_metadata"), key=lambda path: path.stat().st_mtime)[-1].parent
        recovery = f"--option=execution.state-recovery.path=file://{newest}"
        process = begin("--parallelism", "3", recovery)
        _, errors = finish(process, scratch)
    finally:
        kill(process)
    assert process.returncode != 0
    assert "netstack restores records in flight only with the parallelism of the checkpoint" in errors


def run_batch(job: Path, scratch: Path, *words: str) -> tuple[int, str, str]:
    process = start(job, scratch, "BATCH", *words)
    try:
        output, errors = finish(process, scratch)
    finally:
        kill(process)
    return process.returncode, output, errors


def test_a_batch_job_runs_with_pipelined_exchanges(job_jar: Path, scratch: Path) -> None:
    code, output, errors = run_batch(job_jar, scratch, "execution.batch-shuffle-mode=ALL_EXCHANGES_PIPELINED")
    assert code == 0, errors[-3000:]
    assert ": 32 of 32" in output


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "execution.batch-shuffle-mode=ALL_EXCHANGES_HYBRID_FULL",
            "netstack serves pipelined and blocking partitions to Flink, not HYBRID_FULL",
        ),
        ("jobmanager.scheduler=AdaptiveBatch", "does not know: set jobmanager.scheduler to Default"),
    ],
)
def test_exchanges_that_netstack_cannot_serve_are_refused_once(
    option: str, message: str, job_jar: Path, scratch: Path
) -> None:
    code, _, errors = run_batch(job_jar, scratch, option)
    assert code != 0
    assert message in errors
    assert "This suppresses job restarts" in errors


def test_a_consumer_that_fails_reads_blocking_results_again(job_jar: Path, scratch: Path) -> None:
    code, output, errors = run_batch(job_jar, scratch, "1")
    assert code == 0, errors[-3000:]
    assert ": 32 of 32" in output
    made, summed = (int(re.search(rf"{name}: (\d+)", output)[1]) for name in ("made", "summed"))
    assert made == 3200, "its producers ran once"
    assert summed > 3200 - 32, "no consumer failed"


def test_blocking_results_are_made_again_where_a_netstack_process_died(job_jar: Path, scratch: Path) -> None:
    process = start(job_jar, scratch, "BATCH", "restart-strategy.fixed-delay.attempts=20", "5000")
    try:
        assert process.stdout is not None
        while "will fail" not in (line := process.stdout.readline()):  # all of them are stored, and were read
            assert line, process.communicate()
        os.kill(netstack_processes(scratch)[0], signal.SIGKILL)
        output, errors = finish(process, scratch)
    finally:
        kill(process)
    assert process.returncode == 0, errors[-3000:]
    assert "another one" in errors
    assert "words with an exact count: 32 of 32" in output
    made = re.search(r"records made: (\d+)", output)
    assert made is not None
    assert int(made[1]) > 3200, "what was lost was made again"
