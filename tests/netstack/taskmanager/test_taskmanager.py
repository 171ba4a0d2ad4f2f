"""Daemons, their coordinators and runs in one process: whatever goes wrong, nothing is left and the next run works."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
import trio.testing
from taskmanagerworld import (
    CONFIG,
    MEMORY_BYTES,
    SLOW_IMPORT_BEGAN,
    SLOW_IMPORT_MAY_END,
    is_empty,
    job_id,
    open_job,
    pair_open,
    reads,
    task,
    taskmanager_open,
    until,
)
from trio_runs import real, virtual

from netstack.config import NetworkConfig
from netstack.control import link as link_module
from netstack.control.frames import FrameStream
from netstack.control.messages import GREETING, VERSION
from netstack.control.routing import write_route
from netstack.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionLost,
    LocalProtocolError,
    NetstackError,
    RemoteProtocolError,
    RequestRefused,
)
from netstack.runtime.authentication import Secret
from netstack.task.invokable import INBOX_MESSAGES
from netstack.taskmanager import client as client_module
from netstack.taskmanager import remote_job
from netstack.taskmanager.client import TaskManagerClient, open_client
from netstack.taskmanager.remote_job import Ended, Failed, RemoteJob, Said
from netstack.taskmanager.remote_task import RemoteTask
from netstack.taskmanager.service import TaskManagerConfig
from netstack.transport import is_private, transport_for
from transports.impaired import impairment

SECRET = Secret(b"a secret of all who belong")


async def count_words(*runs: RemoteJob, words: int = 100) -> None:
    """The next run works: a producer and a consumer on every daemon, all to all."""
    for number, run in enumerate(runs):
        await run.deploy(
            [
                task(
                    "words",
                    subtask=number,
                    parameters={"count": words},
                    subpartitions=len(runs),
                ),
                task(
                    "count",
                    subtask=number,
                    gates=reads(*((job, "words", index) for index, job in enumerate(runs)), first=number),
                ),
            ]
        )
    counted = 0
    for run in runs:
        for _ in range(2):
            event = await run.next_event()
            assert isinstance(event, Ended), event
            if event.task == "count":
                counted += event.result["words"]
    assert counted == words * len(runs)


async def ended(run: RemoteJob) -> Ended | Failed:
    while True:
        event = await run.next_event()
        if not isinstance(event, Said):
            return event


# ------------------------------------------------------------------------------------------------------- what works


@real
async def test_a_run_over_two_daemons_and_another_one_after_it() -> None:
    async with pair_open() as (one, client), pair_open() as (two, other):
        for _ in range(2):
            number = job_id()
            runs = [await open_job(client, job_id=number), await open_job(other, job_id=number)]
            await count_words(*runs)
            assert one.slots.free_slots == 3
            assert one.statistics()["jobs"][0]["tasks"] == {"words-0": "finished", "count-0": "finished"}
            for run in runs:
                await run.close()
                await run.close()
            await until(lambda: is_empty(one) and is_empty(two))
        assert one.statistics()["jobs_ended"] == 2


@real
async def test_over_tcp_with_a_secret_and_a_port_of_its_own_for_control() -> None:
    settings = {"listen": "tcp://127.0.0.1:0", "control": "tcp://127.0.0.1:0", "secret": SECRET}
    async with pair_open(**settings) as (one, client), pair_open(**settings) as (two, other):
        assert one.control_address != one.address
        number = job_id()
        runs = [await open_job(client, job_id=number), await open_job(other, job_id=number)]
        assert runs[0].data_address == one.address
        await count_words(*runs)
        for run in runs:
            await run.close()
        await until(lambda: is_empty(one) and is_empty(two))
        with pytest.raises(RemoteProtocolError, match="wants a shared secret to be proven first"):
            await _connect(one.control_address)


async def _connect(address: str, **settings: Any) -> None:
    async with open_client(address, **settings):
        raise AssertionError("nobody should be let in")


@real
async def test_several_runs_at_once_each_with_settings_of_its_own() -> None:
    async with pair_open() as (daemon, client):
        configs = [NetworkConfig(segment_size_bytes=size, memory_bytes=1 << 20) for size in (512, 1024, 4096, 8192)]
        runs = [await open_job(client, f"run {place}", network=config) for place, config in enumerate(configs)]
        assert (daemon.slots.free_slots, daemon.slots.free_memory_bytes) == (0, MEMORY_BYTES - (4 << 20))
        async with trio.open_nursery() as nursery:
            for run in runs:
                nursery.start_soon(count_words, run)
        assert {row["name"] for row in daemon.statistics()["jobs"]} == {f"run {place}" for place in range(4)}
        async with trio.open_nursery() as nursery:
            for run in runs:
                nursery.start_soon(run.close)
        await until(lambda: is_empty(daemon))


@virtual
async def test_a_run_waits_for_the_slots_of_another_one() -> None:
    async with pair_open() as (daemon, client):
        first = await open_job(client, slots=4)
        with pytest.raises(RequestRefused, match="1 slots and 1MiB were not free within 5 s: 0 of 4 slots"):
            await open_job(client)
        assert len(daemon.statistics()["jobs"]) == 1
        second: list[RemoteJob] = []

        async def wait() -> None:
            second.append(await open_job(client))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            waiting = daemon.statistics()["jobs"][1]
            assert (waiting["tasks"], "metrics" in waiting) == ({}, False)
            await first.close()
        await second[0].close()
        assert is_empty(daemon)


@real
async def test_tasks_and_the_coordinator_talk() -> None:
    async with pair_open() as (_, client):
        run = await open_job(client, slots=2)
        await run.deploy([task("echo", subtask=number) for number in range(2)])
        for number in range(50):
            run.tell("echo", number % 2, {"number": number})
        heard = [await run.next_event() for _ in range(50)]
        for subtask in range(2):
            mine = [each.message["heard"]["number"] for each in heard if each.subtask == subtask]  # type: ignore[union-attr]
            assert mine == list(range(subtask, 50, 2))
        run.tell("echo", 0, {"stop": "enough"})
        event = await run.next_event()
        assert event == Ended("echo", 0, "enough")
        run.tell("echo", 0, {"nobody": "hears it"})
        run.tell("nobody", 7, {})
        for wrong in ([1], {"a": object()}, {"a": b"x" * (5 << 20)}):
            with pytest.raises(ConfigError):
                run.tell("echo", 1, wrong)  # type: ignore[arg-type]
        run.tell("echo", 1, {"stop": "still here"})
        assert (await ended(run)).subtask == 1


@real
async def test_the_clock_is_measured() -> None:
    async with pair_open() as (_, client):
        sample = await client.measure_clock(samples=5)
        assert abs(sample.offset_ns) <= sample.uncertainty_ns, "one host, one clock"
        with pytest.raises(ConfigError, match="samples=0"):
            await client.measure_clock(samples=0)


@real
async def test_statistics_of_a_daemon_and_its_runs() -> None:
    async with pair_open() as (daemon, client):
        run = await open_job(client, "holding")
        await run.deploy(
            [
                task("hold", subpartitions=1),
                task("read_forever", gates=reads((run, "hold", 0))),
            ]
        )
        await run.next_event()
        await run.next_event()
        found = await client.statistics()
        assert {"uptime_s", "cpu_s", "slots", "hostname", "pid", "refused"} <= set(found)
        (row,) = found["jobs"]
        assert row["name"] == "holding"
        assert row["tasks"] == {"hold-0": "running", "read_forever-0": "running"}
        assert row["metrics"]
        second = await open_job(client, "holding")
        merged = daemon.merged_statistics()
        out = f"holding/{run.job_id}/hold/0.0"
        assert [str(each.partition_id) for each in merged.partitions] == [out]
        assert merged.pool.total_segments * merged.pool.segment_size_bytes == MEMORY_BYTES
        assert merged.admission is not None
        await second.deploy([task("hold", subpartitions=1)])
        await second.next_event()
        names = {str(each.partition_id) for each in daemon.merged_statistics().partitions}
        assert names == {out, f"holding#{second.job_id}/{second.job_id}/hold/0.0"}


@real
async def test_statistics_that_do_not_fit_a_frame_come_without_details(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair_open() as (daemon, client):
        await open_job(client)
        whole = daemon.statistics()
        monkeypatch.setattr(
            type(daemon),
            "statistics",
            lambda _: {**whole, "jobs": [{**whole["jobs"][0], "metrics": {"x": b"x" * (5 << 20)}}]},
        )
        found = await client.statistics()
        assert found["is_shortened"]
        assert found["jobs"][0]["metrics"] == {}
        assert found["slots"] == 4


# ------------------------------------------------------------------------------------------------- tasks that fail


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("error", "ValueError", "no more paper"),
        ("group", "ValueError", "first"),
        ("nursery", "ValueError", "no more paper"),
        ("exit", "SystemExit", "3"),
        ("generator", "GeneratorExit", ""),
        ("long", "ValueError", "x" * 8192),
        ("surrogate", "ValueError", "half a ? pair"),
        ("cancelled", "Cancelled", ""),
    ],
)
@real
async def test_a_task_that_raises_is_told_and_nothing_else_ends(how: str, kind: str, text: str) -> None:
    async with pair_open() as (daemon, client):
        run = await open_job(client)
        await run.deploy([task("fail", parameters={"how": how}), task("echo")])
        event = await run.next_event()
        assert isinstance(event, Failed)
        assert (event.task, event.kind, event.is_secondary) == ("fail", kind, False)
        assert event.text == text or kind == "Cancelled"
        run.tell("echo", 0, {"stop": "still here"})
        assert await run.next_event() == Ended("echo", 0, "still here")
        assert daemon.statistics()["jobs"][0]["tasks"] == {"fail-0": "failed", "echo-0": "finished"}
        await run.close()
        await until(lambda: is_empty(daemon))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("object", "cannot be sent to another process"),
        ("tuple keys", "cannot be sent to another process"),
        ("large", "4194304 is the most"),
        ("deep", "cannot be sent to another process"),
        ("number", "cannot be sent to another process"),
    ],
)
@real
async def test_a_result_that_cannot_travel_is_a_failure(what: str, said: str) -> None:
    async with pair_open() as (_, client):
        run = await open_job(client, slots=2)
        await run.deploy(
            [task("result", parameters={"what": what}), task("result", subtask=1, parameters={"what": "plain"})]
        )
        events = {event.subtask: event for event in (await ended(run), await ended(run))}
        assert isinstance(events[0], Failed)
        assert (events[0].kind, said in events[0].text) == ("ConfigError", True), events[0].text
        assert events[1] == Ended("result", 1, {"a": [1, 2.5, None, True, b"bytes", {"b": {}}]})


@real
async def test_what_a_task_cannot_say_is_its_own_error() -> None:
    async with pair_open() as (_, client):
        run = await open_job(client)
        await run.deploy([task("says")])
        said = [await run.next_event() for _ in range(6)]
        assert all(
            "cannot be sent" in each.message["refused"] or "is the most" in each.message["refused"] for each in said[:5]
        )  # type: ignore[union-attr]
        assert isinstance(said[5], Ended)


@real
async def test_consumers_learn_of_a_producer_that_fails_or_leaves_its_partition_unfinished() -> None:
    for attribute, said in (("fail", "no more paper"), ("leave_open", "ended and left it unfinished")):
        async with pair_open() as (_, client), pair_open() as (_, other):
            number = job_id()
            run, reading = await open_job(client, job_id=number), await open_job(other, job_id=number)
            await run.deploy([task(attribute, parameters={"how": "error"}, subpartitions=1)])
            await reading.deploy([task("count", gates=reads((run, attribute, 0)))])
            event = await ended(reading)
            assert isinstance(event, Failed)
            assert (event.is_secondary, said in event.text) == (True, True), event.text


# -------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (RemoteTask("t", 0, "subprocess:run"), "'subprocess:run' may not be run here"),
        (task("ordinary"), "is no `async def`"),
        (task("imported"), "may not be run here"),
        (task("missing"), "is not there"),
        (RemoteTask("t", 0, "userjobs.exits:x"), "SystemExit"),
        (RemoteTask("t", 0, "nowhere:x"), "is not installed here"),
        (task("echo", subtask=2), "2 subtasks of vertex 0 run here, and the job holds 2 slots"),
        (task("hold", subpartitions=100_000), "requires 100001 network buffers"),
        (task("hold", subpartitions=-1), "the least is 1"),
        (task("hold", name="x" * 2000, subpartitions=1), "partition id"),
    ],
)
@real
async def test_a_task_that_cannot_be_fails_alone_and_says_why(bad: RemoteTask, said: str) -> None:
    async with pair_open() as (daemon, client):
        run = await open_job(client, slots=2)
        await run.deploy([task("echo", subtask=number) for number in range(2)])
        with pytest.raises((RequestRefused, ConfigError), match=said):
            await run.deploy([bad])
        for subtask in range(2):
            run.tell("echo", subtask, {"stop": "still here"})
            assert await run.next_event() == Ended("echo", subtask, "still here")
        await run.deploy([task("echo")])
        run.tell("echo", 0, {"stop": "a second attempt is ordinary"})
        assert (await run.next_event()).result.startswith("a second attempt")  # type: ignore[union-attr]
        await run.close()
        assert is_empty(daemon)


@real
async def test_another_build_of_the_invokables_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair_open() as (_, client):
        run = await open_job(client)
        monkeypatch.setattr(remote_job, "build_of", lambda package: "0123456789ab")
        with pytest.raises(RequestRefused, match=r"'userjobs' is build .* here, and 0123456789ab where the job"):
            await run.deploy([task("echo")])


@pytest.mark.parametrize(
    ("config", "slots", "said"),
    [
        (
            NetworkConfig(memory_bytes=64 << 20),
            1,
            "64MiB of network buffers were asked for, and this TaskManager has",
        ),
        (CONFIG, 5, "5 slots were asked for, and this TaskManager has 4: start it with --slots 5"),
    ],
)
@real
async def test_a_run_that_cannot_be_is_refused_at_once(config: NetworkConfig, slots: int, said: str) -> None:
    async with pair_open() as (daemon, client):
        with pytest.raises(RequestRefused, match=said):
            await open_job(client, network=config, slots=slots)
        assert is_empty(daemon)
        await (await open_job(client)).close()


@real
async def test_settings_unknown_or_impossible_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair_open() as (daemon, client):
        for wrong, said in (
            ({"colour": "red"}, "colour"),
            ({"segment_size_bytes": -1}, "segment_size_bytes"),
            ({"memory_bytes": "lots"}, "is no int"),
        ):
            monkeypatch.setattr(client_module, "config_document", lambda config, wrong=wrong: wrong)
            with pytest.raises(RequestRefused, match=said):
                await open_job(client)
        assert is_empty(daemon)


@real
async def test_a_run_that_breaks_while_it_opens_is_refused_and_the_daemon_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair_open() as (daemon, client):
        with monkeypatch.context() as patched:
            patched.setattr("netstack.taskmanager.environments.network_environment_on", _no_memory)
            with pytest.raises(RequestRefused, match="MemoryError: none left"):
                await open_job(client)
        assert is_empty(daemon)
        assert "broke" in caplog.text
        await (await open_job(client)).close()


def _no_memory(*_: Any, **__: Any) -> Any:
    raise MemoryError("none left")


@real
async def test_no_more_runs_than_the_daemon_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netstack.taskmanager.service.JOBS_AT_MOST", 1)
    async with pair_open() as (_, client):
        run = await open_job(client)
        with pytest.raises(RequestRefused, match="1 jobs are open or wait here; try later"):
            await open_job(client)
        await run.close()
        await open_job(client)


@real
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


@real
async def test_an_id_is_one_run_s_at_a_time() -> None:
    async with pair_open() as (daemon, client), open_client(daemon.address) as other:
        run = await open_job(client)
        for coordinator in (client, other):
            with pytest.raises(RequestRefused, match=f"job {run.job_id} .* another id"):
                await open_job(coordinator, job_id=run.job_id)
        with pytest.raises(ConfigError, match="16 hex digits"):
            await open_job(client, job_id="x")
        await count_words(run)
        await run.close()
        again = await open_job(other, job_id=run.job_id)
        await again.close()
        assert is_empty(daemon)


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
        with pytest.raises(ConfigError, match="there is no secret: give --secret-file FILE"):
            TaskManagerConfig(listen=address)
        with pytest.raises(ConfigError, match="there is no secret"):
            TaskManagerConfig(control=address)
        TaskManagerConfig(listen=address, secret=SECRET)


@pytest.mark.parametrize(
    "wrong", [{"slots": 0}, {"memory_bytes": 1}, {"handshake_timeout_s": 0}, {"heartbeat_timeout_s": float("nan")}]
)
def test_numbers_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TaskManagerConfig(**wrong)


@pytest.mark.parametrize("scheme", ["memory", "tcp"])
@real
async def test_the_wrong_secret_or_none(scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    listen = {"memory": "memory://secret", "tcp": "tcp://127.0.0.1:0"}[scheme]
    async with taskmanager_open(listen=listen, secret=SECRET) as daemon:
        with pytest.raises(AuthenticationFailed, match="its shared secret is another one"):
            await _connect(daemon.address, secret=Secret(b"a secret of somebody else"))
        with pytest.raises((RemoteProtocolError, ConnectionLost), match="secret"):
            await _connect(daemon.address)
        async with open_client(daemon.address, secret=SECRET) as client:
            await until(lambda: sum(daemon.statistics()["refused"].values()) == 2)
            run = await open_job(client)
            await count_words(run)
    async with taskmanager_open() as daemon:
        with pytest.raises(AuthenticationFailed):
            await _connect(daemon.address, secret=SECRET)
        await until(lambda: "or it has a secret (--secret-file) and this process has none" in caplog.text)


@real
async def test_another_release_is_refused_on_both_sides(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with taskmanager_open() as daemon:
        monkeypatch.setattr(link_module, "own_build", lambda: "0123456789ab")
        with pytest.raises(RequestRefused, match=r"runs netstack .* this is .*\+0123456789ab .*install one release"):
            await _connect(daemon.address)
        await until(lambda: "install one release on every host, and restart what runs there" in caplog.text)
        await until(lambda: not daemon.statistics()["connections"])


@real
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
        assert "runs netstack 9.9+abc with control protocol 3, and this is" in text
        with pytest.raises(ConnectionLost):
            await peer.receive()
        stream.close()
        await until(lambda: not daemon.statistics()["connections"])
    listener = await transport_for("memory://newer").listen("memory://newer")
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            peer = FrameStream(await listener.accept())
            peer.send(newer)
            await peer.flush()

        nursery.start_soon(serve)
        with pytest.raises(RequestRefused, match=r"newer runs netstack 9\.9\+abc with control protocol 3, and this is"):
            await _connect("memory://newer")
    listener.close()


@virtual
async def test_nobody_there_or_nobody_who_answers() -> None:
    with pytest.raises(ConnectionLost):
        await _connect("memory://nobody")
    listener = await transport_for("memory://mute").listen("memory://mute")
    with pytest.raises(ConnectionLost, match="mute did not answer within 3 s"):
        await _connect("memory://mute", connect_timeout_s=3)
    listener.close()


# --------------------------------------------------------------------------------------------- whoever goes away


@pytest.mark.parametrize("phase", ["connected", "waiting", "open", "deploying", "running"])
@real
async def test_a_coordinator_that_dies_leaves_nothing_behind(phase: str) -> None:
    async with taskmanager_open(slots=1) as daemon, pair_open() as (_, reader):
        number = job_id()
        async with open_client(daemon.address) as holding:
            if phase == "waiting":
                await open_job(holding)
            async with open_client(daemon.address) as client, trio.open_nursery() as nursery:
                await _reach(phase, client, reader, number, nursery)
                nursery.cancel_scope.cancel()
                client._link.close()  # no goodbye: as if its process had been killed
        await until(lambda: is_empty(daemon))
        async with open_client(daemon.address) as client:
            run = await open_job(client, job_id=number)
            await count_words(run)


async def _reach(
    phase: str, client: TaskManagerClient, reader: TaskManagerClient, number: str, nursery: trio.Nursery
) -> None:
    if phase == "waiting":
        nursery.start_soon(open_job, client)
        await trio.testing.wait_all_tasks_blocked()
    if phase in ("connected", "waiting"):
        return
    run = await open_job(client, job_id=number)
    tasks = [task("hold", subpartitions=1)]
    if phase == "deploying":
        nursery.start_soon(run.deploy, tasks)
        await trio.lowlevel.checkpoint()
    if phase == "running":
        await run.deploy(tasks)
        other = await open_job(reader, job_id=number)
        await other.deploy([task("read_forever", gates=reads((run, "hold", 0)))])
        await other.next_event()  # data connections are there


@real
async def test_a_daemon_that_dies_is_told_to_its_coordinator_and_to_its_peers() -> None:
    async with pair_open() as (survivor, client), trio.open_nursery() as nursery:
        number = job_id()
        reading = await open_job(client, job_id=number)
        dying = trio.CancelScope()
        ready = trio.Event()
        address: list[str] = []

        async def doomed() -> None:
            with dying:
                async with taskmanager_open() as daemon:
                    address.append(daemon.address)
                    ready.set()
                    await trio.sleep_forever()

        nursery.start_soon(doomed)
        await ready.wait()
        async with open_client(address[0]) as other:
            run = await open_job(other, job_id=number)
            await run.deploy([task("hold", subpartitions=1)])
            await reading.deploy([task("read_forever", gates=reads((run, "hold", 0)))])
            await run.next_event()
            await reading.next_event()
            dying.cancel()
            with pytest.raises(ConnectionLost, match=f"{other.address}: .* ended its control stream"):
                await run.next_event()
            await run.close()
            for call in (other.statistics, other.measure_clock, lambda: open_job(other)):
                with pytest.raises(ConnectionLost, match=other.address):
                    await call()
            with pytest.raises(ConnectionLost):
                await run.deploy([task("echo")])
            run.tell("hold", 0, {"nobody": "hears it"})
        event = await ended(reading)
        assert isinstance(event, Failed)
        assert event.is_secondary
        await reading.close()
        await until(lambda: is_empty(survivor))
        await count_words(await open_job(client))


@virtual
async def test_a_silent_daemon_is_lost_within_the_heartbeat_timeout() -> None:
    """A host that is cut off: the stream stays, nothing comes."""
    async with (
        taskmanager_open(listen="impaired+memory://cut?name=daemon", heartbeat_timeout_s=3.0) as daemon,
        open_client(daemon.address) as client,
    ):
        run = await open_job(client)
        impairment("daemon").stall()
        began = trio.current_time()
        with pytest.raises(ConnectionLost, match="said nothing for 3 s: its host is down or cut off"):
            await run.next_event()
        assert trio.current_time() - began <= 3.5
        impairment("daemon").heal()
        await until(lambda: is_empty(daemon))


@real
async def test_a_run_may_be_cancelled_in_every_phase() -> None:
    """Every public await of a coordinator, cancelled at its first, second, ... step."""
    async with pair_open() as (daemon, client):
        is_done = False
        for steps in range(400):  # until a round is not cut short
            if is_done:
                break
            async with trio.open_nursery() as nursery:
                run: RemoteJob | None = None
                with trio.CancelScope() as scope:
                    nursery.start_soon(_cancel_after, scope, steps)
                    run = await open_job(client)
                    await run.deploy([task("hold", subpartitions=1), task("echo")])
                    await run.next_event()
                    await client.statistics()
                    await client.measure_clock(samples=1)
                    await run.close()
                    is_done = True
                if run is not None:
                    await run.close()
                nursery.cancel_scope.cancel()
            await until(lambda: is_empty(daemon))
        assert is_done, "the last round was not cut short"
        await count_words(await open_job(client))


async def _cancel_after(scope: trio.CancelScope, steps: int) -> None:
    for _ in range(steps**2):
        await trio.lowlevel.checkpoint()
    scope.cancel()


@real
async def test_closing_while_a_deployment_is_under_way() -> None:
    async with pair_open() as (daemon, client), trio.open_nursery() as nursery:
        run = await open_job(client)

        async def deploy_and_listen() -> None:
            await run.deploy([task("hold", subpartitions=1)])
            await _all_events(run)

        async def deploy() -> None:
            with pytest.raises(RequestRefused, match="closed the job"):
                await deploy_and_listen()

        nursery.start_soon(deploy)
        await trio.lowlevel.checkpoint()
        await run.close()
        assert is_empty(daemon)


@pytest.mark.parametrize(
    ("messages", "message"),
    [(INBOX_MESSAGES + 1, {"number": 7}), (5, {"bytes": bytes(1 << 18)})],
    ids=["many", "large"],
)
@real
async def test_who_does_not_listen_fails_alone(
    messages: int, message: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netstack.task.invokable.INBOX_BYTES", 1 << 20)
    async with pair_open() as (daemon, client):
        run = await open_job(client)
        await run.deploy([task("hold"), task("echo")])
        await run.next_event()
        for _ in range(messages):
            run.tell("hold", 0, message)
            await trio.lowlevel.checkpoint()
        event = await ended(run)
        assert isinstance(event, Failed)
        assert "hold-0 does not take what it is told: its inbox is full" in event.text
        run.tell("echo", 0, {"stop": "still here"})
        assert await run.next_event() == Ended("echo", 0, "still here")
        await run.close()
        assert is_empty(daemon)


@real
async def test_a_coordinator_that_takes_no_events_loses_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_job, "EVENTS_AT_MOST", 100)
    async with pair_open() as (daemon, client):
        run = await open_job(client)
        await run.deploy([task("flood", parameters={"count": 1000})])
        await until(lambda: is_empty(daemon))
        with pytest.raises(LocalProtocolError, match="100 events wait to be taken; call next_event"):
            await _all_events(run)
        await run.close()
        await count_words(await open_job(client))


async def _all_events(run: RemoteJob) -> None:
    while True:
        await run.next_event()


@real
async def test_a_daemon_that_stops_ends_the_runs_of_everybody() -> None:
    async with trio.open_nursery() as nursery:
        async with taskmanager_open() as daemon:
            ready = trio.Event()

            async def coordinate() -> None:
                async with open_client(daemon.address) as client:
                    run = await open_job(client)
                    await run.deploy([task("hold", subpartitions=1)])
                    await run.next_event()
                    ready.set()
                    with pytest.raises(NetstackError):
                        await run.next_event()

            nursery.start_soon(coordinate)
            await ready.wait()
        assert daemon.statistics()["jobs"] == []
        assert daemon.slots.free_slots == 4


@real
async def test_being_served_is_told_when_the_last_coordinator_has_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "netstack.taskmanager")
    async with taskmanager_open() as daemon, trio.open_nursery() as nursery:
        served = trio.Event()

        async def wait() -> None:
            await daemon.wait_served()
            assert is_empty(daemon)
            served.set()

        nursery.start_soon(wait)
        async with open_client(daemon.address, name="the first"), open_client(daemon.address) as client:
            run = await open_job(client, "of the second")
            await run.deploy([task("hold")])
            assert not served.is_set()
        await served.wait()
    assert "the first at" not in caplog.text, "of those that only look nobody needs a line"
    for text in ("drives jobs here", "job 0", "(of the second) wants 1 slots", "(of the second) closed", "has gone"):
        assert text in caplog.text
