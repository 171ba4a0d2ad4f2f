r"""Two producers, two consumers, one connection, slowly enough to watch: what `netstack demo` runs.

    A.1 ----> B.3        A.1 and A.2 in one process, B.3 and B.4 in another; the four channels share one connection.
        \ /              A.1 writes mostly for B.3, A.2 mostly for B.4.
        / \
    A.2 ----> B.4

What to look at: B.4 stalls in one phase. With credit only its own channels wait: credit 0, a backlog at the producers,
and B.3 goes on. Without credit the connection is not read while B.4 has no room, and B.3 starves beside it. In another
phase A.2 has a backlog, its barriers are behind that, and those of A.1 wait for them: alignment.
"""

from __future__ import annotations

import time
from typing import Any, Final

import trio

from netstack import CheckpointSettings, NetworkConfig, OperatorContext, Output, StreamEnvironment, StreamSettings

FLOW, STALL, CATCH_UP, ALIGN = "flow", "stall", "catch up", "align"

WITH_CREDIT: Final = "with credit"
WITHOUT_CREDIT: Final = "without credit"

PHASES: Final[tuple[dict[str, Any], ...]] = (
    {
        "kind": FLOW,
        "seconds": 12,
        "job": WITH_CREDIT,
        "title": "everything flows, with credit",
        "text": "A.1 and A.2 fill buffers of 1 KiB and send each as soon as it is full and there is credit for it."
        " B.3 and B.4 have two buffers of their own for each channel, and share four floating ones at each"
        " gate: credit is a promise that one of these is free.",
    },
    {
        "kind": STALL,
        "seconds": 15,
        "job": WITH_CREDIT,
        "title": "B.4 stalls, with credit",
        "text": "B.4 takes nothing. Its buffers fill, the credit of its channels goes down to 0, and what A.2 writes"
        " for it waits at A.2 as backlog, until A.2 itself waits: backpressure. The connection stays free: B.3"
        " gets its records from A.1 as before.",
    },
    {
        "kind": CATCH_UP,
        "seconds": 12,
        "job": WITH_CREDIT,
        "title": "B.4 catches up",
        "text": "The backlog tells B.4's gate how many floating buffers to lend to which channel; credit comes back,"
        " the backlog goes away.",
    },
    {
        "kind": ALIGN,
        "seconds": 18,
        "job": WITH_CREDIT,
        "title": "a barrier aligns",
        "text": "A.2 writes more than B.3 and B.4 can take, A.1 little. A checkpoint begins: A.1's barrier comes at"
        " once, A.2's is behind its backlog. Until it has come B.3 and B.4 take nothing more from A.1: its channels"
        " wait behind their barrier, which is the alignment. Then the state is taken, and A.1 goes on; the table of"
        " checkpoints tells how long that took.",
    },
    {
        "kind": FLOW,
        "seconds": 10,
        "job": WITHOUT_CREDIT,
        "title": "the same without credit",
        "text": "As before Flink 1.5: producers send without asking, and a consumer without a free buffer stops the"
        " reading of its whole connection. As long as both consumers keep up there is no difference to be"
        " seen.",
    },
    {
        "kind": STALL,
        "seconds": 15,
        "job": WITHOUT_CREDIT,
        "title": "B.4 stalls, without credit",
        "text": "B.4 takes nothing. Its buffers fill, and then nobody reads the connection any more: B.3 is idle,"
        " although A.1 has records for it. One slow consumer stalls everybody beside it. That is what credit"
        " is for.",
    },
)
"""What is to be seen, one after the other, and again from the beginning."""

NAMES: Final = {"A 0": "A.1", "A 1": "A.2", "B 0": "B.3", "B 1": "B.4"}
"""What the subtasks are called in Flink's own picture of this."""

RECORD_BYTES: Final = 490
"""Two records fill a buffer."""

PER_S: Final = 20
"""Records of a producer in a second."""

OTHER: Final = 16
"""Every so many records one goes to the other consumer."""


def phase_at(began: float, pace: float) -> str:
    """What kind of phase it is now, in a demonstration that began then (seconds since 1970)."""
    whole = sum(phase["seconds"] for phase in PHASES)
    left = (time.time() - began) / pace % whole
    for phase in PHASES:
        left -= phase["seconds"]
        if left < 0:
            return str(phase["kind"])
    return FLOW


class Producer:
    """A.1 and A.2: records of 490 bytes, slowly; they say for whom they are."""

    def __init__(self, began: float, pace: float) -> None:
        """Args: when the first phase began; how much longer phases take than they say."""
        self.began = began
        self.pace = pace
        self.number = 0
        self.subtask = 0

    def open(self, context: OperatorContext) -> None:
        """Hears which of the two it is."""
        self.subtask = context.subtask

    async def read(self) -> list[bytes]:
        """The next record."""
        is_aligning = phase_at(self.began, self.pace) == ALIGN
        per_s = PER_S if not is_aligning else 4 * PER_S if self.subtask else PER_S // 4
        await trio.sleep(self.pace / per_s)
        self.number += 1
        is_other = self.number % (2 if is_aligning else OTHER) == 0
        return [bytes([1 - self.subtask if is_other else self.subtask]) + bytes(RECORD_BYTES - 1)]

    def snapshot(self, unsent: int) -> int:
        """How far it is."""
        return self.number - unsent

    def restore(self, states: list[int]) -> None:
        """Goes on somewhere: nobody counts these records."""
        self.number = max(states)


def target(record: bytes, channels: int) -> int:
    """Whom a record is for."""
    return record[0] % channels


class Consumer:
    """B.3 and B.4: they take records, but for B.4 in some phases."""

    def __init__(self, began: float, pace: float) -> None:
        """Args: when the first phase began; how much longer phases take than they say."""
        self.began = began
        self.pace = pace
        self.subtask = 0

    def open(self, context: OperatorContext) -> None:
        """Hears which of the two it is."""
        self.subtask = context.subtask

    async def process(self, record: bytes, out: Output) -> None:
        """One record."""
        phase = phase_at(self.began, self.pace)
        while phase == STALL and self.subtask == 1:
            await trio.sleep(0.1 * self.pace)
            phase = phase_at(self.began, self.pace)
        await trio.sleep(self.pace * (2.4 if phase == ALIGN else 0.4) / PER_S)


def job(began: float = 0.0, pace: float = 1.0, credit: int = 1) -> StreamEnvironment:
    """The job.

    Args:
        began: when the first phase began, seconds since 1970.
        pace: how much longer everything takes; below 1 it is faster.
        credit: 0 goes without.
    """
    network = NetworkConfig(
        segment_size_bytes=1024,
        memory_bytes=256 * 1024,
        exclusive_buffers_per_channel=2,
        floating_buffers_per_gate=4,
        spare_floating_buffers_per_gate=0,  # the page tells of four that are shared
        credit_based=bool(credit),
        heartbeat_interval_s=10.0 if credit else None,
    )
    settings = StreamSettings(
        network=network,
        checkpoints=CheckpointSettings(timeout_s=60.0 * pace),
        is_chaining_enabled=False,
    )
    environment = StreamEnvironment(WITH_CREDIT if credit else WITHOUT_CREDIT, parallelism=2, settings=settings)
    parameters = {"began": began, "pace": pace}
    made = environment.source(Producer, name="A", parameters=parameters).slot_sharing_group("A")
    records = made.with_format("bytes").with_buffer_timeout(None).partition_custom(target)
    records.sink(Consumer, name="B", **parameters).slot_sharing_group("B")
    return environment
