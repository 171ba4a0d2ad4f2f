"""TaskManagers, who adopts them, and jobs in one process: what works; tasks that fail, which ends nobody else."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from adopter import Ended, Failed, RemoteJob
from taskmanagerworld import (
    EVERYTHING,
    MEMORY_BYTES,
    SECRET,
    connect,
    count_words,
    ended,
    is_empty,
    job_id,
    open_job,
    pair_open,
    reads,
    task,
    tasks_of,
    until,
)
from trio.testing import MockClock

from netstack.base.config import NetworkConfig
from netstack.base.errors import (
    ConfigError,
    RemoteProtocolError,
    RequestRefused,
)
from netstack.cluster.control.codec import Plain
from netstack.cluster.taskmanager.client import open_client
from netstack.cluster.taskmanager.service import TaskManager

# ------------------------------------------------------------------------------------------------------- what works


async def test_a_run_over_two_daemons_and_another_one_after_it() -> None:
    async with pair_open() as (one, client), pair_open() as (two, other):
        for _ in range(2):
            number = job_id()
            runs = [await open_job(client, job_id=number), await open_job(other, job_id=number)]
            await count_words(*runs)
            assert await tasks_of(one) == {"words-0": "finished", "count-0": "finished"}
            for run in runs:
                await run.close()
                await run.close()
            await until(lambda: is_empty(one) and is_empty(two))
        assert (await one.statistics())["jobs_ended"] == 2


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
        with pytest.raises(RemoteProtocolError, match="requires a shared secret"):
            await connect(one.control_address)


async def test_several_runs_at_once_each_with_settings_of_its_own() -> None:
    async with pair_open() as (daemon, client):
        configs = [NetworkConfig(segment_size_bytes=size, memory_bytes=1 << 20) for size in (576, 1024, 4096, 8192)]
        runs = [await open_job(client, f"run {place}", network=config) for place, config in enumerate(configs)]
        assert daemon.memory.free_memory_bytes == MEMORY_BYTES - (4 << 20)
        async with trio.open_nursery() as nursery:
            for run in runs:
                nursery.start_soon(count_words, run)
        assert {row["name"] for row in (await daemon.statistics())["jobs"]} == {f"run {place}" for place in range(4)}
        async with trio.open_nursery() as nursery:
            for run in runs:
                nursery.start_soon(run.close)
        await until(lambda: is_empty(daemon))


async def test_a_run_waits_for_the_memory_of_another_one(autojump_clock: MockClock) -> None:
    async with pair_open() as (daemon, client):
        first = await open_job(client, network=EVERYTHING)
        with pytest.raises(
            RequestRefused,
            match=r"1MiB .* 5 s: .* 4MiB",
        ):
            await open_job(client)
        assert len((await daemon.statistics())["jobs"]) == 1
        second: list[RemoteJob] = []

        async def wait() -> None:
            second.append(await open_job(client))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            waiting = (await daemon.statistics())["jobs"][1]
            assert (waiting["tasks"], "metrics" in waiting) == ({}, False)
            await first.close()
        await second[0].close()
        assert is_empty(daemon)


async def test_tasks_and_the_coordinator_talk() -> None:
    async with pair_open() as (_, client):
        run = await open_job(client)
        await run.deploy([task("echo", subtask=number) for number in range(2)])
        for number in range(50):
            run.tell("echo", number % 2, {"number": number})
        received = [await run.next_event() for _ in range(50)]
        for subtask in range(2):
            mine = [each.message["heard"]["number"] for each in received if each.subtask == subtask]  # type: ignore[union-attr]
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


async def test_the_clock_is_measured() -> None:
    async with pair_open() as (_, client):
        sent_ns, theirs_ns, received_ns = await client.link.ping()
        assert sent_ns <= theirs_ns <= received_ns, "one host, one clock"


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
        actual = await daemon.statistics()
        assert {"uptime_s", "cpu_s", "slots", "hostname", "pid", "refused"} <= set(actual)
        assert (actual["slots"], actual["free_slots"]) == (4, 3), "both tasks are in one slot"
        (row,) = actual["jobs"]
        assert (row["name"], row["slots"]) == ("holding", 1)
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


async def test_statistics_that_do_not_fit_a_frame_come_without_details(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair_open() as (daemon, client):
        await open_job(client)
        whole = await daemon.statistics()

        async def large(_: TaskManager) -> Plain:
            return {**whole, "jobs": [{**whole["jobs"][0], "metrics": {"x": b"x" * (5 << 20)}}]}

        monkeypatch.setattr(type(daemon), "statistics", large)
        async with open_client(daemon.address) as looking:  # while the TaskManager works for another one
            actual = await looking.statistics()
        assert actual["is_shortened"]
        assert actual["jobs"][0]["metrics"] == {}
        assert actual["slots"] == 4


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
        assert await tasks_of(daemon) == {"fail-0": "failed", "echo-0": "finished"}
        await run.close()
        await until(lambda: is_empty(daemon))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("object", "cannot be sent"),
        ("tuple keys", "cannot be sent"),
        ("large", "the limit is 4194304"),
        ("deep", "cannot be sent"),
        ("number", "cannot be sent"),
    ],
)
async def test_a_result_that_cannot_travel_is_a_failure(what: str, message: str) -> None:
    async with pair_open() as (_, client):
        run = await open_job(client)
        await run.deploy(
            [task("result", parameters={"what": what}), task("result", subtask=1, parameters={"what": "plain"})]
        )
        events = {event.subtask: event for event in (await ended(run), await ended(run))}
        assert isinstance(events[0], Failed)
        assert (events[0].kind, message in events[0].text) == ("ConfigError", True), events[0].text
        assert events[1] == Ended("result", 1, {"a": [1, 2.5, None, True, b"bytes", {"b": {}}]})


async def test_what_a_task_cannot_say_is_its_own_error() -> None:
    async with pair_open() as (_, client):
        run = await open_job(client)
        await run.deploy([task("says")])
        text = [await run.next_event() for _ in range(6)]
        assert all(
            "cannot be sent" in each.message["refused"] or "the limit is" in each.message["refused"]
            for each in text[:5]
        )  # type: ignore[union-attr]
        assert isinstance(text[5], Ended)


async def test_consumers_learn_of_a_producer_that_fails_or_leaves_its_partition_unfinished() -> None:
    for attribute, message in (("fail", "no more paper"), ("leave_open", "ended before it had finished")):
        async with pair_open() as (_, client), pair_open() as (_, other):
            number = job_id()
            run, reading = await open_job(client, job_id=number), await open_job(other, job_id=number)
            await run.deploy([task(attribute, parameters={"how": "error"}, subpartitions=1)])
            await reading.deploy([task("count", gates=reads((run, attribute, 0)))])
            event = await ended(reading)
            assert isinstance(event, Failed)
            assert (event.is_secondary, message in event.text) == (True, True), event.text
