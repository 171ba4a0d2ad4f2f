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
    found = re.search(r"checkpoints: (\d+) completed, \d+ failed, 1 restored; (\d+) bytes in flight", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) >= 2
    assert int(found[2]) > 0, "nothing was overtaken"
    assert "credits" in done.stderr


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder whose path is short: that of a socket in it may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ns-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def job_jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of a user's, in a jar of its own."""
    from netstack.bench.peers.flink import jar
    from netstack.bench.peers.flink.java_build import jars

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
    job_of = ["--jar", str(job), "--main", "words.WordJob"]
    command = [sys.executable, str(TOOL), "run", "--checkpoints", "200ms", *options, *job_of, "--", mode, "100", "1000"]
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
    assert "words with an exact count: 32 of 32" in output
    assert "another one is started" in errors
    restored = re.search(r"(\d+) restored", output)
    assert restored is not None
    assert int(restored[1]) >= 1


@pytest.mark.parametrize("mode", ["ALL_EXCHANGES_PIPELINED", "ALL_EXCHANGES_BLOCKING"])
def test_a_batch_job_runs_with_pipelined_exchanges_and_others_are_refused_once(
    mode: str, job_jar: Path, scratch: Path
) -> None:
    process = start(job_jar, scratch, "BATCH", f"execution.batch-shuffle-mode={mode}", "jobmanager.scheduler=Default")
    try:
        output, errors = finish(process, scratch)
    finally:
        kill(process)
    if mode == "ALL_EXCHANGES_PIPELINED":
        assert process.returncode == 0, errors[-3000:]
        assert "words with an exact count: 32 of 32" in output
    else:
        assert process.returncode != 0
        assert "netstack serves pipelined partitions, not BLOCKING: set execution.batch-shuffle-mode" in errors
        assert "This suppresses job restarts" in errors
