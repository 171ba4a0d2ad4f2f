"""`netstack top`: what a terminal of any width shows, and the command against running daemons."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from adopter import RemoteTask, adopt
from page_jobs import cluster
from rich.console import Console
from trio.testing import MockClock

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConnectionLost
from netstack.base.transport import transport_for
from netstack.cli import (
    main,
    top as _command,  # noqa: F401
)
from netstack.cli.top_jobs import JobManagerHistory
from netstack.cli.top_view import TaskManagerHistory
from netstack.cluster.taskmanager.config import TaskManagerConfig
from netstack.cluster.taskmanager.runner import open_taskmanager
from netstack.cluster.taskmanager.service import TaskManager

TOP = sys.modules["netstack.cli.top"]
COMMAND = [sys.executable, "-c", "import sys; from netstack.cli import main; sys.exit(main())", "top"]


def busy() -> TaskManagerHistory:
    """A daemon with a run that is under way, one that failed, and one that waits."""
    history = TaskManagerHistory("10.0.0.1:6121")
    for second in range(61):
        channels = [
            {"peer": "tcp://10.0.0.2:40000", "partition": "source-0", "subpartition": place, "credit": place * second}
            for place in range(6)
        ]
        metrics: dict[str, Any] = {
            "netstack_output_bytes_total": {"p": second**2 * 1e6},
            "netstack_output_backpressured_ms_per_second": {"p": 999.4},
            "netstack_output_pool_usage_ratio": {"p": 1.31},
        }
        run = {
            "job_id": "a",
            "name": "bench 1234",
            "slots": 2,
            "memory_bytes": 4 << 20,
            "age_s": 3725.0,
            "tasks": {"source-0": "running", "sink-0": "failed"},
            "metrics": metrics,
            "channel_count": 1006,
            "channels": channels,
        }
        waiting = {"job_id": "b", "name": "next", "slots": 1, "memory_bytes": 1 << 20, "age_s": 5.0, "tasks": {}}
        document = {
            "hostname": "host-a",
            "version": "0.3.0",
            "pid": 1,
            "uptime_s": 90061.0,
            "cpu_s": second * 1.5,
            "cpus": 4,
            "slots": 8,
            "free_slots": 6,
            "memory_bytes": 256 << 20,
            "free_memory_bytes": 252 << 20,
            "jobs": [run, waiting],
        }
        history.add(document, float(second))
    return history


def shown(histories: list[Any], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(TOP.rendered([history.view(60.0) for history in histories], width))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_daemon_at_80_columns() -> None:
    closed = TaskManagerHistory("10.0.0.2:6121")
    closed.lost("Connection refused")
    assert shown([busy(), closed], 80) == [
        "10.0.0.1:6121  host-a  up 1 d 1:01:01  slots 2/8  CPU 150 % of 400 %",
        "  buffers 0 B in use, 4.19 MB held by jobs, of 268 MB",
        "  bench 1234  1:02:05  2 slots  1 running, 1 failed  buffers 0 %",
        "             bytes      records the last minute         waits",
        "    out   119 MB/s      0 rec/s ▁▁▁▂▂▃▃▃▄▄▄▅▅▆▆▆▇▇▇███  backpressured  999 ms/s",
        "    in       0 B/s      0 rec/s ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁  idle             0 ms/s",
        "    pool usage out 131 %, in 0 %; network out 0 B/s, in 0 B/s",
        "           credit  the last minute         channel",
        "                0  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁  source-0[0] to 10.0.0.2",
        "               60  ▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▃▃▃▃▃▃  source-0[1] to 10.0.0.2",
        "              120  ▁▁▁▁▂▂▂▂▃▃▃▃▄▄▄▄▅▅▅▅▆▆  source-0[2] to 10.0.0.2",
        "              180  ▁▁▂▂▂▃▃▃▄▄▄▅▅▆▆▆▇▇▇███  source-0[3] to 10.0.0.2",
        "    and 1,002 more channels, with at least as much credit",
        "  next  0:05  1 slot  waiting for slots",
        "",
        "10.0.0.2:6121  lost, reconnecting",
        "  Connection refused",
        "",
    ]


@pytest.mark.parametrize("width", [20, 40, 79, 80, 81, 120, 300])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = shown([busy()], width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 15


@pytest.mark.parametrize("seconds", [0, 59.9, 60, 3599, 3600, 86399, 86400, 1e7])
def test_times_are_read_at_a_glance(seconds: float) -> None:
    assert re.fullmatch(r"(\d+ d )?(\d+:\d\d|\d+):\d\d", TOP._clock(seconds))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument"),
        (["nowhere"], "'nowhere' is no address; give HOST:PORT"),
        (["a:1:2"], "is no address"),
        (["a:1", "--interval", "0"], "--interval 0 is not allowed"),
        (["a:1", "--interval", "soon"], "soon"),
        (["a:1", "--secret-file", "/nowhere"], "/nowhere"),
    ],
)
def test_bad_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", *arguments, "--json"]) == 2
    output = capsys.readouterr()
    assert message in json.loads(output.out)["error"]


def test_nobody_there_is_told_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "127.0.0.1:1", "--interval", "50ms"]) == 1  # standard output is no terminal: one snapshot
    assert "127.0.0.1:1  lost, reconnecting" in capsys.readouterr().out
    assert main(["top", "127.0.0.1:1", "--once", "--interval", "50ms", "--json"]) == 1
    (daemon,) = json.loads(capsys.readouterr().out)["taskmanagers"]
    assert "Connection refused" in daemon["gone"]


@pytest.mark.parametrize("as_json", [True, False])
def test_a_peer_that_never_answers_ends_the_live_view(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        listener = await transport_for("tcp://127.0.0.1:0").listen("tcp://127.0.0.1:0")  # the kernel connects
        address = listener.address.removeprefix("tcp://")
        histories: dict[str, Any] = {address: TaskManagerHistory(address)}
        with pytest.raises(
            ConnectionLost, match=f"no process answered within 10 s .*{address} did not answer within 5 s"
        ):
            await TOP._watch(histories, None, 1.0, False, as_json)
        assert 10 <= trio.current_time() - began_s < 12
        listener.close()

    clock = MockClock(autojump_threshold=0.05)
    began_s = clock.current_time()
    trio.run(main, clock=clock)


async def test_a_peer_that_has_answered_is_contacted_again(autojump_clock: MockClock) -> None:
    history = TaskManagerHistory("127.0.0.1:1")
    history.has_answered = True
    with trio.move_on_after(60) as waited:
        await TOP._watch({"127.0.0.1:1": history}, None, 1.0, False, True)
    assert waited.cancelled_caught


async def _with_a_run(work: Any) -> None:
    with trio.fail_after(300):
        async with (
            open_taskmanager(TaskManagerConfig(listen="tcp://127.0.0.1:0", slots=4, allow=("adopter:",))) as daemon,
            adopt(daemon.address) as client,
        ):
            config = NetworkConfig(segment_size_bytes=1024, memory_bytes=1 << 20)
            job = await client.open_job("00000000000000cc", name="shown", network=config)
            await job.deploy([RemoteTask("asleep", index, "adopter:asleep") for index in range(3)])
            await work(daemon)


@pytest.mark.slow
def test_once_prints_exactly_one_document_of_a_running_daemon() -> None:
    async def work(daemon: TaskManager) -> None:
        place = daemon.address.partition("://")[2]
        command = [*COMMAND, place, "--once", "--json", "--interval", "100ms"]
        process = await trio.run_process(command, capture_stdout=True)
        (document,) = map(json.loads, process.stdout.splitlines())
        (view,) = document["taskmanagers"]
        assert (view["address"], view["gone"], view["used_slots"], view["slots"]) == (place, "", 3, 4)
        assert view["cpu_percent"] >= 0
        assert [run["name"] for run in view["jobs"]] == ["shown"]

    trio.run(_with_a_run, work)


@pytest.mark.slow
def test_documents_come_until_the_reader_goes_away() -> None:
    async def work(daemon: TaskManager) -> None:
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(
                partial(
                    trio.run_process,
                    [*COMMAND, daemon.address, "--json", "--interval", "50ms"],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
            assert process.stdout is not None
            text = b""
            while text.count(b"\n") < 3:
                text += await process.stdout.receive_some()
            assert all("taskmanagers" in json.loads(line) for line in text.splitlines()[:3])
            await process.stdout.aclose()
            assert process.stderr is not None
            assert await process.stderr.receive_some() == b""
            assert await process.wait() == 0

    trio.run(_with_a_run, work)


@pytest.mark.whole
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, b"q"])
def test_in_a_terminal_it_is_renewed_and_ends_cleanly(end: signal.Signals | bytes, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [*COMMAND, "127.0.0.1:1", "--interval", "50ms"], stdin=slave, stdout=slave, stderr=slave, env=environment
    )
    os.close(slave)
    try:
        screen = b""
        deadline = time.monotonic() + 120
        while screen.count(b"lost, reconnecting") < 3 and time.monotonic() < deadline:
            if select.select([master], [], [], 1)[0]:
                screen += os.read(master, 65536)
        assert screen.count(b"lost, reconnecting") >= 3, screen
        assert b"q quits" in screen
        if isinstance(end, bytes):
            os.write(master, end)
        else:
            process.send_signal(end)
        while select.select([master], [], [], 120)[0]:
            try:
                screen += os.read(master, 65536)
            except OSError:
                break  # the other end is closed
        assert process.wait(120) == 0
        assert b"\x1b[?1049h" in screen
        assert screen.rindex(b"\x1b[?1049l") > screen.rindex(b"lost"), "the terminal is as it was"
        assert b"\x1b[?25h" in screen, "and has a cursor"
        assert b"Traceback" not in screen
    finally:
        process.kill()
        process.wait()
        os.close(master)


def look(second: int, records: int) -> dict[str, Any]:
    """What a JobManager with one job tells."""
    subtasks = [{"state": "running", "busy": 900, "idle": 100, "backpressured": 0}, {"state": "running"}]
    vertex = {"name": "count", "records_in": records, "records_out": 0, "subtasks": subtasks}
    job = {"job_id": "abc", "name": "words", "state": "running", "restarts": 1, "checkpoints_completed": second}
    job |= {"waits_for": "", "reason": "", "vertices": [vertex]}
    ended = {**job, "job_id": "old", "state": "failed", "reason": "it broke"}
    there = {"name": "10.0.0.7:41000", "host": "host-a", "slots": 2, "free_slots": 1, "gone": ""}
    return {"jobs": [ended, job], "taskmanagers": [there]}


def test_jobs_of_a_jobmanager_have_titles_rates_and_hosts() -> None:
    history = JobManagerHistory("10.0.0.1:6120")
    assert not history.is_known
    for second in range(5):
        history.add(look(second, 1000 * second), float(second))
    assert history.is_known
    text = "\n".join(shown([history], 120))
    assert "JobManager 10.0.0.1:6120  2 jobs, 1 of 2 slots free" in text
    assert re.search(r"task +subtasks +in/s +out/s +busy +idle +waits", text)
    assert re.search(r"count +2 running +1 k +0 +90 % +10 % +0 %", text)
    assert text.index("words  running") < text.index("words  failed"), "the newest first"
    assert "it broke" in text
    assert re.search(r"10.0.0.7:41000 +host-a +1 of 2", text)
    history.lost("nobody answers")
    assert "lost, reconnecting" in "\n".join(shown([history], 120))


async def test_a_jobmanager_is_told_from_a_taskmanager(capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster() as (manager, taskmanagers, job_id):
        histories = {address: TaskManagerHistory(address) for address in (manager.address, taskmanagers[0].address)}
        assert await TOP._watch(histories, None, 0.1, True, True) == 0
    document = json.loads(capsys.readouterr().out)
    (actual,) = document["jobmanagers"]
    assert [each["job_id"] for each in actual["jobs"]] == [job_id]
    assert [each["name"] for each in actual["jobs"][0]["vertices"]] == ["A", "B"]
    assert [each["address"] for each in document["taskmanagers"]] == [taskmanagers[0].address]
