"""Laws of the cut: on any schedule a checkpoint holds exactly what lay in front of its barriers, each byte once.

Several upstream tasks write records and barriers over one scripted link to a task with a real BarrierHandler. The
reference model knows only what was written where: for each channel, the records in front of each barrier. Whatever is
scheduled when, at the end of every checkpoint

    records processed before it + records in the channel state (input, then output) = records in front of its barrier.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings, strategies as st

from netstack.base.events import (
    Alignment,
    CancelCheckpointMarker,
    CheckpointBarrier,
    DataType,
    EndOfPartition,
    decode_event,
)
from netstack.exchange.outbound.selector import CustomSelector
from netstack.exchange.outbound.writer import PartitionWriter
from netstack.exchange.record.deserializer import RecordDeserializer
from netstack.exchange.record.formats import format_named
from netstack.exchange.record.spill import SpillDirectory
from netstack.schedule.checkpoint.barrier import AbortReason, AlignmentStatistics, BarrierHandler, CannotCheckpoint
from netstack.testing.link import Link, Step

SEGMENT = 32
TIMEOUT_S = 1.0

few = st.integers(0, 9)
actions = st.one_of(
    st.tuples(st.just("step"), st.sampled_from(Step), st.integers(1, 200)),
    st.tuples(st.just("step"), st.sampled_from(Step), st.integers(1, 200)),
    st.tuples(st.just("write"), few, st.integers(0, 2 * SEGMENT)),
    st.tuples(st.just("write"), few, st.integers(0, 2 * SEGMENT)),
    st.tuples(st.just("flush"), few),
    st.tuples(st.just("barrier"), few),
    st.tuples(st.just("barriers")),
    st.tuples(st.just("cancel"), few),
    st.tuples(st.just("process"), st.integers(1, 5)),
    st.tuples(st.just("process"), st.integers(1, 5)),
    st.tuples(st.just("time"), st.integers(1, 6)),
    st.tuples(st.just("output timeout"), few),
    st.tuples(st.just("end"), few),
)
scripts = st.lists(actions, min_size=20, max_size=120)
shapes = st.lists(st.integers(1, 3), min_size=1, max_size=4)  # subpartitions of each upstream task: 1 to 8 channels
links = st.fixed_dictionaries(
    {
        "exclusive_buffers": st.integers(0, 2),
        "floating_buffers": st.integers(1, 5),
        "capacity_bytes": st.integers(30, 400),
    }
)


def first_byte(record: bytes, channels: int) -> int:
    return record[0] % channels


def deserializer() -> RecordDeserializer:
    return RecordDeserializer(format_named("bytes"), spill=SpillDirectory(None), spill_threshold_bytes=1 << 20)


class Upstream:
    """An upstream task: what it wrote, and where its barriers are."""

    def __init__(self, link: Link, name: str, subpartitions: int) -> None:
        self.partition = link.create_partition(name, subpartitions=subpartitions, buffers=(subpartitions + 1, 40))
        self.writer = PartitionWriter(
            self.partition,
            selector=CustomSelector(first_byte),
            format=format_named("bytes"),
            buffer_timeout_s=0.5,
            refuse=BlockingIOError,
        )
        self.partition.on_barrier = self.on_barrier
        self.written: list[list[bytes]] = [[] for _ in range(subpartitions)]
        self.in_front: list[dict[int, int]] = [{} for _ in range(subpartitions)]  # records in front of each barrier
        self.overtaken: list[dict[int, bytes]] = [{} for _ in range(subpartitions)]
        self.checkpoint_id = 0
        self.has_ended = False

    def on_barrier(self, subpartition: int, checkpoint_id: int, overtaken: bytes) -> None:
        assert checkpoint_id not in self.overtaken[subpartition], "an output told its state twice"
        self.overtaken[subpartition][checkpoint_id] = overtaken

    def write(self, record: bytes) -> None:
        if self.writer.try_emit(record):
            self.written[record[0] % len(self.written)].append(record)

    def send_barrier(self, checkpoint_id: int, alignment: Alignment, timeout_ns: int) -> None:
        for subpartition, records in enumerate(self.written):
            self.in_front[subpartition][checkpoint_id] = len(records)
        self.writer.broadcast_event(
            CheckpointBarrier(checkpoint_id, alignment=alignment, aligned_timeout_ns=timeout_ns)
        )


class Stage:
    """The task under test: its inputs, its operator (a list of what it processed), and its checkpoints."""

    def __init__(self, shape: list[int], alignment: Alignment, timed: bool, **options: Any) -> None:
        self.link = Link(segment_size_bytes=SEGMENT, producer_segments=200, consumer_segments=200, **options)
        self.alignment = alignment
        self.timeout_ns = round(TIMEOUT_S * 1e9) if timed else 0
        self.upstream = [Upstream(self.link, f"p{index}", count) for index, count in enumerate(shape)]
        self.places = [(task, subpartition) for task, count in enumerate(shape) for subpartition in range(count)]
        self.gate = self.link.open_gate([(f"p{task}", subpartition) for task, subpartition in self.places])
        self.deserializers = [deserializer() for _ in self.places]
        self.processed: list[list[bytes]] = [[] for _ in self.places]
        self.handler = BarrierHandler(
            len(self.places),
            self,
            self,
            unaligned=timed or alignment is Alignment.UNALIGNED,
            now=self.link.host.now,
            call_at=self.link.host.call_at,
        )
        self.cuts: dict[int, list[int]] = {}
        self.captured: dict[int, list[bytes]] = {}
        self.done: set[int] = set()
        self.aborted: set[int] = set()
        self.counter = 0

    # CheckpointedInputs.

    def resume(self, channel: int) -> None:
        if not self.gate.channels[channel].is_finished:
            self.gate.resume(channel)  # a second one would fail the channel, and with it the test

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        for channel, deserializer in enumerate(self.deserializers):
            if not self.gate.start_capture(channel, barrier.checkpoint_id, deserializer.unconsumed()):
                raise CannotCheckpoint(AbortReason.SUBSUMED)

    def checkpoint_stopped(self, checkpoint_id: int) -> None:
        self.captured[checkpoint_id] = [
            self.gate.take_capture(channel, checkpoint_id) for channel in range(len(self.places))
        ]

    def prioritize(self, channel: int, sequence: int) -> None:
        self.gate.prioritize(channel, sequence)

    # CheckpointTask.

    def on_barrier(self, barrier: CheckpointBarrier, alignment: AlignmentStatistics) -> None:
        assert barrier.checkpoint_id not in self.cuts, "triggered twice"
        assert barrier.checkpoint_id > max(self.cuts, default=0), "ids went back"
        self.cuts[barrier.checkpoint_id] = [len(records) for records in self.processed]

    def abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        assert checkpoint_id not in self.done
        self.aborted.add(checkpoint_id)

    def inputs_complete(self, checkpoint_id: int, alignment: AlignmentStatistics) -> None:
        """The law."""
        assert checkpoint_id not in self.done | self.aborted
        self.done.add(checkpoint_id)
        for channel, (task, subpartition) in enumerate(self.places):
            upstream = self.upstream[task]
            written = upstream.written[subpartition]
            in_front = upstream.in_front[subpartition].get(checkpoint_id)
            if in_front is None:
                assert upstream.has_ended, "complete without a barrier of every channel"
                in_front = len(written)
            state = self.captured.get(checkpoint_id, [b""] * len(self.places))[channel]
            state += upstream.overtaken[subpartition].get(checkpoint_id, b"")
            if self.alignment is Alignment.ALIGNED and not self.timeout_ns:
                assert state == b"", "an aligned checkpoint has channel state"
            whole = deserializer()
            records = whole.feed(memoryview(state)) if state else []
            assert whole.pending_bytes == 0, "the channel state ends inside a record"
            assert self.processed[channel][: self.cuts[checkpoint_id][channel]] + records == written[:in_front]

    # The script.

    def process(self, count: int) -> None:
        for _ in range(count):
            buffer = self.link.take(self.gate)
            if buffer is None:
                return
            channel, data_type, sequence = buffer.channel_index, buffer.data_type, buffer.sequence
            payload = bytes(buffer.contiguous())
            self.link.give_back(buffer)
            if data_type is DataType.DATA:
                self.processed[channel] += self.deserializers[channel].feed(memoryview(payload))
                continue
            event = decode_event(payload)
            if isinstance(event, CheckpointBarrier):
                if data_type is DataType.ANNOUNCEMENT:
                    self.handler.on_announcement(channel, event, sequence)
                else:
                    self.handler.on_barrier(channel, event)
            elif isinstance(event, CancelCheckpointMarker):
                self.handler.on_cancel(channel, event.checkpoint_id)
            elif isinstance(event, EndOfPartition):
                self.handler.on_end_of_partition(channel)
            self.link.check()

    def do(self, name: str, arguments: list[Any]) -> None:
        upstream = self.upstream[arguments[0] % len(self.upstream)] if arguments and name != "step" else None
        match name:
            case "step":
                self.link.chunk = lambda available: arguments[1]
                self.link.step(arguments[0])
            case "process":
                self.process(arguments[0])
            case "time":
                self.link.advance_time(arguments[0] / 4)
            case "barriers":  # a coordinator triggers every task, more or less at once
                newest = max(upstream.checkpoint_id for upstream in self.upstream) + 1
                for each in self.upstream:
                    self.barrier(each, newest)
            case _ if upstream is None or upstream.has_ended:
                pass
            case "write":
                self.counter += 1
                size = arguments[1]
                upstream.write(bytes([self.counter % 7]) + bytes((self.counter + at) % 251 for at in range(size)))
            case "flush":
                upstream.writer.flush()
            case "barrier":
                self.barrier(upstream, upstream.checkpoint_id + 1)
            case "cancel":
                upstream.checkpoint_id += 1
                upstream.writer.broadcast_event(CancelCheckpointMarker(upstream.checkpoint_id))
            case "output timeout":
                upstream.partition.time_out_barrier(upstream.checkpoint_id)
                self.link.check()
            case "end":
                self.end(upstream)

    def barrier(self, upstream: Upstream, checkpoint_id: int) -> None:
        if not upstream.has_ended and upstream.writer.complete_torn():
            upstream.checkpoint_id = checkpoint_id
            upstream.send_barrier(checkpoint_id, self.alignment, self.timeout_ns)

    def end(self, upstream: Upstream) -> None:
        if not upstream.has_ended:
            upstream.has_ended = True
            upstream.writer.end(drain=True)
            upstream.partition.close()

    def finish(self) -> None:
        """A last checkpoint that everybody takes part in, then the end of everything."""
        self.do("barriers", [])
        last = max(upstream.checkpoint_id for upstream in self.upstream)
        for upstream in self.upstream:
            self.end(upstream)
        self.link.chunk = lambda available: available
        for _ in range(2000):
            moved = self.link.run()
            self.process(100)
            if not moved and self.gate.is_finished:
                break
        assert self.gate.is_finished, "somebody waits for ever: a channel that was not resumed, or a lost wake-up"
        for channel, (task, subpartition) in enumerate(self.places):
            assert self.processed[channel] == self.upstream[task].written[subpartition]
        assert self.handler.statistics().pending == ()
        assert self.done.isdisjoint(self.aborted)
        if any(upstream.in_front[0].get(last) is not None for upstream in self.upstream):
            assert last in self.done | self.aborted
        self.link.close()


def run(shape: list[int], alignment: Alignment, timed: bool, options: dict[str, Any], script: list[Any]) -> Stage:
    stage = Stage(shape, alignment, timed, **options)
    for name, *arguments in script:
        stage.do(name, arguments)
    stage.finish()
    return stage


@given(shapes, links, scripts)
def test_aligned_checkpoints_cut_in_front_of_their_barriers(
    shape: list[int], options: dict[str, Any], script: list[Any]
) -> None:
    run(shape, Alignment.ALIGNED, False, options, script)


@settings(max_examples=2 * settings.default.max_examples)
@given(shapes, links, scripts)
def test_unaligned_checkpoints_hold_what_their_barriers_overtook(
    shape: list[int], options: dict[str, Any], script: list[Any]
) -> None:
    run(shape, Alignment.UNALIGNED, False, options, script)


@settings(max_examples=2 * settings.default.max_examples)
@given(shapes, links, scripts)
def test_checkpoints_that_turn_unaligned_hold_what_their_barriers_overtook(
    shape: list[int], options: dict[str, Any], script: list[Any]
) -> None:
    run(shape, Alignment.ALIGNED, True, options, script)
