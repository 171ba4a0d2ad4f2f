"""`netstack taskmanager`: flags and file, addresses on standard output, and how it ends; as a process over real TCP."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from adopter import RemoteGate, RemoteJob, RemotePartition, RemoteTask, adopt

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConfigError, ConnectionLost
from netstack.cli import main
from netstack.cli.taskmanager import read_config, taskmanager, taskmanager_config
from netstack.cluster.taskmanager.client import open_client
from netstack.cluster.taskmanager.slot_pool import SlotProcesses
from netstack.network.connection.authentication import Secret

CONFIG = NetworkConfig(segment_size_bytes=1024, memory_bytes=1 << 20)
RUN_ID = "00000000000000aa"
PACKAGE = """
import trio
from netstack import RecordReader, RecordWriter

async def write(task):
    assert await task.receive() == {"go": 1}
    writer = RecordWriter(task.partitions[0], format="str", buffer_timeout_s=0)
    for _ in range(task.partitions[0].subpartition_count):
        await writer.emit("a word")
    task.send({"wrote": 1})
    await trio.sleep_forever()

async def read(task):
    async for word in RecordReader(await task.open_gate(), format="str"):
        task.send({"read": word})
"""
COORDINATOR = """
import sys, trio
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.service import open_jobmanager

async def main():
    async with open_jobmanager(JobManagerConfig(listen="memory://doomed", name="doomed")) as jobmanager:
        await jobmanager.adopt(sys.argv[1])
        print("open", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


# ------------------------------------------------------------------------------------------------- flags and file


def settings_of(arguments: list[str]) -> dict[str, Any]:
    """What a command line says, without running anything."""
    with taskmanager.make_context("taskmanager", arguments) as context:
        return {name: value for name, value in context.params.items() if value not in (None, (), False, "text")}


def test_flags_have_units() -> None:
    actual = settings_of(
        ["--slots", "3", "--memory", "1GiB", "--heartbeat-timeout", "500ms", "--allow", "a.", "--allow", "b:"]
    )
    assert actual == {"slots": 3, "memory_bytes": 1 << 30, "heartbeat_timeout_s": 0.5, "allow": ("a.", "b:")}
    config = taskmanager_config({**actual, "control": "127.0.0.1:7000", "listen": "127.0.0.1:7001"})
    assert (config.control, config.listen, config.allow) == (
        "tcp://127.0.0.1:7000",
        "tcp://127.0.0.1:7001",
        ("a.", "b:"),
    )


def test_a_file_has_the_same_settings_and_flags_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "daemon.toml"
    path.write_text(
        'listen = "tcp://127.0.0.1:7001"\nmemory = "64MiB"\nslots = 2\nallow = ["a.", "b."]\nmax-connections = 10\n'
        'handshake-timeout = "2s"\nheartbeat_timeout_s = 3\nmetrics = "127.0.0.1:0"\n'
    )
    actual = read_config(path)
    assert actual == {
        "listen": "tcp://127.0.0.1:7001",
        "memory_bytes": 64 << 20,
        "slots": 2,
        "allow": ["a.", "b."],
        "max_connections": 10,
        "handshake_timeout_s": 2.0,
        "heartbeat_timeout_s": 3,
        "metrics": "127.0.0.1:0",
    }
    served: list[Any] = []

    async def serve(*arguments: Any) -> None:
        served.extend(arguments)

    monkeypatch.setattr(sys.modules["netstack.cli.taskmanager"], "_serve", serve)  # the command hides its module
    assert main(["taskmanager", "--config", str(path), "--slots", "5"]) == 0
    config, metrics, processes, as_json, until_eof = served
    assert (config.slots, config.memory_bytes, config.allow) == (5, 64 << 20, ("a.", "b."))
    assert isinstance(processes, SlotProcesses)
    assert (metrics, as_json, until_eof) == ("127.0.0.1:0", False, False), "of the slots; they serve those of jobs"
    assert (config.jobmanager, config.secret) == (None, None)

    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(32))
    secret.chmod(0o600)
    monkeypatch.setenv("NETSTACK_JOBMANAGER", "127.0.0.1:7002")
    monkeypatch.setenv("NETSTACK_SECRET_FILE", str(secret))
    assert main(["taskmanager", "--config", str(path)]) == main(["taskmanager", "--jobmanager", "127.0.0.1:7003"]) == 0
    assert [config.jobmanager for config in served[5::5]] == ["127.0.0.1:7002", "127.0.0.1:7003"]
    assert all(config.secret.reveal() == Secret.from_file(secret).reveal() for config in served[5::5])


@pytest.mark.parametrize("value", ["3", "2.5", '"3"'])
def test_a_duration_of_a_file_needs_a_unit_or_a_name_with_one(tmp_path: Path, value: str) -> None:
    path = tmp_path / "daemon.toml"
    path.write_text(f"heartbeat-timeout = {value}\n")
    with pytest.raises(ConfigError, match=r"heartbeat-timeout.* no unit: .*ms.* or .*s"):
        read_config(path)
    path.write_text("heartbeat_timeout = 0\nhandshake_timeout_s = 2\n")
    assert read_config(path) == {"heartbeat_timeout_s": 0, "handshake_timeout_s": 2}


def test_where_results_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "daemon.toml"
    path.write_text(
        f'shuffle_directory = "{tmp_path}"\nshuffle-disk = "3GiB"\nsegment_size = "8KiB"\nmax-record = "1GiB"\n'
    )
    network = taskmanager_config(read_config(path)).network
    assert (network.shuffle_directory, network.shuffle_disk_bytes) == (str(tmp_path), 3 << 30)
    assert network.max_record_bytes == 1 << 30
    assert network.segment_size_bytes == 8192


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slots = ", "daemon.toml: "),
        ("colour = 1", "unknown setting 'colour'; the settings are allow, allow-submitted, as, blob-cache,"),
        ('memory = "lots"', "daemon.toml: memory: "),
        ('slots = "many"', "daemon.toml: slots: "),
        ("slots = 1.5", "slots = 1.5 has the wrong type"),
        ("slots = true", "slots = True has the wrong type"),
        ("listen = 5", "listen = 5 has the wrong type"),
        ("secret_file = 0", "secret_file = 0 has the wrong type"),
        ("allow = [1]", "allow = [1] has the wrong type"),
        ("metrics = [1]", "metrics = [1] has the wrong type"),
        ("secret = 'x'", "unknown setting 'secret'"),
        ("slots = 0", "--slots 0"),
        ("slots_in = 'threads'", "slots_in = 'threads'"),
        ("jobmanager = '10.0.0.1'", "--jobmanager '10.0.0.1':"),
        ("jobmanager = 'a:1,'", "--jobmanager '':"),
        ("jobmanager = 'http://a:1'", "scheme 'http'"),
        ("slots = 300", "--slots 300:"),
        ("allow = 'a'", "--allow 'a':"),
        ("listen = 'tcp://0.0.0.0:0'", "give --secret-file"),
        ("secret_file = '/nowhere/at/all'", "secret file /nowhere/at/all"),
    ],
)
def test_a_file_that_cannot_be_is_bad_usage(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "daemon.toml"
    path.write_text(text)
    assert main(["taskmanager", "--config", str(path), "--json"]) == 2
    displayed = capsys.readouterr()
    assert message in json.loads(displayed.out)["error"]
    assert message in displayed.err


def test_a_secret_file_that_others_may_read_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef")
    path.chmod(0o644)
    assert main(["taskmanager", "--secret-file", str(path)]) == 2
    assert f"chmod 600 {path}" in capsys.readouterr().err
    path.chmod(0o600)
    assert taskmanager_config({"secret_file": path, "listen": "0.0.0.0:0"}).secret is not None


def test_an_address_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(__import__("socket").create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        assert main(["taskmanager", "--listen", f"tcp://127.0.0.1:{port}"]) == 1
    assert str(port) in capsys.readouterr().err


def test_a_slots_metrics_port_that_is_taken_ends_it_with_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ["taskmanager", "--listen", "tcp://127.0.0.1:0", "--slots", "1", "--metrics", place]
        ended = subprocess.run(
            [sys.executable, "-m", "netstack.cli", *words], capture_output=True, text=True, timeout=120, check=False
        )
    (line,) = ended.stderr.splitlines()
    assert f"cannot serve the metrics of slot 0 at {place}: another process uses the port" in line
    assert ended.returncode == 1


def test_what_is_unknown_is_a_setting_error() -> None:
    with pytest.raises(ConfigError):
        taskmanager_config({"slots": 0})


# --------------------------------------------------------------------------------------------------- as a process


@contextlib.contextmanager
def started(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A daemon as a process; gives what it said when it was ready."""
    command = [sys.executable, "-c", "import sys; from netstack.cli import main; sys.exit(main())", "taskmanager"]
    process = subprocess.Popen(
        [*command, "--listen", "tcp://127.0.0.1:0", "--slots", "2", "--json", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(folder), str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
        },
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate()[1])
        yield process, json.loads(line)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


@contextlib.contextmanager
def coordinating(address: str) -> Iterator[subprocess.Popen[str]]:
    """A process with a JobManager that has adopted the daemon."""
    process = subprocess.Popen([sys.executable, "-c", COORDINATOR, address], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def scraped(place: str) -> str:
    """What Prometheus would read."""
    with urllib.request.urlopen(f"http://{place}/metrics", timeout=120) as answer:
        text: str = answer.read().decode()
        return text


async def drained(run: RemoteJob) -> None:
    """Hears a run out, until it fails."""
    while True:
        await run.next_event()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a package that is installed here and there."""
    folder = tmp_path / "installed"
    (folder / "clijobs").mkdir(parents=True)
    (folder / "clijobs" / "__init__.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(folder))
    return folder


async def _start(runs: list[RemoteJob]) -> None:
    """A writer on the first, a reader on every one of them."""
    first = runs[0]
    await first.deploy([RemoteTask("write", 0, "clijobs:write", subpartitions=len(runs))])
    first.tell("write", 0, {"go": 1})
    for place, run in enumerate(runs):
        gate = RemoteGate((RemotePartition(first.data_address, "write", 0),), place)
        await run.deploy([RemoteTask("read", place, "clijobs:read", gates=(gate,))])


@pytest.mark.whole
def test_two_daemons_over_tcp_end_with_0_while_runs_are_open(package: Path, tmp_path: Path) -> None:
    secret_file = tmp_path / "secret"
    secret_file.write_bytes(Secret.generate().reveal())
    secret_file.chmod(0o600)
    flags = ["--secret-file", str(secret_file), "--allow", "clijobs:", "--metrics", "127.0.0.1:0"]
    with started(package, *flags) as (one, ready), started(package, *flags) as (other, second):
        assert ready["kind"] == "ready"
        assert ready["pid"] == one.pid
        assert (ready["slots"], ready["control"]) == (2, ready["address"])
        assert ready["metrics"].startswith("127.0.0.1:")

        async def coordinate() -> None:
            secret = Secret.from_file(secret_file)
            with trio.fail_after(120):
                async with (
                    adopt(ready["address"], secret=secret) as a,
                    adopt(second["address"], secret=secret) as b,
                    open_client(ready["address"], secret=secret) as looking,
                ):
                    runs = [await each.open_job(RUN_ID, name="r", network=CONFIG) for each in (a, b)]
                    await _start(runs)
                    received = {json.dumps((await run.next_event()).message) for run in (runs[0], runs[0], runs[1])}
                    assert received == {'{"wrote": 1}', '{"read": "a word"}'}
                    assert (await looking.statistics())["jobs"][0]["bytes_sent"] > 0
                    assert f'partition="r/{RUN_ID}/write/0.0"' in await trio.to_thread.run_sync(
                        scraped, ready["metrics"].split(", ")[0]
                    )
                    for process in (one, other):
                        process.send_signal(signal.SIGTERM)
                    for run in runs:
                        with pytest.raises(ConnectionLost):
                            await drained(run)

        trio.run(coordinate)
        for process in (one, other):
            assert process.wait(120) == 0
        assert one.stderr is not None
        assert "(r) closed: the TaskManager is stopping" in one.stderr.read()


@pytest.mark.whole
def test_a_killed_coordinator_releases_its_run(package: Path) -> None:
    with started(package, "--heartbeat-timeout", "2s") as (_, ready), coordinating(ready["address"]) as process:

        async def follow() -> None:
            with trio.fail_after(120):
                async with open_client(ready["address"]) as looking, adopt(ready["address"]) as client:
                    (driver,) = (await looking.statistics())["drivers"]
                    assert driver.startswith("doomed at ")
                    process.kill()
                    run = await client.open_job(RUN_ID, name="next", network=CONFIG)
                    (driver,) = (await looking.statistics())["drivers"]
                    assert driver.startswith("a jobmanager at ")
                    await run.close()

        trio.run(follow)


@pytest.mark.whole
def test_a_stopped_coordinator_is_silent_and_releases_its_run_within_the_heartbeat_timeout(package: Path) -> None:
    with started(package, "--heartbeat-timeout", "1s") as (daemon, ready), coordinating(ready["address"]) as process:

        async def follow() -> None:
            with trio.fail_after(120):
                async with adopt(ready["address"]) as client:
                    process.send_signal(signal.SIGSTOP)
                    run = await client.open_job(RUN_ID, name="next", network=CONFIG)
                    await run.close()

        trio.run(follow)
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(120) == 0


@pytest.mark.slow
def test_a_child_ends_when_nobody_holds_its_standard_input(package: Path) -> None:
    with started(package, "--until-eof") as (child, _):
        assert child.stdin is not None
        child.stdin.write("whatever\n")
        child.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)
        child.stdin.close()
        assert child.wait(120) == 0
