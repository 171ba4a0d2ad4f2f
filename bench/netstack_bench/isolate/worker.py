"""The two TaskManagers of `isolate`: A.1 and A.2 produce in one process, B.3 and B.4 consume in the other.

Both sides compute the phases from the common start; they exchange no messages meanwhile.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import trio

from netstack import ChannelDescriptor, RecordReader, RecordWriter, open_network

from ..generator import Source
from ..pacing import clock_ns
from ..places.local.pair_io import PairIo, serve
from ..verifier import RecordVerifier
from .spec import STALLED, SUBTASKS, TICK_NS, IsolateSpec, Subtask

SKIP_NS: Final = 50_000_000
"""A producer that is later than this was blocked; records that were due meanwhile are skipped."""

_SPAN_RECORDS: Final = 1024
_SPAN_BYTES: Final = 256 * 1024


class SlotPacer:
    """Due times at a fixed rate, at most `most` at once, without catching up after a block."""

    def __init__(self, *, start_ns: int, rate_per_s: float, most: int) -> None:
        self._next_ns = float(start_ns)
        self._interval_ns = 1e9 / rate_per_s
        self._most = most

    def take(self, now_ns: int) -> int:
        """The number of records due now; each is returned once."""
        late_ns = now_ns - self._next_ns
        if late_ns < 0:
            return 0
        if late_ns > SKIP_NS:
            self._next_ns, late_ns = float(now_ns), 0.0
        count = min(int(late_ns / self._interval_ns) + 1, self._most)
        self._next_ns += count * self._interval_ns
        return count

    def wait_s(self, now_ns: int) -> float:
        """Time until the next record is due."""
        return max(0.0, (self._next_ns - now_ns) / 1e9)


class Arrivals:
    """Counts the records that a subtask took, in all and by tick."""

    def __init__(self, *, start_ns: int, ticks: int) -> None:
        self.records = 0
        self.ticks = [0] * ticks
        self._start_ns = start_ns

    def add(self, count: int, now_ns: int) -> None:
        """Counts records taken now."""
        self.records += count
        tick = (now_ns - self._start_ns) // TICK_NS
        if 0 <= tick < len(self.ticks):
            self.ticks[tick] += count


@dataclass(slots=True)
class _Producing:
    subtask: Subtask
    writer: RecordWriter
    source: Source
    sent: int = 0

    def backpressured_s(self, now_s: float) -> float:
        partition = self.writer._partition
        return partition.soft_backpressured.total_s(now_s) + partition.hard_backpressured.total_s(now_s)


async def produce(io: PairIo) -> dict[str, Any]:
    """A.1 writes for B.3, A.2 for B.4, each to its own partition, until the last phase ends."""
    spec, credit = _job(io)
    most = max(1, min(_SPAN_RECORDS, _SPAN_BYTES // spec.record_bytes))
    async with open_network(_address(spec, io, "producer"), spec.network(credit=credit)) as manager:
        producing = [
            _Producing(
                subtask,
                RecordWriter(
                    manager.create_partition(_partition(subtask), subpartitions=1),
                    buffer_timeout_s=spec.buffer_timeout_s,
                ),
                Source(spec.record_bytes, most),
            )
            for subtask in SUBTASKS
        ]
        io.watch(lambda: sum(each.sent for each in producing))
        io.publish(manager.address)
        start_ns = await io.ready()
        edges_ns: list[int] = []
        backpressured: dict[Subtask, list[float]] = {subtask: [] for subtask in SUBTASKS}

        def note(at_ns: int) -> None:
            edges_ns.append(at_ns)
            now_s = manager.now()
            for each in producing:
                backpressured[each.subtask].append(each.backpressured_s(now_s))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(_at_edges, spec, start_ns, note)
            for each in producing:
                nursery.start_soon(_write, spec, start_ns, each)
        connections = len(manager.statistics().accepted)
        for each in producing:
            await each.writer.finish()
        for each in producing:
            await each.writer.wait_consumed()
    return {
        "connections": connections,
        "expected": {each.subtask: each.source.expected(each.sent) for each in producing},
        "edges_ns": edges_ns,
        "backpressured_s": backpressured,
    }


async def consume(io: PairIo) -> dict[str, Any]:
    """B.3 and B.4 read, each from its own gate; in the middle phase B.4 stalls, or reads slowly."""
    spec, credit = _job(io)
    async with open_network(_address(spec, io, "consumer"), spec.network(credit=credit)) as manager:
        producer = await io.peer_address()
        gates = {
            subtask: await manager.open_gate([ChannelDescriptor(producer, _partition(subtask))]) for subtask in SUBTASKS
        }
        start_ns = await io.ready()
        arrivals = {subtask: Arrivals(start_ns=start_ns, ticks=spec.ticks) for subtask in SUBTASKS}
        verifiers = {subtask: RecordVerifier(record_bytes=spec.record_bytes) for subtask in SUBTASKS}
        io.watch(lambda: sum(each.records for each in arrivals.values()))
        connections = len(manager.statistics().dialled)
        edges_ns: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_at_edges, spec, start_ns, edges_ns.append)
            for subtask, gate in gates.items():
                nursery.start_soon(
                    _read,
                    RecordReader(gate),
                    arrivals[subtask],
                    verifiers[subtask],
                    Brake(spec, start_ns) if subtask == STALLED else None,
                )
        for gate in gates.values():
            gate.close()
    expected = (await io.producer_summary())["expected"]
    for verifier in verifiers.values():
        verifier.finish()
    return {
        "connections": connections,
        "edges_ns": edges_ns,
        "records": {subtask: each.records for subtask, each in arrivals.items()},
        "ticks": {subtask: each.ticks for subtask, each in arrivals.items()},
        "problems": {subtask: each.problems(expected[subtask]) for subtask, each in verifiers.items()},
    }


class Brake:
    """Slows a reader down in the middle phase: to a rate, or to nothing."""

    def __init__(self, spec: IsolateSpec, start_ns: int) -> None:
        phase_ns = spec.phase_ticks * TICK_NS
        self._from_ns = start_ns + phase_ns
        self._until_ns = start_ns + 2 * phase_ns
        self._interval_ns = 1e9 / spec.slow_rate_per_s if spec.slow_rate_per_s else float(phase_ns)
        self._next_ns = self._from_ns + self._interval_ns

    def wait_s(self, now_ns: int) -> float:
        """Takes the next turn: time to wait before a record is taken; 0 outside of the phase."""
        if not self._from_ns <= now_ns < self._until_ns:
            return 0.0
        slot_ns = self._next_ns if now_ns - self._next_ns <= SKIP_NS else float(now_ns)
        self._next_ns = slot_ns + self._interval_ns
        return max(0.0, min(slot_ns, self._until_ns) - now_ns) / 1e9


async def _read(reader: RecordReader, arrivals: Arrivals, verifier: RecordVerifier, brake: Brake | None) -> None:
    async for record in reader:
        if brake is not None and (wait_s := brake.wait_s(clock_ns())):
            await trio.sleep(wait_s)
        now = clock_ns()
        arrivals.add(1, now)
        verifier.feed(0, (record,), now)


async def _write(spec: IsolateSpec, start_ns: int, producing: _Producing) -> None:
    writer, source = producing.writer, producing.source
    emit_nowait = writer.emit_nowait
    most = source.records_at_most
    end_ns = start_ns + spec.ticks * TICK_NS
    pacer = None if spec.rate_per_s is None else SlotPacer(start_ns=start_ns, rate_per_s=spec.rate_per_s, most=most)
    await _sleep_until(start_ns)
    while (now := clock_ns()) < end_ns:
        count = most if pacer is None else pacer.take(now)
        for record in source.records(producing.sent, count):
            try:
                emit_nowait(record)
            except trio.WouldBlock:
                await writer.emit(record)
            producing.sent += 1
        await trio.sleep(0.0 if pacer is None else pacer.wait_s(clock_ns()))


async def _at_edges(spec: IsolateSpec, start_ns: int, note: Callable[[int], None]) -> None:
    for tick in spec.edges():
        await _sleep_until(start_ns + tick * TICK_NS)
        note(clock_ns() - start_ns)


async def _sleep_until(at_ns: int) -> None:
    await trio.sleep(max(0, at_ns - clock_ns()) / 1e9)


def _job(io: PairIo) -> tuple[IsolateSpec, bool]:
    return IsolateSpec.from_dict(io.settings["spec"]), bool(io.settings["credit"])


def _address(spec: IsolateSpec, io: PairIo, role: str) -> str:
    if spec.transport == "shm":
        return f"shm://isolate-{os.getpid()}-{role}"
    return f"unix://{io.scratch / f'{role}.sock'}" if spec.transport == "unix" else "tcp://127.0.0.1:0"


def _partition(subtask: Subtask) -> str:
    return f"for {subtask}"


if __name__ == "__main__":
    sys.exit(serve(produce, consume))
