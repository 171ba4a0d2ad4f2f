"""Checkpoints of a run: the producer triggers them, the consumer's input acknowledges, and each is timed end to end.

- One checkpoint at a time: the next begins an interval after the last began, or as soon as the last is complete.
- A barrier goes between two records. Records that it overtakes are written to a file on each side, as a task does.
- The consumer acknowledges by a datagram to a socket in the folder that both processes share.
- Checkpoints that began in the warm-up, or are pending when the run ends, do not count.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, final

import trio

from netstack import NetworkEnvironment, RecordWriter
from netstack.base.events import Alignment, CheckpointBarrier
from netstack.cluster.task.input import TaskInput
from netstack.cluster.task.mailbox import Mailbox
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.network.handles import InputGate, ResultPartition
from netstack.schedule.checkpoint.barrier import AbortReason, AlignmentStatistics
from netstack.schedule.descriptors.information import EdgeId, InputInformation

from .checkpoints.figures import Completed, times
from .pacing import Throttle, clock_ns
from .spec import RunSpec

_SOCKET: Final = "checkpoints.sock"
_EDGE: Final = EdgeId("producer", "consumer")
_MOST_BYTES: Final = 1 << 16  # of a datagram
_BATCH: Final = 4096  # bytes of records between two checks of the mailbox, if records are not timed

Feed = Callable[..., None]


@final
class Coordinator:
    """Triggers the checkpoints of a run, in the producer's process.

    Blocking writes of `writer` must go through `emit`. Checkpoints that begin before `from_ns` do not count.
    """

    def __init__(
        self, spec: RunSpec, scratch: Path, writer: RecordWriter[Any], partition: ResultPartition, from_ns: int
    ) -> None:
        self._spec = spec
        self._scratch = scratch
        self._writer = writer
        self._from_ns = from_ns
        self._between = trio.Lock()
        self._overtaken: list[bytes] = []
        self._seen: list[Completed] = []
        writer.overdraw()  # a partly written record is completed, so that a barrier need not wait for it
        partition._engine.on_barrier = self._on_barrier

    async def emit(self, record: Any) -> None:
        """Writes a record that finds no buffer. A barrier may be placed before the record, never inside it."""
        await self._writer.wait_room()
        async with self._between:
            await self._writer.emit(record)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Takes checkpoints while the block runs. Cancellation: the pending checkpoint is discarded."""
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as answers:
            await answers.bind(str(self._scratch / _SOCKET))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._take, answers)
                yield
                nursery.cancel_scope.cancel()

    def result(self) -> dict[str, Any]:
        """The number of completed checkpoints and their durations (`checkpoints.figures.times`)."""
        return {"complete": len(self._seen), "aborted": 0, **times(self._seen)}

    async def _take(self, answers: trio.socket.SocketType) -> None:
        due, number = trio.current_time() + self._spec.checkpoint_interval_s, 0
        while True:
            await trio.sleep_until(due)
            number += 1
            began_ns = clock_ns()
            seen = await self._checkpoint(number, answers)
            if began_ns >= self._from_ns:
                self._seen.append(seen)
            due = max(due + self._spec.checkpoint_interval_s, trio.current_time())

    async def _checkpoint(self, number: int, answers: trio.socket.SocketType) -> Completed:
        began_ns = clock_ns()
        alignment = Alignment.UNALIGNED if self._spec.checkpoints == "unaligned" else Alignment.ALIGNED
        self._overtaken.clear()
        async with self._between:
            await self._writer.broadcast_event(CheckpointBarrier(number, timestamp_ns=began_ns, alignment=alignment))
        state = b"".join(self._overtaken)
        write_s = await _write(self._scratch / f"producer-{number}", state)
        answer: dict[str, Any] = json.loads(await answers.recv(_MOST_BYTES))
        return Completed(
            duration_s=(clock_ns() - began_ns) / 1e9,
            start_delay_s=(answer["first_ns"] - began_ns) / 1e9,
            alignment_s=answer["alignment_s"],
            write_s=max(write_s, answer["write_s"]),
            channel_state_bytes=len(state) + answer["bytes"],
        )

    def _on_barrier(self, subpartition: int, checkpoint_id: int, overtaken: bytes) -> None:
        if overtaken:
            self._overtaken.append(overtaken)


@final
class _Answers:
    """The consumer's side of each checkpoint (a `CheckpointTask`): writes channel state and acknowledges."""

    def __init__(self) -> None:
        self.complete: list[tuple[int, AlignmentStatistics, int]] = []

    def on_barrier(self, barrier: CheckpointBarrier, alignment: AlignmentStatistics) -> None:
        pass

    def inputs_complete(self, checkpoint_id: int, alignment: AlignmentStatistics) -> None:
        self.complete.append((checkpoint_id, alignment, clock_ns() - alignment.duration_ns))

    def abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        pass


async def take_between_barriers(
    spec: RunSpec, feed: Feed, gate: InputGate, manager: NetworkEnvironment, scratch: Path
) -> None:
    """Reads a gate to its end like a task, with checkpoint work between two records.

    `feed` receives records of a channel, with the arrival time if the record is timed. The gate is owned by its
    `TaskInput`. Cancellation: records that were read but not passed to `feed` are lost.
    """
    mailbox, task = Mailbox(), _Answers()
    inputs = [InputInformation(_EDGE, format="bytes")]
    unaligned = spec.checkpoints == "unaligned"
    engine = gate._engine
    assert isinstance(engine, SingleInputGate)
    read = TaskInput(
        "consumer",
        {0: engine},
        inputs,
        [_EDGE],
        mailbox,
        task,
        manager,
        exactly_once=True,
        unaligned=unaligned,
    )
    throttle = None if spec.consume_rate_per_s is None else Throttle(spec.consume_rate_per_s)
    step = max(1, _BATCH // spec.record_bytes) if spec.rate_per_s is None and throttle is None else 1
    async with trio.open_nursery() as nursery:

        def settle() -> None:
            while mailbox.is_urgent:
                mailbox.open()
                read.poll_priority()
            for checkpoint_id, alignment, first_ns in task.complete:
                state = b"".join(read.take_captured(checkpoint_id).values())
                nursery.start_soon(_answer, scratch, checkpoint_id, state, alignment, first_ns)
            task.complete.clear()

        while not read.is_finished:
            settle()
            records = read.poll()
            if records is None:
                await read.wait()
                continue
            channel = read.channel_index
            for done in range(0, len(records), step):
                part = records[done : done + step]
                if throttle is not None:
                    await throttle.turn(len(part))
                feed(channel, part, clock_ns())
                read.processed(done + len(part))
                settle()
        settle()


async def _answer(scratch: Path, number: int, state: bytes, alignment: AlignmentStatistics, first_ns: int) -> None:
    write_s = await _write(scratch / f"consumer-{number}", state)
    answer = {"first_ns": first_ns, "alignment_s": alignment.duration_ns / 1e9, "write_s": write_s, "bytes": len(state)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.sendto(json.dumps(answer).encode(), str(scratch / _SOCKET))
        except OSError:
            return  # the producer has ended


async def _write(path: Path, state: bytes) -> float:
    began_ns = clock_ns()
    await trio.to_thread.run_sync(path.write_bytes, state)
    taken_s = (clock_ns() - began_ns) / 1e9
    await trio.to_thread.run_sync(path.unlink)
    return taken_s
