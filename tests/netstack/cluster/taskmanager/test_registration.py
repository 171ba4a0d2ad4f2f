"""A TaskManager and its JobManager: registered, lost, registered again; everything by attempt."""

from __future__ import annotations

import hashlib
import io
import time
import zipfile
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from taskmanager.driverworld import JOB, Driver, information_of, listening, produces, reads, task
from taskmanagerworld import taskmanager_open, tasks_of, until
from trio.testing import MockClock

from netstack.base.errors import ConnectionLost
from netstack.base.events import CheckpointBarrier, encode_event
from netstack.base.transport import transport_for
from netstack.cluster.control.link import CLIENT, JOBMANAGER, TASKMANAGER, dial as dial_link
from netstack.cluster.control.messages import (
    CancelTasks,
    CloseJob,
    OpenJob,
    OperatorEvent,
    ReleasePartitions,
    SubmitTasks,
    TriggerCheckpoint,
    UpdateGate,
    blob_parts,
)
from netstack.cluster.control.reports import (
    CheckpointDeclined,
    FetchBlob,
    JobClosed,
    JobProgress,
    JobRefused,
    TaskFailed,
    TaskFinished,
)
from netstack.cluster.taskmanager import session
from netstack.cluster.taskmanager.config import TaskManagerConfig
from netstack.cluster.taskmanager.service import TaskManager
from netstack.schedule.descriptors.blob_store import BlobKind, MemoryBlobStore
from netstack.schedule.descriptors.information import JobInformation
from netstack.schedule.descriptors.shuffle import ShuffleDescriptors, compress

NO_DESCRIPTORS = compress(
    ShuffleDescriptors.of(JOB, "words", [], index=[], partition=[], attempt=[], taskmanager=[]).serialised()
)
settings = partial(taskmanager_open, link_in_thread=False)


async def echoed(driver: Driver, attempt: tuple[int, int, int]) -> None:
    """It listens and ends."""
    await driver.running(attempt)
    driver.link.send(OperatorEvent(JOB, attempt, {"stop": "enough"}))
    assert (await driver.outcomes(attempt))[attempt] == "finished"


# --------------------------------------------------------------------------------------------- there, gone, there again


async def test_it_registers_and_registers_again_whenever_the_jobmanager_was_lost(autojump_clock: MockClock) -> None:
    async with listening() as (address, accept), settings(jobmanager=address, slots=3) as manager:
        sessions = set()
        for number in range(3):
            driver = await accept()
            assert (driver.greeting.role, driver.greeting.facts["slots"]) == (TASKMANAGER, 3)
            assert driver.greeting.facts["data"] == manager.address
            sessions.add(driver.greeting.facts["session"])
            await driver.open_job()
            driver.submit(task("hold", partitions=produces((0, 0, 0))))
            await driver.running((0, 0, 0))
            assert await tasks_of(manager) == {"hold-0": "running"}
            driver.link.close()
            await until(lambda: manager.is_idle)
            assert manager.environments.shared is None, "nothing of the lost link is left"
            assert manager.registration.count == number + 1
        assert len(sessions) == 1, "the same process"


async def test_why_the_jobmanager_rejects_it_is_in_its_log(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as (address, accept), settings(jobmanager=address):
        driver = await accept()
        await driver.link.refuse("start it with TLS")
        await accept()
    assert "this TaskManager: start it with TLS" in caplog.text


async def test_memory_that_the_system_does_not_give_refuses_the_job_and_ends_nobody(autojump_clock: MockClock) -> None:
    async with listening() as (address, accept), settings(jobmanager=address, memory_bytes=1 << 60) as manager:
        driver = await accept()
        for _ in range(5):  # also while the failure before is being forgotten
            driver.link.send(OpenJob(JOB, "test", 5.0, "memory://nowhere", None, b""))
            refused = await driver.next(JobRefused)
            assert "MiB of address space;" in refused.text
        assert manager.is_idle
        assert manager.registration.count == 1


async def test_it_dials_for_ever_with_patience(autojump_clock: MockClock) -> None:
    async with settings(jobmanager="memory://late") as manager:
        await trio.sleep(3600)
        assert manager.registration.count == 0
        async with listening("memory://late") as (_, accept):
            began_s = trio.current_time()
            await accept()
            assert trio.current_time() - began_s < 7


async def test_a_silent_jobmanager_is_lost(autojump_clock: MockClock) -> None:
    async with listening() as (address, accept), settings(jobmanager=address) as manager:
        driver = await accept()
        await driver.open_job()
        driver.link.heartbeat_timeout_s = 1e9  # it shows no sign of life any more
        began_s = trio.current_time()
        await accept()
        assert 1 <= trio.current_time() - began_s < 5
        assert manager.is_idle


@pytest.mark.slow
@pytest.mark.long  # only time can show it
async def test_a_task_that_computes_for_three_heartbeat_timeouts_loses_nothing() -> None:
    """The TaskManager and its task live in a loop of their own, as in a process; only its link answers meanwhile."""
    async with listening("tcp://127.0.0.1:0") as (address, accept):
        ready: list[TaskManager] = []

        async def live() -> None:
            async with taskmanager_open(listen="tcp://127.0.0.1:0", jobmanager=address, heartbeat_timeout_s=1.0) as one:
                ready.append(one)
                await ended.wait()

        ended = trio.Event()

        async def main() -> None:
            nonlocal ended
            ended = trio.Event()
            token.append(trio.lowlevel.current_trio_token())
            await live()

        token: list[trio.lowlevel.TrioToken] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, partial(trio.run, main))
            driver = await accept()
            await driver.open_job()
            began_s = time.monotonic()
            driver.submit(task("compute", parameters={"seconds": 3.0}), task("echo", (1, 0, 0)))
            assert await driver.outcomes((0, 0, 0)) == {(0, 0, 0): "finished"}
            assert time.monotonic() - began_s >= 3
            await echoed(driver, (1, 0, 0))
            assert ready[0].registration.count == 1
            token[0].run_sync_soon(ended.set)


# -------------------------------------------------------------------------------------------------------- by attempt


async def test_a_second_attempt_is_ordinary_and_none_is_carried_out_twice(autojump_clock: MockClock) -> None:
    async with listening() as (address, accept), settings(jobmanager=address) as manager:
        driver = await accept()
        await driver.open_job()
        for number in range(3):
            attempt = (0, 0, number)
            descriptor = task("echo", attempt, partitions=produces(attempt))
            driver.submit(descriptor, descriptor)
            driver.submit(descriptor)
            await echoed(driver, attempt)
            driver.submit(descriptor)
        driver.link.send(CloseJob(JOB))
        assert await driver.next(JobClosed) == JobClosed(JOB, "")
        assert sum(count for state, count in driver.states() if state == "running") == 3
        assert manager.is_idle


async def test_a_cancel_that_comes_first_holds(autojump_clock: MockClock) -> None:
    async with listening() as (address, accept), settings(jobmanager=address):
        driver = await accept()
        await driver.open_job()
        driver.link.send(CancelTasks(JOB, ((0, 0, 0), (0, 1, 0))))
        driver.submit(*(task("hold", (0, number, 0)) for number in range(3)))
        assert await driver.outcomes((0, 0, 0), (0, 1, 0)) == dict.fromkeys([(0, 0, 0), (0, 1, 0)], "canceled")
        await driver.next(OperatorEvent)
        driver.link.send(CancelTasks(JOB, ((0, 2, 0), (0, 0, 0), (7, 7, 7))))
        assert await driver.outcomes((0, 2, 0)) == {(0, 2, 0): "canceled"}
        driver.submit(task("echo", (0, 0, 1)))
        await echoed(driver, (0, 0, 1))


async def test_what_is_said_of_a_task_before_it_is_there_is_not_lost() -> None:
    """Its module is imported, its blobs are fetched, its job waits for memory: it hears all of it afterwards."""
    async with listening() as (address, accept), settings(jobmanager=address):
        driver = await accept()
        driver.link.send(OpenJob(JOB, "test", 5.0, "memory://nowhere", None, b""))
        driver.submit(task("echo", (0, 0, 0)), task("echo", (0, 1, 0)), task("echo", (0, 2, 0)))
        driver.link.send(OperatorEvent(JOB, (0, 0, 0), {"stop": "early"}))
        barrier = encode_event(CheckpointBarrier(7))
        driver.link.send(TriggerCheckpoint(JOB, barrier, ((0, 0, 0),), is_savepoint=False, stops=False))
        driver.link.send(UpdateGate(JOB, ((0, 1, 0),), 0, NO_DESCRIPTORS))
        driver.link.send(CancelTasks(JOB, ((0, 2, 0),)))
        actual = await driver.outcomes((0, 0, 0), (0, 1, 0), (0, 2, 0))
        assert (actual[0, 0, 0], actual[0, 2, 0]) == ("finished", "canceled")
        assert "its gates are known" in actual[0, 1, 0]
        declined = [each for each in driver.heard if isinstance(each, CheckpointDeclined)]
        assert [each.checkpoint_id for each in declined] == [7]


async def test_states_of_many_come_in_few_messages(autojump_clock: MockClock) -> None:
    async with listening() as (address, accept), settings(jobmanager=address):
        driver = await accept()
        await driver.open_job()
        attempts = [(0, number, 0) for number in range(500)]
        shared = information_of("hold_quietly")
        driver.submit(*(task("hold_quietly", attempt, information=shared) for attempt in attempts))
        await driver.running(*attempts)
        driver.link.send(CancelTasks(JOB, tuple(attempts)))
        await driver.outcomes(*attempts)
        reported = driver.states()
        assert sum(count for state, count in reported if state == "running") == 500
        assert len(reported) < 100


async def test_words_about_jobs_and_attempts_that_are_not_there_are_ignored(autojump_clock: MockClock) -> None:
    async with listening() as (address, accept), settings(jobmanager=address):
        driver = await accept()
        driver.link.send(CancelTasks(JOB, ((0, 0, 0),)))
        driver.link.send(SubmitTasks(JOB, (b"nonsense",)))
        await driver.open_job()
        driver.link.send(OperatorEvent(JOB, (0, 0, 0), {}))
        driver.link.send(ReleasePartitions(JOB, ("nothing",)))
        driver.submit(task("echo"))
        await echoed(driver, (0, 0, 0))


# ----------------------------------------------------------------------------------------------------------- failures


async def test_a_bad_task_fails_alone_and_says_whether_another_attempt_may_help(autojump_clock: MockClock) -> None:
    async with listening() as (address, accept), settings(jobmanager=address):
        driver = await accept()
        await driver.open_job()
        driver.submit(
            task("echo", (0, 0, 0)),
            task("missing", (1, 0, 0)),
            task("x", (2, 0, 0), function="nowhere.jobs:x"),
            task("fail", (3, 0, 0), parameters={"how": "error"}),
            task("fail", (4, 0, 0), parameters={"how": "exit"}),
        )
        actual = await driver.outcomes(*((vertex, 0, 0) for vertex in range(1, 5)))
        assert "cannot be imported" in actual[1, 0, 0]
        assert "may not run" in actual[2, 0, 0]
        assert "no more paper" in actual[3, 0, 0]
        recoverable = {vertex: driver.failure((vertex, 0, 0)).is_recoverable for vertex in range(1, 5)}
        assert recoverable == {1: False, 2: False, 3: True, 4: True}
        assert driver.failure((4, 0, 0)).kind == "SystemExit"
        assert not any(driver.failure((vertex, 0, 0)).is_secondary for vertex in range(1, 5))
        await echoed(driver, (0, 0, 0))


async def test_a_partition_that_is_not_there_is_named_and_a_lost_producer_is_not_the_consumers_fault(
    autojump_clock: MockClock,
) -> None:
    async with listening() as (address, accept), settings(jobmanager=address) as manager:
        driver = await accept()
        await driver.open_job(address=manager.address)
        driver.submit(task("count", (1, 0, 0), gates=reads(manager.address, (0, 5, 3))))
        await driver.outcomes((1, 0, 0))
        missing = driver.failure((1, 0, 0))
        assert (missing.missing_partition, missing.kind) == (f"{JOB}/words/5.3", "PartitionNotFound")
        driver.submit(task("count", (1, 2, 0), gates=reads("memory://lost", (0, 6, 2))))
        await driver.outcomes((1, 2, 0))
        lost = driver.failure((1, 2, 0))
        assert (lost.missing_partition, lost.kind, lost.is_secondary) == (
            f"{JOB}/words/6.2",
            "ProducerUnreachable",
            True,
        )
        producer, consumer = (0, 0, 0), (1, 1, 0)
        driver.submit(
            task("fail_when_told", producer, partitions=produces(producer)),
            task("count", consumer, gates=reads(manager.address, producer)),
        )
        await driver.running(producer, consumer)
        driver.link.send(OperatorEvent(JOB, producer, {}))
        await driver.outcomes(producer, consumer)
        failures = [each for each in driver.heard if isinstance(each, TaskFailed)][2:]
        assert [each.attempt for each in failures] == [producer, consumer], "the root is told first"
        assert [each.is_secondary for each in failures] == [False, True]
        assert failures[1].missing_partition == ""


async def test_a_finished_task_has_given_back_what_it_held_when_that_is_told(autojump_clock: MockClock) -> None:
    async with listening() as (address, accept), settings(jobmanager=address) as manager:
        driver = await accept()
        await driver.open_job(address=manager.address)
        producer, consumer = (0, 0, 0), (1, 0, 0)
        driver.submit(
            task("words", producer, partitions=produces(producer), parameters={"count": 10}),
            task("count", consumer, gates=reads(manager.address, producer)),
        )
        await driver.outcomes(producer, consumer)
        shared = manager.environments.shared
        assert shared is not None
        assert (shared.statistics().partitions, shared.statistics().gates) == ((), ())
        finished = [each for each in driver.heard if isinstance(each, TaskFinished)]
        assert {each.attempt: each.results for each in finished}[consumer]["count"]["words"] == 10
        assert {each.attempt: each.produced_bytes for each in finished}[producer] == ((130,),)


async def test_a_kept_partition_is_there_until_it_is_released(autojump_clock: MockClock) -> None:
    async with listening() as (address, accept), settings(jobmanager=address) as manager:
        driver = await accept()
        await driver.open_job(address=manager.address)
        producer = (0, 0, 0)
        driver.submit(task("finish_at_once", producer, partitions=produces(producer)))
        await driver.outcomes(producer)
        shared = manager.environments.shared
        assert shared is not None
        assert [each.partition_id for each in shared.statistics().partitions] == [f"{JOB}/words/0.0"]
        driver.link.send(ReleasePartitions(JOB, (f"{JOB}/words/0.0",)))
        await trio.testing.wait_all_tasks_blocked()
        assert shared.statistics().partitions == ()


# --------------------------------------------------------------------------------------------------- blobs and code


async def test_what_was_offloaded_is_fetched_once_for_all(autojump_clock: MockClock) -> None:
    store = MemoryBlobStore()
    data = information_of("echo")
    key = store.new_key(BlobKind.TASK_INFORMATION, data, "jm")
    async with listening() as (address, accept), settings(jobmanager=address):
        driver = await accept()
        await driver.open_job()
        attempts = [(0, number, 0) for number in range(20)]
        driver.submit(*(task("echo", attempt, information=key) for attempt in attempts))
        asked = await driver.next(FetchBlob)
        assert asked == FetchBlob(key, 0)
        driver.link.send(blob_parts(key, data, 0))
        await driver.running(*attempts)
        for attempt in attempts:
            driver.link.send(OperatorEvent(JOB, attempt, {"stop": 1}))
        assert set((await driver.outcomes(*attempts)).values()) == {"finished"}
        assert sum(isinstance(each, FetchBlob) for each in driver.heard) == 1


async def test_a_package_that_a_job_brings_along_runs_only_where_that_is_allowed() -> None:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as archive:
        archive.writestr("broughtjobs.py", "async def answer(task):\n    return 42\n")
    data = into.getvalue()
    key = f"code-{hashlib.sha256(data).hexdigest()}"
    job = JobInformation(JOB, code=(("broughtjobs", key),))
    for allows in (False, True):
        async with listening() as (address, accept), settings(jobmanager=address, allow_submitted=allows):
            driver = await accept()
            await driver.open_job()
            driver.submit(task("x", function="broughtjobs:answer", job=job))
            if allows:
                await driver.next(FetchBlob)
                driver.link.send(blob_parts(key, data, 0))
                assert (await driver.next(TaskFinished)).results == {"x": 42}
            else:
                actual = await driver.outcomes((0, 0, 0))
                assert "start it with --allow-submitted" in actual[0, 0, 0]


async def test_progress_is_told_while_something_changes(autojump_clock: MockClock) -> None:
    async with listening() as (address, accept), settings(jobmanager=address) as manager:
        driver = await accept()
        await driver.open_job(address=manager.address)
        producer = (3, 0, 0)
        driver.submit(task("hold", producer, partitions=produces(producer)))
        reported = await driver.next(JobProgress)
        assert reported.vertices == {"3": {"records_in": 0, "records_out": 1, "tasks": 1}}
        with pytest.raises(trio.TooSlowError), trio.fail_after(10):
            await driver.next(JobProgress)


async def test_the_end_of_a_task_has_its_counts_and_progress_no_longer_has_them(autojump_clock: MockClock) -> None:
    async with listening() as (address, accept), settings(jobmanager=address) as manager:
        driver = await accept()
        await driver.open_job(address=manager.address)
        producer, other = (3, 0, 0), (3, 1, 0)
        for attempt, function in ((producer, "write_two_words"), (other, "hold")):
            driver.submit(task(function, attempt, partitions=produces(attempt)))
        while (await driver.next(JobProgress)).vertices != {"3": {"records_in": 0, "records_out": 2, "tasks": 2}}:
            pass
        driver.link.send(OperatorEvent(JOB, producer, {"go": True}))
        reported = await driver.next(TaskFinished)
        assert (reported.records_in, reported.records_out) == (0, 2)
        before = [each.vertices for each in driver.heard if isinstance(each, JobProgress)]
        assert before[-1] == {"3": {"records_in": 0, "records_out": 1, "tasks": 1}}


async def test_a_slot_whose_port_was_taken_is_registered_with_its_new_one(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another TaskManager of the host listens at the port while the slot's process starts."""
    facts: dict[str, Any] = {"slot_addresses": ["tcp://127.0.0.1:7932"]}
    greetings: list[dict[str, Any]] = []

    class Processes:
        async def wait_ready(self) -> None:
            await trio.sleep(1.0)
            facts["slot_addresses"] = ["tcp://127.0.0.1:36157"]

    async def dial(address: str, *, facts: dict[str, Any], **_: Any) -> None:
        greetings.append(facts)
        raise ConnectionLost("that is all")

    monkeypatch.setattr(session, "dial", dial)
    processes: Any = Processes()
    serve: Any = None
    with trio.move_on_after(1.05):
        await session.Registration(TaskManagerConfig(), lambda: {**facts}, serve, processes).run("tcp://jm:1")
    assert greetings == [{"slot_addresses": ["tcp://127.0.0.1:36157"]}]


async def test_a_jobmanager_that_dials_is_told_the_new_port_of_a_slot_and_a_client_does_not_wait(
    autojump_clock: MockClock,
) -> None:
    """The greeting had the old port, and nobody could read from the slot: jobs restarted for ever."""
    slot = SimpleNamespace(url="tcp://127.0.0.1:7932", jobs={})
    ready = trio.Event()
    processes: Any = SimpleNamespace(
        slots=[slot], wait_ready=ready.wait, settings=SimpleNamespace(memory_bytes=64 << 20)
    )
    listener = await transport_for("memory://starting").listen("memory://starting")
    config = TaskManagerConfig(listen="memory://starting", slots=1, memory_bytes=64 << 20)
    manager = TaskManager(config, listener, None, processes)
    greetings: dict[str, tuple[float, list[str]]] = {}

    async def greet(role: str) -> None:
        link, greeting = await dial_link("memory://starting", role=role, name="x", facts={})
        greetings[role] = trio.current_time(), greeting.facts["slot_addresses"]
        link.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(manager.serve, listener, takes_data=True))
        began_s = trio.current_time()
        nursery.start_soon(greet, CLIENT)
        nursery.start_soon(greet, JOBMANAGER)
        await trio.sleep(3.0)
        slot.url = "tcp://127.0.0.1:36157"
        ready.set()
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    listener.close()
    assert greetings[CLIENT] == (pytest.approx(began_s, abs=0.1), ["tcp://127.0.0.1:7932"])
    assert greetings[JOBMANAGER] == (pytest.approx(began_s + 3.0, abs=0.1), ["tcp://127.0.0.1:36157"])
