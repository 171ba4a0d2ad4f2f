"""TaskManagers and JobManagers that go away, fall silent or do not listen: nothing is left, and the next job works."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
import trio.testing
from adopter import Adopter, Ended, Failed, RemoteJob, adopt
from taskmanagerworld import (
    EVERYTHING,
    count_words,
    ended,
    is_empty,
    job_id,
    open_job,
    pair_open,
    reads,
    task,
    taskmanager_open,
    until,
)
from trio.testing import MockClock

from netstack.base.errors import (
    ConnectionLost,
    NetstackError,
    RequestRefused,
)
from netstack.cluster.task.invokable import INBOX_MESSAGES
from netstack.cluster.taskmanager.client import open_client
from netstack_transports.impaired import impairment


@pytest.mark.parametrize("phase", ["connected", "waiting", "open", "deploying", "running"])
async def test_a_coordinator_that_dies_leaves_nothing_behind(phase: str) -> None:
    async with taskmanager_open() as daemon, pair_open() as (_, reader):
        number = job_id()
        async with adopt(daemon.address) as client, trio.open_nursery() as nursery:
            await _reach(phase, client, reader, number, nursery)
            nursery.cancel_scope.cancel()
            client.link.close()  # no goodbye: as if its process had been killed
        await until(lambda: is_empty(daemon))
        async with adopt(daemon.address) as client:
            run = await open_job(client, job_id=number)
            await count_words(run)


async def _reach(phase: str, client: Adopter, reader: Adopter, number: str, nursery: trio.Nursery) -> None:
    if phase == "waiting":
        await open_job(client, network=EVERYTHING)
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
        async with adopt(address[0]) as other:
            run = await open_job(other, job_id=number)
            await run.deploy([task("hold", subpartitions=1)])
            await reading.deploy([task("read_forever", gates=reads((run, "hold", 0)))])
            await run.next_event()
            await reading.next_event()
            dying.cancel()
            with pytest.raises(ConnectionLost, match=rf"{other.address}: .* closed"):
                await run.next_event()
            await run.close()
            with pytest.raises(ConnectionLost, match=other.address):
                await open_job(other)
            with pytest.raises(ConnectionLost):
                await run.deploy([task("echo")])
            run.tell("hold", 0, {"nobody": "hears it"})
        event = await ended(reading)
        assert isinstance(event, Failed)
        assert event.is_secondary
        await reading.close()
        await until(lambda: is_empty(survivor))
        await count_words(await open_job(client))


async def test_a_silent_daemon_is_lost_within_the_heartbeat_timeout(autojump_clock: MockClock) -> None:
    """A host that is cut off: the stream stays, nothing comes."""
    async with (
        taskmanager_open(listen="impaired+memory://cut?name=daemon", heartbeat_timeout_s=3.0) as daemon,
        adopt(daemon.address) as client,
    ):
        run = await open_job(client)
        impairment("daemon").stall()
        began = trio.current_time()
        with pytest.raises(ConnectionLost, match="silent for 3 s"):
            await run.next_event()
        assert trio.current_time() - began <= 3.5
        impairment("daemon").heal()
        await until(lambda: is_empty(daemon))


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
                    await client.link.ping()
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
async def test_who_does_not_listen_fails_alone(
    messages: int, message: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netstack.cluster.task.invokable.INBOX_BYTES", 1 << 20)
    async with pair_open() as (daemon, client):
        run = await open_job(client)
        await run.deploy([task("hold"), task("echo")])
        await run.next_event()
        for _ in range(messages):
            run.tell("hold", 0, message)
            await trio.lowlevel.checkpoint()
        event = await ended(run)
        assert isinstance(event, Failed)
        assert "hold-0 cannot receive more events: its inbox is full" in event.text
        run.tell("echo", 0, {"stop": "still here"})
        assert await run.next_event() == Ended("echo", 0, "still here")
        await run.close()
        assert is_empty(daemon)


async def _all_events(run: RemoteJob) -> None:
    while True:
        await run.next_event()


async def test_a_daemon_that_stops_ends_the_runs_of_everybody() -> None:
    async with trio.open_nursery() as nursery:
        async with taskmanager_open() as daemon:
            ready = trio.Event()

            async def coordinate() -> None:
                async with adopt(daemon.address) as client:
                    run = await open_job(client)
                    await run.deploy([task("hold", subpartitions=1)])
                    await run.next_event()
                    ready.set()
                    with pytest.raises(NetstackError):
                        await run.next_event()

            nursery.start_soon(coordinate)
            await ready.wait()
        assert daemon.is_idle


async def test_being_served_is_told_when_the_last_coordinator_has_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "netstack.taskmanager")
    async with taskmanager_open() as daemon, trio.open_nursery() as nursery:
        served = trio.Event()

        async def wait() -> None:
            await daemon.wait_served()
            await until(lambda: is_empty(daemon))
            served.set()

        nursery.start_soon(wait)
        async with open_client(daemon.address, name="the first"), adopt(daemon.address) as client:
            run = await open_job(client, "of the second")
            await run.deploy([task("hold")])
            assert not served.is_set()
        await served.wait()
    assert "the first at" not in caplog.text, "of those that only look nobody needs a line"
    for text in (
        "opened its first job here",
        "job 0",
        "(of the second) opened",
        "(of the second) closed",
        "disconnected: ",
    ):
        assert text in caplog.text
