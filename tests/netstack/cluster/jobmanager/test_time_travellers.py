"""A TaskManager that goes back in time: a virtual machine that is restored from an earlier image, clocks and all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from jobmanager.scripted_taskmanager import ScriptedTaskManager, client, document, jobmanager, taskmanager
from trio.testing import MockClock

from netstack.cluster.control.codec import Message
from netstack.cluster.control.messages import Pong
from netstack.cluster.control.reports import (
    CheckpointAcknowledged,
    JobOpened,
    JobProgress,
    TaskFailed,
    TaskFinished,
    TaskStates,
)
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.failover.restart import RestartSettings
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings


def pipeline(folder: Path) -> dict[str, Any]:
    settings = StreamSettings(
        restart=RestartSettings(kind="fixed_delay", delay_s=0.5, attempts=3),
        checkpoints=CheckpointSettings(interval_s=5.0),
        checkpoint_folder=str(folder),
    )
    job = StreamEnvironment("pipeline", parallelism=1, settings=settings)
    job.source("jobs:read", name="source").sink("jobs:keep", name="sink")
    return document(job)


def said_before(job_id: str) -> list[Message]:
    """All that the TaskManager says of the attempt that it had in the image."""
    attempt = (0, 0, 0)
    return [
        JobOpened(job_id),
        TaskStates(job_id, "initializing", (attempt,)),
        TaskStates(job_id, "running", (attempt,)),
        JobProgress(job_id, {"0": {"records_in": 1_000_000, "records_out": 1_000_000}}),
        CheckpointAcknowledged(job_id, attempt, 1, 10, 10, {}),
        TaskStates(job_id, "waiting", (attempt,)),
        TaskFinished(job_id, attempt, (), {"sink": 99}, None, (), 1_000_000, 1_000_000),
        TaskFailed(job_id, attempt, "ValueError", "from the past", False, "", True, {}),
    ]


async def test_what_a_taskmanager_said_before_counts_for_nothing_when_it_says_it_again(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Each message alone, on a connection of its own, while another TaskManager runs the next attempt."""
    async with jobmanager() as manager, client(manager) as user:
        async with taskmanager(manager, slots=1) as restored:
            job_id = (await user.ask("submit", document=pipeline(tmp_path)))["job_id"]
            await restored.until(lambda: restored.tasks)
            assert [*restored.tasks] == [(0, 0, 0)]
        async with taskmanager(manager, slots=1) as other:
            await other.until(lambda: other.tasks)
            assert [*other.tasks] == [(0, 0, 1)]
            for message in said_before(job_id):
                async with taskmanager(manager, slots=1, name=restored.name) as again:
                    assert await is_heard(again, message)
                actual = await user.ask("job", job_id=job_id)
                assert (actual["state"], actual["restarts"], actual["results"]) == ("running", 1, {}), message
                assert actual["checkpoints_completed"] == 0
                assert [(each["records_in"], each["records_out"]) for each in actual["vertices"]] == [(0, 0)]
            other.finish()
            assert (await user.ask("wait", job_id=job_id))["results"] == {"sink": {"0": 0}}
            (vertex,) = (await user.ask("job", job_id=job_id))["vertices"]
            assert (vertex["records_in"], vertex["records_out"]) == (7, 5), "what the attempt that counts reported"


async def is_heard(again: ScriptedTaskManager, message: Message) -> bool:
    """Whether it was registered when it spoke, and was answered afterwards, or cut off for what it said."""
    assert (await again.link.ping())[1] > 0
    again.link.send(message)
    again.link.send(Pong(0, -(1 << 62)))  # its monotonic clock is behind what it was
    with trio.move_on_after(5.0):
        return (await again.link.ping())[1] > 0
    return again.ended.is_set()
