"""A lying TaskManager: sends false reports about a job, which must have no effect.

Takes: a `JobMaster`; the TaskManager's name without its registration number. Gives: messages for its own link.

It reports attempts that were never sent to it, that do not exist yet, or that are over, and values of wrong types.
Reports about its own attempts cannot be checked, so it does not lie there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from ...cluster.control.codec import Attempt, Message
from ...cluster.control.reports import (
    CheckpointAcknowledged,
    CheckpointDeclined,
    PartitionConsumable,
    SlotEnded,
    TaskFailed,
    TaskFinished,
    TaskStates,
)
from ...cluster.jobmanager.job_master.job_master import JobMaster
from .operators import NUMBERER, SINK

_FORGED = {SINK: [[0, 1_000_000, 1, 0]], NUMBERER: "forged"}


def attempts_over(master: JobMaster) -> list[Attempt]:
    """Returns superseded attempts of tasks whose newer attempt runs."""
    scheduler = master.scheduler
    return [
        (*scheduler.topology.place_of(number), attempt)
        for number in sorted(master.tasks.places)
        for attempt in range(scheduler.attempt(number))
    ]


def lies(master: JobMaster, taskmanager: str, chance: random.Random) -> Iterator[Message]:
    """Yields a few lies; harmless ones (about ended attempts) before those that are detected."""
    scheduler = master.scheduler
    over = attempts_over(master)
    foreign: list[Attempt] = []
    for number, slot in sorted(master.tasks.places.items()):
        vertex, index = scheduler.topology.place_of(number)
        current = scheduler.attempt(number)
        if slot.location.taskmanager.partition("#")[0] != taskmanager:
            foreign.append((vertex, index, current))
        foreign.append((vertex, index, current + chance.randint(10, 12)))
    chance.shuffle(over)
    chance.shuffle(foreign)
    for attempt in over[:4]:
        yield _lie(master, attempt, chance)
    if chance.random() < 0.5:
        yield from (_lie(master, attempt, chance) for attempt in foreign[:1])
    elif foreign and chance.random() < 0.5:
        yield TaskStates(master.job_id, "retired", (foreign[0],))
    elif chance.random() < 0.5:
        yield TaskFinished(master.job_id, (99, 0, 0), (), _FORGED, None)


def _lie(master: JobMaster, attempt: Attempt, chance: random.Random) -> Message:
    job_id = master.job_id
    last = master.last_checkpoint
    checkpoint = chance.randint(1, 3) + (0 if last is None else last[0])
    kinds: tuple[Message, ...] = (
        TaskFinished(job_id, attempt, (), _FORGED, {"size_bytes": 1, "crc32": 1}),
        TaskFinished(job_id, attempt, (), _FORGED, None),
        TaskFailed(job_id, attempt, "Forged", "it is not true", False, "", False),
        TaskStates(job_id, chance.choice(("running", "canceled", "waiting", "initializing")), (attempt,)),
        CheckpointAcknowledged(job_id, attempt, checkpoint, 1, 1, {}),
        CheckpointDeclined(job_id, attempt, checkpoint, "it does not want to"),
        PartitionConsumable(job_id, attempt, 0),
        SlotEnded(job_id, 0, (attempt,), "it is not true"),
    )
    return chance.choice(kinds)
