"""Rounds of flushes: whoever reads what he is told of gets everything in order, and nothing later than the timeout."""

from __future__ import annotations

from exchange.writer_stage import Refused, Stage
from hypothesis import event, given, settings, strategies as st

from netstack.base.events import DataType, UserEvent
from netstack.exchange.outbound.selector import RebalanceSelector
from netstack.exchange.outbound.staging import FROM_CHANNELS
from netstack.exchange.record.deserializer import RecordDeserializer
from netstack.exchange.record.formats import format_named
from netstack.exchange.record.spill import SpillDirectory

CHANNELS = FROM_CHANNELS
TIMEOUT_S = 0.1

_steps = st.one_of(
    st.tuples(st.just("emit"), st.integers(1, 6 * CHANNELS), st.sampled_from((0, 4, 8, 40))),
    st.tuples(st.just("emit"), st.integers(2 * CHANNELS, 20 * CHANNELS), st.just(8)),
    st.tuples(st.just("emit"), st.integers(2 * CHANNELS, 20 * CHANNELS), st.just(8)),
    st.tuples(st.just("read"), st.integers(0, CHANNELS - 1), st.integers(1, CHANNELS)),
    st.tuples(st.just("read"), st.just(0), st.just(CHANNELS)),
    st.tuples(st.just("pass"), st.sampled_from((1, 5, 10, 11, 30)), st.just(0)),
    st.tuples(st.just("pass"), st.just(10), st.just(0)),
    st.tuples(st.just("flush"), st.just(0), st.just(0)),
    st.tuples(st.just("event"), st.just(0), st.just(0)),
    st.tuples(st.just("look"), st.just(0), st.just(0)),
)


class _Run:
    """A writer, and readers that read only what they are told of."""

    def __init__(self, segment_bytes: int) -> None:
        self.stage = Stage(
            subpartitions=CHANNELS,
            selector=RebalanceSelector(),
            timeout_s=TIMEOUT_S,
            buffers=(CHANNELS + 1, 4 * CHANNELS),
            segments=4 * CHANNELS + 2,
            segment_bytes=segment_bytes,
        )
        self.written: list[list[tuple[float, bytes]]] = [[] for _ in range(CHANNELS)]
        self.taken: list[list[bytes]] = [[] for _ in range(CHANNELS)]
        spill = SpillDirectory(None)
        self._deserializers = [
            RecordDeserializer(format_named("bytes"), spill=spill, spill_threshold_bytes=1 << 20)
            for _ in range(CHANNELS)
        ]
        self._heard = [0] * CHANNELS
        self._next = 0
        self._refused: bytes | None = None

    @property
    def has_rounds(self) -> bool:
        return self.stage.writer.buffers.in_rounds

    def emit(self, count: int, size: int) -> None:
        now = self.stage.host.now()
        for _ in range(count):
            record = self._refused
            if record is None:
                record = ((self._next * 2654435761 % (1 << 64)).to_bytes(8, "big") * 5)[:size]
            try:
                self.stage.writer.emit_nowait(record)
            except Refused:
                self._refused = record
                return
            self._refused = None
            self.written[self._next % CHANNELS].append((now, record))
            self._next += 1

    def read(self, channel: int) -> None:
        """As a sender with credit does: from a notification on, until nothing more is available."""
        if self.stage.told[channel] == self._heard[channel]:
            return
        self._heard[channel] = self.stage.told[channel]
        while (buffer := self.stage.partition.subpartitions[channel].poll()) is not None:
            if buffer.data_type is DataType.DATA:
                self.taken[channel] += self._deserializers[channel].feed(buffer.contiguous())
            is_more = buffer.more_available
            buffer.recycle()
            if not is_more:
                break

    def check(self, channel: int) -> None:
        """What was read, or could be, is the beginning of what was written, and all that is older than the timeout."""
        due = self.stage.host.now() - TIMEOUT_S
        taken = self.taken[channel]
        assert taken == [record for _, record in self.written[channel][: len(taken)]]
        assert len(taken) >= sum(when <= due + 1e-9 for when, _ in self.written[channel])


@settings(max_examples=3 * settings.default.max_examples)
@given(
    steps=st.lists(_steps, min_size=2, max_size=25),
    segment_bytes=st.sampled_from((64, 200, 1000)),
    is_in_a_hurry=st.sampled_from((True, True, True, False)),
)
def test_nothing_is_lost_or_late(steps: list[tuple[str, int, int]], segment_bytes: int, is_in_a_hurry: bool) -> None:
    run = _Run(segment_bytes)
    stage = run.stage
    if is_in_a_hurry:
        run.emit((segment_bytes // 12 - 1) * CHANNELS, 8)
        stage.host.advance(TIMEOUT_S)
    for what, one, two in steps:
        if what == "emit":
            run.emit(one, two)
        elif what == "read":
            for index in range(one, one + two):
                run.read(index % CHANNELS)
                run.check(index % CHANNELS)
        elif what == "pass":
            stage.host.advance(one / 100)
        elif what == "flush":
            stage.writer.flush()
        elif what == "event":
            stage.writer.broadcast_event(UserEvent("e", b""))
        else:
            stage.partition.statistics()
        event(f"rounds: {run.has_rounds}")
    stage.host.advance(TIMEOUT_S)
    for _ in range(2):  # who was held up by a full pool writes on, and that is due later
        for channel in range(CHANNELS):
            run.read(channel)
            run.check(channel)
        stage.host.advance(3 * TIMEOUT_S)
    assert not run.has_rounds
    assert not stage.host.pending_calls, "a writer that is idle waits for nothing"


def test_a_writer_in_a_hurry_arms_one_deadline_for_all() -> None:
    run = _Run(1000)
    run.emit(CHANNELS, 8)
    for channel in range(CHANNELS):
        run.read(channel)
    run.emit(9 * CHANNELS, 8)
    assert not run.has_rounds
    assert run.stage.host.pending_calls == 1, "deadlines that fall close together are served together"
    run.stage.host.advance(TIMEOUT_S)
    assert run.has_rounds
    assert run.stage.host.pending_calls == 1
    run.read(0)
    assert len(run.taken[0]) == 10
    run.emit(3 * CHANNELS, 8)
    run.read(1)
    assert len(run.taken[1]) == 10, "what is staged since the round stays where it is"
    assert run.stage.host.pending_calls == 1
    run.stage.host.advance(TIMEOUT_S)
    for channel in (0, 1, 2):
        run.read(channel)
        assert len(run.taken[channel]) == 13


def test_rounds_end_when_there_is_little_to_flush_and_a_record_has_its_own_deadline_again() -> None:
    run = _Run(1000)
    run.emit(CHANNELS, 8)
    for channel in range(CHANNELS):
        run.read(channel)
    run.emit(9 * CHANNELS, 8)
    run.stage.host.advance(TIMEOUT_S)
    assert run.has_rounds
    for channel in range(CHANNELS):
        run.read(channel)
    run.stage.host.advance(TIMEOUT_S)
    assert not run.has_rounds
    assert not run.stage.host.pending_calls
    run.emit(1, 8)
    assert run.stage.host.pending_calls == 1
    run.stage.host.advance(TIMEOUT_S)
    run.read(0)
    assert len(run.taken[0]) == 11
