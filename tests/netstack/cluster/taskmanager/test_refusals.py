"""Jobs that cannot be, and peers who are not let in: each is told why, and the next one is served."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

import adopter
import pytest
import trio
import trio.testing
from adopter import Ended, RemoteTask, adopt
from taskmanagerworld import (
    SECRET,
    SLOW_IMPORT_BEGAN,
    SLOW_IMPORT_MAY_END,
    connect,
    connections,
    count_words,
    is_empty,
    open_job,
    pair_open,
    task,
    taskmanager_open,
    until,
)
from trio.testing import MockClock

from netstack.base.config import NetworkConfig
from netstack.base.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionLost,
    RemoteProtocolError,
    RequestRefused,
)
from netstack.base.transport import is_private, transport_for
from netstack.cluster.control import link as link_module
from netstack.cluster.control.build import own_build
from netstack.cluster.control.frames import FrameStream
from netstack.cluster.control.link import CLIENT, ControlLink, full_build
from netstack.cluster.control.messages import GREETING, VERSION, CloseJob, Refused
from netstack.cluster.control.routing import write_route
from netstack.cluster.taskmanager.config import TaskManagerConfig
from netstack.cluster.taskmanager.runner import open_taskmanager
from netstack.network.connection.authentication import Secret

# -------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (RemoteTask("t", 0, "subprocess:run"), "'subprocess:run' may not run on this TaskManager"),
        (task("ordinary"), "is no `async def`"),
        (task("imported"), "is not allowed here"),
        (task("missing"), "cannot be imported"),
        (RemoteTask("t", 0, "userjobs.exits:x"), "SystemExit"),
        (RemoteTask("t", 0, "nowhere:x"), "is not installed on this host"),
        (task("hold", subpartitions=100_000), "requires 100001 network buffers"),
        (task("hold", subpartitions=-1), "the minimum is 1"),
    ],
)
async def test_a_task_that_cannot_be_fails_alone_and_says_why(bad: RemoteTask, message: str) -> None:
    async with pair_open() as (daemon, client):
        run = await open_job(client)
        await run.deploy([task("echo", subtask=number) for number in range(2)])
        with pytest.raises((RequestRefused, ConfigError), match=message):
            await run.deploy([bad])
        for subtask in range(2):
            run.tell("echo", subtask, {"stop": "still here"})
            assert await run.next_event() == Ended("echo", subtask, "still here")
        await run.deploy([task("echo")])
        run.tell("echo", 0, {"stop": "a second attempt is ordinary"})
        assert (await run.next_event()).result.startswith("a second attempt")  # type: ignore[union-attr]
        await run.close()
        assert is_empty(daemon)


async def test_another_build_of_the_invokables_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair_open() as (_, client):
        run = await open_job(client)
        monkeypatch.setattr(adopter, "build_of", lambda package: "0123456789ab")
        with pytest.raises(
            RequestRefused,
            match=r"'userjobs' is build .* 0123456789ab",
        ):
            await run.deploy([task("echo")])


async def test_a_run_that_cannot_be_is_refused_at_once() -> None:
    async with pair_open() as (daemon, client):
        with pytest.raises(RequestRefused, match="64MiB of network buffers"):
            await open_job(client, network=NetworkConfig(memory_bytes=64 << 20))
        assert is_empty(daemon)
        await (await open_job(client)).close()


async def test_settings_unknown_or_impossible_there_are_refused() -> None:
    async with pair_open() as (daemon, client):
        for wrong, message in (
            ({"colour": "red"}, "colour"),
            ({"segment_size_bytes": -1}, "segment_size_bytes"),
            ({"memory_bytes": "lots"}, "is not of type int"),
        ):
            with pytest.raises(RequestRefused, match=message):
                await open_job(client, network=wrong)
        assert is_empty(daemon)


async def test_a_run_that_breaks_while_it_opens_is_refused_and_the_daemon_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair_open() as (daemon, client):
        with monkeypatch.context() as patched:
            patched.setattr("netstack.cluster.taskmanager.environments.network_environment_on", _no_memory)
            with pytest.raises(RequestRefused, match="MemoryError: none left"):
                await open_job(client)
        assert is_empty(daemon)
        assert "failed with an internal error" in caplog.text
        await (await open_job(client)).close()


def _no_memory(*_: Any, **__: Any) -> Any:
    raise MemoryError("none left")


async def test_no_more_runs_than_the_daemon_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netstack.cluster.taskmanager.service.JOBS_AT_MOST", 1)
    async with pair_open() as (_, client):
        run = await open_job(client)
        with pytest.raises(RequestRefused, match=r"1 jobs .* the maximum"):
            await open_job(client)
        await run.close()
        await open_job(client)


async def test_no_more_jobs_of_a_host_than_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netstack.cluster.taskmanager.service.JOBS_OF_A_HOST", 2)
    async with pair_open(listen="tcp://127.0.0.1:0") as (_, client):
        run = await open_job(client)
        await open_job(client)
        with pytest.raises(RequestRefused, match="2 jobs of your host"):
            await open_job(client)
        await run.close()
        await open_job(client)


async def test_a_module_that_is_imported_for_ever_holds_nobody_up() -> None:
    async with pair_open() as (daemon, client), trio.open_nursery() as nursery:
        run = await open_job(client)

        async def deploy() -> None:
            with pytest.raises(RequestRefused, match="closed the job"):
                await run.deploy([RemoteTask("t", 0, "userjobs.slow:job")])

        nursery.start_soon(deploy)
        await until(SLOW_IMPORT_BEGAN.is_set)
        try:
            await run.close()
            assert is_empty(daemon)
            await count_words(await open_job(client))
        finally:
            SLOW_IMPORT_MAY_END.set()


async def test_an_id_is_one_run_s_at_a_time() -> None:
    async with pair_open() as (daemon, client):
        run = await open_job(client)
        with pytest.raises(RequestRefused, match=f"job {run.job_id} exists already"):
            await open_job(client, job_id=run.job_id)
        with pytest.raises(RequestRefused, match="16 hex digits"):
            await open_job(client, job_id="x")
        await count_words(run)
        await run.close()
        again = await open_job(client, job_id=run.job_id)
        await again.close()
        assert is_empty(daemon)


async def test_one_jobmanager_at_a_time_others_wait_and_are_told_for_whom(autojump_clock: MockClock) -> None:
    async with taskmanager_open() as daemon, adopt(daemon.address, name="the first") as first:
        await open_job(first)
        began = trio.current_time()
        async with adopt(daemon.address, heartbeat_timeout_s=100.0) as second:
            with pytest.raises(
                ConnectionLost,
                match=r"for the first at .* last 20 s",
            ):
                await open_job(second)
        assert trio.current_time() - began == pytest.approx(20.0)
        async with trio.open_nursery() as nursery:
            third = await nursery.start(_adopted, daemon.address)
            await trio.testing.wait_all_tasks_blocked()
            assert not third.is_set()
            first.link.close()
            await third.wait()


async def _adopted(address: str, task_status: trio.TaskStatus[trio.Event]) -> None:
    """Sets an event when a job of its own could be opened and has counted."""
    is_served = trio.Event()
    async with adopt(address, heartbeat_timeout_s=100.0) as client:
        task_status.started(is_served)
        await count_words(await open_job(client))
        is_served.set()


async def test_who_works_for_a_jobmanager_is_not_adopted_and_clients_only_look() -> None:
    async with taskmanager_open(jobmanager="memory://somewhere") as daemon, adopt(daemon.address) as client:
        with pytest.raises(ConnectionLost, match="JobManager at memory://somewhere: submit"):
            await open_job(client)
    async with taskmanager_open() as daemon:
        stream = await transport_for(daemon.address).connect(daemon.address)
        await write_route(stream, None)
        link = ControlLink(stream, heartbeat_timeout_s=10.0)
        await link.greet(full_build(own_build()), "somebody", CLIENT, {})
        link.send(CloseJob("0123456789abcdef"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            message = await link.receive()
            assert isinstance(message, Refused)
            assert "accepts CloseJob only from a JobManager" in message.text
            nursery.cancel_scope.cancel()


# --------------------------------------------------------------------------------------------- who is not let in


@pytest.mark.parametrize(
    ("address", "is_it"),
    [
        ("tcp://127.0.0.1:6121", True),
        ("tcp://127.3.2.1:0", True),
        ("tcp://localhost:6121", True),
        ("tcp://[::1]:6121", True),
        ("unix:///run/x", True),
        ("memory://x", True),
        ("tcp://0.0.0.0:6121", False),
        ("tcp://:6121", False),
        ("tcp://10.0.0.1:6121", False),
        ("tcp://localhost.example.org:6121", False),
        ("tcp://127.0.0.1.example.org:6121", False),
        ("tcp://[::1234]:6121", False),
        ("tcp://user@10.0.0.1:6121", False),
        ("tcp://127.0.0.1@10.0.0.1:6121", False),
    ],
)
def test_only_loopback_goes_without_a_secret(address: str, is_it: bool) -> None:
    assert is_private(address) is is_it
    if not is_it:
        with pytest.raises(ConfigError, match="no secret: give --secret-file"):
            TaskManagerConfig(listen=address)
        with pytest.raises(ConfigError, match="--secret-file"):
            TaskManagerConfig(control=address)
        TaskManagerConfig(listen=address, secret=SECRET)


@pytest.mark.parametrize(
    "wrong", [{"slots": 0}, {"memory_bytes": 1}, {"handshake_timeout_s": 0}, {"heartbeat_timeout_s": float("nan")}]
)
def test_numbers_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TaskManagerConfig(**wrong)


@pytest.mark.parametrize("scheme", ["memory", "tcp"])
async def test_the_wrong_secret_or_none(scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    listen = {"memory": "memory://secret", "tcp": "tcp://127.0.0.1:0"}[scheme]
    async with taskmanager_open(listen=listen, secret=SECRET) as daemon:
        with pytest.raises(AuthenticationFailed, match="shared secret differs"):
            await connect(daemon.address, secret=Secret(b"a secret of somebody else"))
        with pytest.raises((RemoteProtocolError, ConnectionLost), match="secret"):
            await connect(daemon.address)
        async with adopt(daemon.address, secret=SECRET) as client:
            await until(lambda: sum(daemon._admission.statistics().refused.values()) == 2)
            run = await open_job(client)
            await count_words(run)
    async with taskmanager_open() as daemon:
        with pytest.raises(AuthenticationFailed):
            await connect(daemon.address, secret=SECRET)
        await until(lambda: "or it uses a secret (--secret-file) and this process has none" in caplog.text)


async def test_another_release_is_refused_on_both_sides(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with taskmanager_open() as daemon:
        monkeypatch.setattr(link_module, "own_build", lambda: "0123456789ab")
        with pytest.raises(RequestRefused, match=r"runs netstack .*0123456789ab "):
            await connect(daemon.address)
        await until(lambda: "install one release on every host and restart netstack there" in caplog.text)
        await until(lambda: not connections(daemon))


async def test_another_version_of_the_protocol_is_refused_on_both_sides() -> None:
    newer = [GREETING, VERSION + 1, "9.9+abc", "and", "more", "of", "it"]
    async with taskmanager_open() as daemon:
        stream = await transport_for(daemon.address).connect(daemon.address)
        await write_route(stream, None)
        peer = FrameStream(stream)
        peer.send(newer)
        await peer.flush()
        assert (await peer.receive())[:2] == [GREETING, VERSION]
        kind, text = await peer.receive()
        assert kind == "Refused"
        assert f"protocol {VERSION + 1};" in text
        with pytest.raises(ConnectionLost):
            await peer.receive()
        stream.close()
        await until(lambda: not connections(daemon))
    listener = await transport_for("memory://newer").listen("memory://newer")
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            peer = FrameStream(await listener.accept())
            peer.send(newer)
            await peer.flush()

        nursery.start_soon(serve)
        with pytest.raises(
            RequestRefused,
            match=rf"newer runs .* {VERSION + 1};",
        ):
            await connect("memory://newer")
    listener.close()


async def test_nobody_there_or_nobody_who_answers(autojump_clock: MockClock) -> None:
    with pytest.raises(ConnectionLost):
        await connect("memory://nobody")
    listener = await transport_for("memory://mute").listen("memory://mute")
    with pytest.raises(ConnectionLost, match=r"mute .* 3 s"):
        await connect("memory://mute", connect_timeout_s=3)
    listener.close()


def scraped(address: str, token: str | None) -> int:
    request = urllib.request.Request(f"http://{address}/metrics")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def test_metrics_beyond_this_host_want_the_token_of_the_secret() -> None:
    config = TaskManagerConfig(listen="tcp://127.0.0.1:0", memory_bytes=1 << 20, secret=SECRET)
    async with open_taskmanager(config, metrics_address="0.0.0.0:0") as manager:
        assert manager.metrics_address is not None
        address = manager.metrics_address.replace("0.0.0.0", "127.0.0.1")
        for token, status in ((None, 401), ("x", 401), (SECRET.metrics_token, 200)):
            assert await trio.to_thread.run_sync(scraped, address, token) == status
    config = TaskManagerConfig(listen="tcp://127.0.0.1:0", memory_bytes=1 << 20)
    with pytest.raises(ConfigError, match=r"metrics .* no secret"):
        async with open_taskmanager(config, metrics_address="0.0.0.0:0"):
            raise AssertionError("it is open")
