"""Laws of a subpartition: whatever is written and read in which order, each byte arrives once, and nobody sleeps on."""

from __future__ import annotations

from collections import deque

from hypothesis import given, strategies as st

from netstack.base.events import DataType
from netstack.exchange.buffer.builder import BufferBuilder
from netstack.exchange.buffer.elements import EventBuffer
from netstack.exchange.buffer.lent import LentBuffers
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.outbound.subpartition import ResultSubpartition

SIZE = 8

actions = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 2 * SIZE)),
    st.tuples(st.just("lend"), st.integers(1, 4)),
    st.tuples(st.just("take"), st.integers(1, 5)),
    st.tuples(st.sampled_from(["finish", "flush", "event", "priority", "barrier", "poll", "poll", "read", "resume"])),
)


class Element:
    """What the model knows of one element of the queue."""

    def __init__(
        self,
        kind: DataType,
        unread: bytes = b"",
        builder: BufferBuilder | None = None,
        run: LentBuffers | None = None,
    ) -> None:
        self.kind = kind
        self.unread = bytearray(unread)
        self.builder = builder
        self.run = run

    @property
    def is_finished(self) -> bool:
        return self.builder is None


class Stage:
    """The subpartition, and a model that is as simple as can be."""

    def __init__(self) -> None:
        self.network = NetworkBufferPool(512, SIZE)
        self.pool = self.network.create_pool(512, 512)
        self.subpartition = ResultSubpartition(0, lambda index: None, lambda index: None)
        self.reader_sleeps = True
        self.subpartition.create_view(self.wake)
        self.queue: deque[Element] = deque()
        self.flushed = False
        self.blocked = False
        self.counter = 0
        self.taken = 0

    def wake(self) -> None:
        self.reader_sleeps = False

    # What the model expects.

    def available(self) -> bool:
        """Whether a poll may give something."""
        finished = sum(element.is_finished for element in self.queue)
        return not self.blocked and bool(self.queue) and (self.flushed or finished > 0)

    def backlog(self) -> int:
        if self.blocked:
            return 0
        return sum(element.kind is DataType.DATA and (element.is_finished or self.flushed) for element in self.queue)

    def check(self) -> None:
        assert self.subpartition.is_available(has_credit=True) == self.available()
        assert self.subpartition.backlog_buffers() == self.backlog()
        head_is_event = bool(self.queue) and self.queue[0].kind is not DataType.DATA
        assert self.subpartition.is_available(has_credit=False) == (head_is_event and not self.blocked)
        assert not (self.reader_sleeps and self.available()), "the reader was not told"
        statistics = self.subpartition.statistics()
        assert statistics.queued_buffers == len(self.queue)
        assert statistics.buffers_sent == self.taken
        in_queue = sum(element.kind is DataType.DATA for element in self.queue)
        assert self.pool.statistics().used == in_queue

    # The writer.

    def open(self) -> Element | None:
        return self.queue[-1] if self.queue and not self.queue[-1].is_finished else None

    def write(self, count: int) -> None:
        element = self.open()
        if element is None:
            segment = self.pool.try_acquire()
            assert segment is not None
            element = Element(DataType.DATA, builder=BufferBuilder(segment, self.pool, 0))
            assert element.builder is not None
            self.queue.append(element)
            self.subpartition.add(element.builder.create_consumer())
        assert element.builder is not None
        data = bytes((self.counter + index) % 251 for index in range(count))
        written = element.builder.append(data)
        self.counter += written
        element.unread += data[:written]
        if element.builder.capacity == element.builder.written_bytes:
            self.finish()

    def finish(self) -> None:
        element = self.open()
        if element is not None:
            assert element.builder is not None
            element.builder.finish()
            element.builder.close()
            element.builder = None
            self.subpartition.on_buffer_finished()

    def lend(self, count: int) -> None:
        """Queues buffers that are one element; the model has each of them."""
        self.finish()
        segments = self.pool.try_acquire_many(count)
        data = bytes((self.counter + index) % 251 for index in range(count * SIZE))
        self.counter += len(data)
        run = LentBuffers((memoryview(data),), SIZE, segments, self.pool, 0)
        self.queue += [Element(DataType.DATA, data[at : at + SIZE], run=run) for at in range(0, len(data), SIZE)]
        self.subpartition.add_run(run)

    def flush(self) -> None:
        if not self.flushed and self.queue:
            # A flush with nothing new to take does nothing.
            self.flushed = len(self.queue) > 1 or bool(self.queue[0].unread) or self.queue[0].kind is not DataType.DATA
        self.subpartition.flush()

    def event(self, kind: DataType, *, is_last: bool = False) -> None:
        self.finish()
        payload = b"event %d" % self.counter
        self.counter += 1
        element = Element(kind, payload)
        if kind.has_priority:
            place = sum(other.kind.has_priority for other in self.queue)
            self.queue.insert(place, element)
        else:
            self.queue.append(element)
        self.subpartition.add(EventBuffer(payload, kind), is_last=is_last)

    # The reader.

    def poll(self, most: int = 1) -> bool:
        """Takes one buffer, or up to `most` of a run, and compares. Returns whether there may be more."""
        expected: Element | None = None
        data = b""
        count = 1
        if not self.blocked:
            while self.queue and expected is None:
                head = self.queue[0]
                if len(self.queue) == 1:
                    self.flushed = False
                if head.unread:
                    expected, data = head, bytes(head.unread)
                    head.unread.clear()
                if head.is_finished:
                    self.queue.popleft()
                elif expected is None:
                    break
            while (
                expected is not None
                and expected.run is not None
                and count < most
                and self.queue
                and self.queue[0].run is expected.run
            ):
                data += self.queue.popleft().unread
                count += 1
            if not self.queue:
                self.flushed = False
        buffer = self.subpartition.poll(most, most * SIZE)
        if expected is None:
            assert buffer is None
            return False
        assert buffer is not None
        assert bytes(buffer.memory) == data
        assert buffer.data_type is expected.kind
        assert (buffer.sequence, buffer.buffers) == (self.taken, count)
        self.taken += count
        if expected.kind.blocks_upstream:
            self.blocked = True
        assert buffer.more_available == self.available()
        assert buffer.backlog == self.backlog()
        if buffer.more_available:
            assert buffer.next_is_event == (self.queue[0].kind is not DataType.DATA)
        more = buffer.more_available
        buffer.recycle()
        return more

    def read_while_told(self) -> None:
        """What every reader does: it is woken, polls while there is more, and sleeps."""
        if not self.reader_sleeps:
            while self.poll():
                self.check()
            self.reader_sleeps = True

    def resume(self) -> None:
        if self.blocked:
            self.blocked = False
            self.subpartition.resume()


@given(st.lists(actions, min_size=10, max_size=60))
def test_every_byte_once_in_order_and_never_a_lost_wake_up(script: list[tuple[str, int]]) -> None:
    stage = Stage()
    for name, *arguments in script:
        match name:
            case "write":
                stage.write(arguments[0])
            case "lend":
                stage.lend(arguments[0])
            case "take":
                if not stage.poll(arguments[0]):
                    stage.reader_sleeps = True
            case "finish":
                stage.finish()
            case "flush":
                stage.flush()
            case "event":
                stage.event(DataType.EVENT)
            case "priority":
                stage.event(DataType.PRIORITY_EVENT)
            case "barrier":
                stage.event(DataType.ALIGNED_BARRIER)
            case "poll":
                if not stage.poll():  # somebody looks without having been told
                    stage.reader_sleeps = True
            case "read":
                stage.read_while_told()
            case "resume":
                stage.resume()
        stage.check()
    stage.event(DataType.END_OF_PARTITION, is_last=True)
    while stage.queue:
        stage.resume()
        assert not stage.reader_sleeps
        stage.read_while_told()
        stage.check()
    assert stage.pool.statistics().used == 0


@given(st.lists(actions, max_size=40), st.integers(0, 40))
def test_a_release_at_any_moment_returns_every_segment(script: list[tuple[str, int]], moment: int) -> None:
    stage = Stage()
    held = []
    for name, *arguments in script[:moment]:
        match name:
            case "write":
                stage.write(arguments[0])
            case "lend":
                stage.lend(arguments[0])
            case "take":
                held.append(stage.subpartition.poll(arguments[0], arguments[0] * SIZE))
            case "flush":
                stage.flush()
            case "event":
                stage.event(DataType.EVENT)
            case "poll":
                held.append(stage.subpartition.poll())
            case _:
                stage.finish()
    stage.reader_sleeps = True
    stage.subpartition.discard()
    assert not stage.reader_sleeps
    assert stage.subpartition.poll() is None
    for buffer in held:
        if buffer is not None:
            buffer.recycle()
    for element in stage.queue:
        if element.builder is not None:
            element.builder.finish()
            element.builder.close()
    assert stage.pool.statistics().used == 0
