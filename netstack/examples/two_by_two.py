r"""Two producers and two consumers on one connection, in slow motion: the job of `netstack demo`.

    A.1 ----> B.3        A.1 and A.2 in one process, B.3 and B.4 in another; the four channels share one connection.
        \ /              A.1 writes mostly to B.3, A.2 mostly to B.4.
        / \
    A.2 ----> B.4

What to look at: B.4 stalls in one phase. With credit only its own channels wait: their credit is 0, the producers have
a backlog, and B.3 continues. Without credit the connection is not read while B.4 has no free buffer, so B.3 starves
too. In another phase A.2 has a backlog with its barrier after it, and the channels of A.1 wait for that barrier:
alignment.
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
        "text": "A.1 and A.2 fill buffers of 1 KiB, and send each buffer as soon as it is full and there is credit for"
        " it. B.3 and B.4 have two exclusive buffers per channel and four floating buffers per gate. Each credit"
        " promises that one of these is free.",
    },
    {
        "kind": STALL,
        "seconds": 15,
        "job": WITH_CREDIT,
        "title": "B.4 stalls, with credit",
        "text": "B.4 stops reading. Its buffers fill up, the credit of its channels falls to 0, and the data that A.2"
        " writes to it becomes a backlog at A.2, until A.2 itself waits: backpressure. The connection stays free: B.3"
        " still gets its records from A.1.",
    },
    {
        "kind": CATCH_UP,
        "seconds": 12,
        "job": WITH_CREDIT,
        "title": "B.4 catches up",
        "text": "B.4 reads again. The backlog tells its gate how many floating buffers each channel needs; credit"
        " returns, and the backlog shrinks.",
    },
    {
        "kind": ALIGN,
        "seconds": 18,
        "job": WITH_CREDIT,
        "title": "a barrier aligns",
        "text": "A.2 writes more than B.3 and B.4 can read, A.1 little. A checkpoint begins: A.1's barrier arrives at"
        " once, A.2's is queued after its backlog. Until it arrives, B.3 and B.4 read nothing more from A.1, whose"
        " channels are blocked behind their barrier: this is the alignment. Then the state is stored, and A.1"
        " continues; the table of checkpoints shows how long that took.",
    },
    {
        "kind": FLOW,
        "seconds": 10,
        "job": WITHOUT_CREDIT,
        "title": "the same without credit",
        "text": "As before Flink 1.5: producers send without credit, and a consumer without a free buffer stops"
        " reading the whole connection. While both consumers keep up, there is no visible difference.",
    },
    {
        "kind": STALL,
        "seconds": 15,
        "job": WITHOUT_CREDIT,
        "title": "B.4 stalls, without credit",
        "text": "B.4 stops reading. Its buffers fill up, and the connection is no longer read: B.3 is idle, although"
        " A.1 has records for it. One slow consumer stalls all others on its connection. Credit prevents this.",
    },
)
"""The phases of the demo, which repeat."""

NAMES: Final = {"A 0": "A.1", "A 1": "A.2", "B 0": "B.3", "B 1": "B.4"}
"""Names of the subtasks in Flink's picture of credit-based flow control."""

RECORD_BYTES: Final = 490
"""Two records fill a buffer."""

PER_S: Final = 20
"""Records per second of a producer."""

OTHER: Final = 16
"""One in this number of records goes to the other consumer."""


def phase_at(began: float, pace: float) -> str:
    """The kind of the current phase of a demo that began at `began` (seconds since 1970)."""
    whole = sum(phase["seconds"] for phase in PHASES)
    left = (time.time() - began) / pace % whole
    for phase in PHASES:
        left -= phase["seconds"]
        if left < 0:
            return str(phase["kind"])
    return FLOW


class Producer:
    """A.1 and A.2: slow sources of records of 490 bytes, which contain their destination."""

    def __init__(self, began: float, pace: float) -> None:
        """Args: start of the first phase (seconds since 1970); factor on the durations of phases."""
        self.began = began
        self.pace = pace
        self.number = 0
        self.subtask = 0

    def open(self, context: OperatorContext) -> None:
        """Stores the index of the subtask."""
        self.subtask = context.subtask

    async def read(self) -> list[bytes]:
        """Returns the next record."""
        is_aligning = phase_at(self.began, self.pace) == ALIGN
        per_s = PER_S if not is_aligning else 4 * PER_S if self.subtask else PER_S // 4
        await trio.sleep(self.pace / per_s)
        self.number += 1
        is_other = self.number % (2 if is_aligning else OTHER) == 0
        return [bytes([1 - self.subtask if is_other else self.subtask]) + bytes(RECORD_BYTES - 1)]

    def snapshot(self, unsent: int) -> int:
        """Returns the number of records sent."""
        return self.number - unsent

    def restore(self, states: list[int]) -> None:
        """Restores a position; the records are not counted, so any will do."""
        self.number = max(states)


def target(record: bytes, channels: int) -> int:
    """Returns the destination of a record."""
    return record[0] % channels


class Consumer:
    """B.3 and B.4: they read records, except B.4 in some phases."""

    def __init__(self, began: float, pace: float) -> None:
        """Args: start of the first phase (seconds since 1970); factor on the durations of phases."""
        self.began = began
        self.pace = pace
        self.subtask = 0

    def open(self, context: OperatorContext) -> None:
        """Stores the index of the subtask."""
        self.subtask = context.subtask

    async def process(self, record: bytes, out: Output) -> None:
        """Processes one record."""
        phase = phase_at(self.began, self.pace)
        while phase == STALL and self.subtask == 1:
            await trio.sleep(0.1 * self.pace)
            phase = phase_at(self.began, self.pace)
        await trio.sleep(self.pace * (2.4 if phase == ALIGN else 0.4) / PER_S)


def job(began: float = 0.0, pace: float = 1.0, credit: int = 1) -> StreamEnvironment:
    """Builds the job.

    Args:
        began: start of the first phase, seconds since 1970.
        pace: factor by which the demo is slowed down; below 1 it runs faster.
        credit: 0 disables credit.
    """
    network = NetworkConfig(
        segment_size_bytes=1024,
        memory_bytes=256 * 1024,
        exclusive_buffers_per_channel=2,
        floating_buffers_per_gate=4,
        spare_floating_buffers_per_gate=0,  # the text of the page speaks of four floating buffers
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
