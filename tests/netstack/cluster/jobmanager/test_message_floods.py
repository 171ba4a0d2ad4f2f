"""Law: each message of a TaskManager, each field at its limit, costs bounded memory, which is freed when it leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from jobmanager.scripted_taskmanager import ScriptedTaskManager, client, document, jobmanager, taskmanager
from trio.testing import MockClock

from netstack.cluster.control import reports
from netstack.cluster.control.codec import TEXT_CHARACTERS, Message
from netstack.cluster.control.frames import pack
from netstack.cluster.control.messages import OperatorEvent
from netstack.cluster.jobmanager import peer_budget
from netstack.cluster.jobmanager.views import documents
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings

MIB = 1 << 20
KINDS: list[type[Any]] = [
    OperatorEvent,
    *(
        kind
        for kind in vars(reports).values()
        if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
    ),
]
FLOOD = 12
"""Messages of one flood; each has about a hundred kilobytes where its fields allow that."""

_NAMES = ("0", "1", "tasks", "jobs", "errors", "file", "function", "operator", "network", "memory_bytes", "results")


def pipeline(folder: Path) -> dict[str, Any]:
    settings = StreamSettings(checkpoints=CheckpointSettings(interval_s=1000.0), checkpoint_folder=str(folder))
    job = StreamEnvironment("pipeline", parallelism=1, settings=settings)
    job.source("jobs:read", name="source").sink("jobs:keep", name="sink")
    return document(job)


def filled(kind: type[Any], job_id: str, attempt: tuple[int, int, int], number: int) -> Any:
    """The message with each field at its limit, all of them of one size and none like another."""
    text = f"{number} \n\x1b[2J".ljust(TEXT_CHARACTERS, "x")
    junk = {"text": f"{number}".ljust(20_000, "y"), "list": [[]] * 200, "numbers": [number + 500] * 200}
    plain = {name: {"records_in": number, "latencies": {f"{number}": [1] * 500}, **junk} for name in _NAMES}
    most = (1 << 62) - 1 - number
    barriers = [[0, number * 300 + each, most] for each in range(300)]
    plain["0"] |= {"records_in": 2 * most, "queued": {"markers": [[0, 0, most, most]] * 1_500, "barriers": barriers}}
    values: dict[str, Any] = {
        "int": (1 << 63) - 1 - number,
        "str": text,
        "Line": text,
        "bool": number % 2 == 0,
        "bytes": bytes(MIB // 4),
        "float": 1e300,
        "Plain": plain,
        "Plain | None": plain,
        "Attempt": attempt,
        "tuple[Attempt, ...]": (attempt,) * 5_000,
        "tuple[str, ...]": (text,) * 16,
        "tuple[bytes, ...]": (bytes(MIB // 4),),
        "tuple[tuple[int, ...], ...]": ((number + 500,) * 5_000,) * 3,
    }
    fields = {each.name: values[str(each.type)] for each in dataclasses.fields(kind)}
    return kind(**fields | ({"job_id": job_id} if "job_id" in fields else {}))


@pytest.fixture
def memory() -> Iterator[Any]:
    """Returns the bytes of all objects that live."""

    def measure() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start(1)
    try:
        yield measure
    finally:
        tracemalloc.stop()


async def is_answered(liar: ScriptedTaskManager) -> bool:
    """Waits until all that was sent has been handled; returns whether the connection goes on."""
    answers: list[object] = []
    async with trio.open_nursery() as nursery:

        async def ended() -> None:
            await liar.ended.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(ended)
        answers.append(await liar.link.ping())
        nursery.cancel_scope.cancel()
    return bool(answers)


async def flood(liar: ScriptedTaskManager, messages: list[Any]) -> int:
    """Sends messages that an honest peer would never send, and returns how many were heard before it was cut off."""
    received = 0
    for message in messages:
        kind = type(message).__name__
        values = [getattr(message, each.name) for each in dataclasses.fields(message)]
        liar.link.send_frame(pack([kind, *values]))
        received += 1
        if not await is_answered(liar):
            break
    return received


@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
async def test_each_message_of_a_taskmanager_without_tasks_leaves_nothing(
    autojump_clock: MockClock, tmp_path: Path, memory: Any, kind: type[Any]
) -> None:
    async with jobmanager() as manager, taskmanager(manager) as honest, client(manager) as user:
        job_id = (await user.ask("submit", document=pipeline(tmp_path)))["job_id"]
        await honest.until(lambda: len(honest.tasks) == 1)
        before = memory()
        for part in range(2):
            async with taskmanager(manager) as liar:
                numbers = range(part * FLOOD, (part + 1) * FLOOD)
                assert await flood(liar, [filled(kind, job_id, (0, 0, 0), number) for number in numbers]) > 0
                assert memory() - before < MIB, "while it is connected"
        await trio.sleep(20.0)
        assert memory() - before < MIB, "after it has left"
        honest.finish()
        assert (await user.ask("wait", job_id=job_id))["state"] == "finished"
        assert [
            (each["records_in"], each["records_out"]) for each in (await user.ask("job", job_id=job_id))["vertices"]
        ] == [(7, 5)]


@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
async def test_each_message_of_a_taskmanager_with_tasks_leaves_what_its_tasks_may_leave(
    autojump_clock: MockClock, tmp_path: Path, memory: Any, kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first flood may leave one entry of a task, the second one no more; jobs of others are exact."""
    monkeypatch.setattr("netstack.cluster.jobmanager.job_master.tasks.RESULTS_BYTES", MIB // 2)
    async with (
        jobmanager() as manager,
        taskmanager(manager, has_processes=True, slots=1) as liar,
        client(manager) as user,
    ):
        job_id = (await user.ask("submit", document=pipeline(tmp_path / "a")))["job_id"]
        await liar.until(lambda: len(liar.tasks) == 1)
        async with taskmanager(manager, slots=1) as honest:
            other = (await user.ask("submit", document=pipeline(tmp_path / "b")))["job_id"]
            await honest.until(lambda: len(honest.tasks) == 1)
            before = memory()
            levels = []
            for part in range(2):
                numbers = range(part * FLOOD, (part + 1) * FLOOD)
                await flood(liar, [filled(kind, job_id, (0, 0, 0), number) for number in numbers])
                levels.append(memory() - before)
            assert {*await user.ask("look")} == {"taskmanagers", "jobs", "channel_columns", "load_balance"}
            assert (await user.ask("job", job_id=job_id))["name"] == "pipeline"
            assert [each["job_id"] for each in (await user.ask("jobs"))["jobs"]] == [job_id, other]
            assert levels[0] < 4 * MIB
            assert levels[1] < levels[0] + MIB // 4
            honest.finish()
            assert (await user.ask("wait", job_id=other))["state"] == "finished"


ISSUE: dict[str, tuple[int, Any]] = {
    "BlobKept": (150, lambda job_id, text: ["BlobKept", text, True]),
    "JobRefused": (150, lambda job_id, text: ["JobRefused", job_id, text]),
    "CheckpointDeclined": (60, lambda job_id, text: ["CheckpointDeclined", job_id, [0, 0, 0], 0, text]),
    "JobProgress": (60, lambda job_id, text: ["JobProgress", job_id, {"0": {"records_in": 10**9, "x": text}}]),
    "Statistics": (60, lambda job_id, text: ["Statistics", 1, {"network": text}]),
    "FetchBlob": (60, lambda job_id, text: ["FetchBlob", "k", 0, [text[:8000]] * 400]),
}


@pytest.mark.whole
@pytest.mark.parametrize("kind", ISSUE)
async def test_floods_of_nearly_four_megabytes_leave_nothing(
    autojump_clock: MockClock, tmp_path: Path, memory: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Floods that once kept 645 MB, 1.2 GB and 715 MB, the last one with 234 MB of log."""
    count, made = ISSUE[kind]
    text = "\x1b[2J\n" + "x" * 3_900_000
    async with jobmanager() as manager, taskmanager(manager) as honest, client(manager) as user:
        job_id = (await user.ask("submit", document=pipeline(tmp_path)))["job_id"]
        await honest.until(lambda: len(honest.tasks) == 1)
        before = memory()
        received, sent = 0, 0
        while sent < count:
            async with taskmanager(manager) as liar:
                await liar.link.ping()  # it is registered
                (connected,) = [each for each in manager.taskmanagers.all() if each.link.peer.startswith(liar.name)]
                while sent < count:
                    liar.link.send_frame(pack(made(job_id, text)))
                    sent += 1
                    if not await is_answered(liar):
                        break
                received += connected.link.received_bytes
        assert received > count * 3_000_000
        assert memory() - before < 6 * MIB
        assert sum(len(each.getMessage()) for each in caplog.records) < 600 * count
        assert all(each.getMessage().isprintable() for each in caplog.records)
        displayed = await user.ask("job", job_id=job_id)
        assert [each["records_in"] for each in displayed["vertices"]] == [0]
        honest.finish()
        assert (await user.ask("wait", job_id=job_id))["state"] == "finished"


async def test_reports_that_wait_are_bounded_and_the_bound_is_of_one_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_budget, "MAX_REPORTS", 3)
    one, other = peer_budget.PeerBudget("one"), peer_budget.PeerBudget("other")
    charges = [one.charge(10) for _ in range(3)]
    for charge in charges:
        charge.take()
    with pytest.raises(Exception, match=r"one sends .* 4 reports with 50 bytes wait"):
        one.charge(20).take()
    other.charge(5).take()
    for charge in charges:
        charge.give_back()
    assert (one.reports, other.reports) == (1, 1)


async def test_a_report_about_the_queues_of_a_long_job_does_not_occupy_the_jobmanager(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every queued marker counts for all vertices behind it: 300,000 of 1,000 vertices counted 150 million times."""
    depth, most = 300, (1 << 62) - 1
    job = StreamEnvironment("deep", parallelism=1)
    stream = job.source("jobs:read", name="source")
    for number in range(depth - 2):
        stream = stream.rebalance().map("jobs:change", name=f"{number}")
    stream.rebalance().sink("jobs:keep", name="sink")
    async with jobmanager() as manager, client(manager) as user, taskmanager(manager, slots=1) as liar:
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        await liar.until(lambda: len(liar.tasks) == depth)
        rows = {"markers": [[-1, 0, most, most]] * 600, "barriers": [[-1, each, most] for each in range(100)]}
        report = {f"{number}": {"records_in": 1, "queued": rows} for number in range(depth - 1)}
        liar.link.send_frame(pack(["JobProgress", job_id, report]))
        assert await is_answered(liar)
        (master,) = manager.dispatcher.running.values()
        assert [*master.progress] == [liar.name], "it was heard"
        kept = [row["queued"] for row in master.progress[liar.name].values()]
        assert sum(len(each["markers"]) for each in kept) <= documents.MOST_WORK
        counted = documents.vertex_latencies(master)
        assert sum(row["waiting"] for rows in counted.values() for row in rows) < 2 * documents.MOST_WORK
        assert [row["max_us"] for rows in counted.values() for row in rows] == [most] * (2 * depth - 3)
        assert len((await user.ask("job", job_id=job_id))["vertices"]) == depth
        assert len((await user.ask("look"))["jobs"]) == 1


async def test_sums_that_no_message_can_have_hide_nothing(autojump_clock: MockClock) -> None:
    """Three TaskManagers report almost 2^63 records each: their sum made every answer fail."""
    most = (1 << 63) - 1
    job = StreamEnvironment("wide", parallelism=3)
    job.source("jobs:read", name="source").sink("jobs:keep", name="sink")
    async with jobmanager() as manager, client(manager) as user, contextlib.AsyncExitStack() as stack:
        liars = [await stack.enter_async_context(taskmanager(manager, slots=1)) for _ in range(3)]
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        for each in liars:
            await each.until(lambda each=each: len(each.tasks) == 1)
            each.link.send_frame(pack(["JobProgress", job_id, {"0": {"records_in": most, "records_out": 1}}]))
            assert await is_answered(each)
        for what in ("job", "look"):
            answer = await user.ask(what, job_id=job_id)
            (vertex,) = (answer["jobs"][0] if what == "look" else answer)["vertices"]
            assert (vertex["records_in"], vertex["records_out"]) == ((1 << 64) - 1, 3), "the sum is as large as can be"
