"""A pump without its tasks: the calls that anybody may make, and whom a failure concerns."""

from __future__ import annotations

import pytest
from network.pump_stage import CODEC, HELLO, Stage

from netstack.base.errors import ConnectionLost, ErrorCode, NetstackError, RemoteProtocolError
from netstack.base.events import DataType
from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.wire.frames import AddCredit, ConnectionFailure, Goodbye
from netstack.network.connection.outgoing import OUTGOING_TRANSITIONS, OutgoingInput, OutgoingState
from netstack.network.connection.pump import SHORT_READ_BYTES


class CountedSignal:
    """Counts what a `Signal` would wake."""

    count = 0

    def wake(self) -> None:
        self.count += 1


@pytest.fixture
def stage() -> Stage:
    return Stage()


# Without tasks: the calls anybody may make.


async def test_a_hello_is_wanted_from_the_start_and_sent_first(stage: Stage) -> None:
    assert (stage.pump.is_dirty, list(stage.unsent)) == (True, [stage.pump])
    stage.pump.write_now()
    assert stage.told() == [HELLO]
    assert not stage.pump.is_dirty


async def test_data_of_a_writer_that_flushes_by_itself_wakes_no_task(stage: Stage) -> None:
    stage.open()
    woken = CountedSignal()
    stage.pump._work = woken  # type: ignore[assignment]
    stage.loop_lock.is_held = True
    stage.wanted()
    assert (woken.count, list(stage.unsent)) == (0, [stage.pump]), "it is flushed with the others"
    stage.loop_lock.is_held = False
    stage.pump.write_now()
    stage.wanted()
    assert woken.count == 1


async def test_buffers_come_back_when_they_were_sent(stage: Stage) -> None:
    stage.open()
    stage.endpoint.add(b"x" * 10)
    stage.wanted()
    assert stage.pump.is_dirty
    stage.pump.write_now()
    assert stage.endpoint.recycled == 1
    assert stage.stream.sent.endswith(b"x" * 10)


async def test_buffers_of_a_write_that_fails_come_back(stage: Stage) -> None:
    stage.open()
    stage.endpoint.add(b"x" * 10)
    stage.endpoint.add(b"y" * 10)
    stage.stream.broken = ConnectionLost("reset by peer")
    stage.wanted()
    stage.pump.write_now()
    assert stage.endpoint.recycled == 2
    assert stage.closed == [stage.stream.broken]
    assert stage.endpoint.closed == [stage.stream.broken]
    assert stage.stream.closed == 1
    assert len(stage.pump.landing) == 2


async def test_buffers_of_a_write_that_is_half_done_come_back_at_the_end(stage: Stage) -> None:
    stage.open()
    stage.endpoint.add(b"x" * 10)
    stage.endpoint.add(b"y" * 10)
    stage.stream.room = 24 + 10 + 5
    stage.wanted()
    stage.pump.write_now()
    assert stage.endpoint.recycled == 1
    stage.pump.abort(None)
    assert stage.endpoint.recycled == 2


async def test_settling_lets_lent_memory_change(stage: Stage) -> None:
    stage.open()
    memory = bytearray(b"x" * 10)
    stage.endpoint.buffers.append(Buffer(memoryview(memory), 10, DataType.DATA, stage.endpoint))
    stage.stream.room = 24 + 5
    stage.wanted()
    stage.pump.write_now()
    stage.pump.settle()
    assert stage.endpoint.recycled == 1
    memory[:] = b"y" * 10
    stage.stream.room = 100
    stage.pump._is_full = False  # what the pump's own task does once the stream is writable
    stage.pump.write_now()
    assert stage.stream.sent.endswith(b"x" * 10)
    assert stage.endpoint.recycled == 1


async def test_a_peer_that_breaks_the_protocol_is_told_why(stage: Stage) -> None:
    stage.pump.write_now()
    stage.hear(Goodbye())  # no hello before
    stage.pump.read_now()
    (error,) = stage.closed
    assert isinstance(error, RemoteProtocolError)
    failure = stage.told()[-1]
    assert isinstance(failure, ConnectionFailure)
    assert failure.code is error.code
    assert stage.pump.opened.is_set()
    assert stage.pump.error is error


async def test_an_end_without_a_goodbye_is_a_loss(stage: Stage) -> None:
    stage.open()
    stage.stream.ended = True
    stage.pump.read_now()
    (error,) = stage.closed
    assert isinstance(error, NetstackError)
    assert isinstance(error, RemoteProtocolError)
    assert error.code is ErrorCode.TRUNCATED_STREAM
    assert "without a goodbye" in str(error)


async def test_an_end_after_a_goodbye_is_none(stage: Stage) -> None:
    stage.open()
    stage.hear(Goodbye())
    stage.stream.ended = True
    stage.pump.read_now()
    stage.pump.read_now()
    assert stage.closed == [None]
    assert stage.pump.error is None


async def test_a_broken_read_closes(stage: Stage) -> None:
    stage.open()
    stage.stream.broken = ConnectionLost("reset by peer")
    stage.pump.read_now()
    assert stage.closed == [stage.stream.broken]


@pytest.mark.parametrize("cut", [0, 10], ids=["whole", "torn"])
async def test_a_write_in_the_middle_of_a_read_waits_for_its_end(stage: Stage, cut: int) -> None:
    """Credit is announced while data is taken in, and the peer has just died: the read keeps its memory."""

    stage.open()
    stage.pump.write_now()

    def announce() -> None:
        stage.stream.broken_for_writes = ConnectionLost("reset by peer")
        stage.pump.connection.send(AddCredit(((0, 1),)))
        stage.pump.write_between_reads()

    stage.endpoint.on_data = announce
    frame = CODEC.encode_buffer_header(0, DataType.DATA, 0, 0, 40, 0) + bytes(40)
    stage.stream.incoming += (frame * 3)[: len(frame) * 3 - cut]
    stage.pump.read_now()
    assert stage.endpoint.heard == (2 if cut else 3)
    assert stage.closed == [stage.stream.broken_for_writes]  # told when the read was over
    assert len(stage.pump.landing) == 2
    assert len(set(map(id, stage.pump.landing))) == 2


@pytest.mark.parametrize("stage", [Stage(answers=False)])
async def test_a_consumer_that_cannot_write_still_reads_what_has_come(stage: Stage) -> None:
    """The producer sent everything and is gone; our credit finds nobody."""

    stage.open()
    stage.stream.broken_for_writes = ConnectionLost("broken pipe")
    stage.pump.connection.send(AddCredit(((0, 1),)))
    stage.pump.write_now()
    assert stage.closed == []
    frame = CODEC.encode_buffer_header(0, DataType.DATA, 0, 0, 40, 0) + bytes(40)
    stage.stream.incoming += frame * 2
    stage.hear(Goodbye())
    stage.stream.ended = True
    stage.pump.read_now()
    stage.pump.read_now()
    assert stage.endpoint.heard == 2
    assert stage.closed == [None]


async def test_a_read_ends_with_a_long_record_so_that_its_reader_can_lend_memory_for_the_next() -> None:
    stage = Stage(answers=False, segment_bytes=SHORT_READ_BYTES)
    stage.open()
    frame = CODEC.encode_buffer_header(0, DataType.DATA, 0, 0, SHORT_READ_BYTES, 0) + bytes(SHORT_READ_BYTES)
    stage.stream.incoming += frame
    stage.pump.read_now(8)
    stage.pump.connection.place(0, memoryview(bytearray(SHORT_READ_BYTES + 1)))
    stage.stream.incoming += 4 * frame
    assert stage.pump.read_now(8) >= SHORT_READ_BYTES, "there is more"
    assert (stage.endpoint.heard, len(stage.stream.incoming)) == (3, 2 * len(frame))
    stage.pump.read_now(8)
    assert stage.endpoint.heard == 5, "its reader has lent nothing"


async def test_nothing_happens_after_the_end(stage: Stage) -> None:
    stage.pump.abort(None)
    stage.pump.abort(ConnectionLost("again"))
    stage.pump.leave()
    stage.wanted()
    stage.pump.write_now()
    stage.hear(HELLO)
    assert not stage.pump.read_now()
    assert stage.closed == [None]
    assert stage.endpoint.closed == [None]
    assert stage.stream.sent == b""


def test_our_direction_only_goes_on_and_every_input_has_its_place() -> None:
    order = list(OutgoingState)
    assert OUTGOING_TRANSITIONS.keys() == {(state, what) for state in OutgoingState for what in OutgoingInput}
    assert all(order.index(after) >= order.index(state) for (state, _), after in OUTGOING_TRANSITIONS.items())
    assert {OUTGOING_TRANSITIONS[state, OutgoingInput.CLOSE] for state in OutgoingState} == {OutgoingState.CLOSED}
    assert OUTGOING_TRANSITIONS[OutgoingState.ENDED, OutgoingInput.GOODBYE] is OutgoingState.ENDED
