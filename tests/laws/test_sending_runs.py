"""Buffers that were queued together are sent as single ones are: the same bytes, credit, backlog and free segments."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, strategies as st

from netstack.base.events import DataType
from netstack.exchange.buffer.buffer import BufferSource, Notify
from netstack.exchange.buffer.elements import EventBuffer
from netstack.exchange.buffer.lent import LentBuffers, take_back
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.buffer.stored import Packaging
from netstack.exchange.outbound.sender import ChannelSender
from netstack.exchange.outbound.subpartition import ResultSubpartition
from netstack.exchange.wire.codec_native import PROTOCOL_VERSION, NativeCodec
from netstack.exchange.wire.frames import AddCredit, CancelChannel, Hello, OpenChannel, Resume
from netstack.exchange.wire.greeting import FEATURE_CHECKSUM
from netstack.exchange.wire.outgoing_batch import OutgoingBatch

CHANNELS = 2
SIZE = 8

channels = st.integers(0, CHANNELS - 1)
actions = st.one_of(
    st.tuples(st.just("lend"), channels, st.integers(1, 5)),
    st.tuples(st.just("credit"), channels, st.integers(1, 6)),
    st.tuples(st.just("send"), st.just(0), st.integers(1, 200)),
    st.tuples(st.sampled_from(["collect", "collect", "collect", "take back"]), st.just(0), st.just(0)),
    st.tuples(st.sampled_from(["event", "priority", "barrier", "resume"]), channels, st.just(0)),
)


class World:
    """Subpartitions, their sender, and what the socket took; `together` says how buffers are queued."""

    def __init__(self, together: bool, *, checks: bool) -> None:
        self.together = together
        self.pool = NetworkBufferPool(16, SIZE).create_pool(16, 16)
        self.queues = [ResultSubpartition(index, lambda index: None, lambda index: None) for index in range(CHANNELS)]
        self.sender = ChannelSender(
            NativeCodec(), self, max_channels=CHANNELS, on_write_wanted=lambda: None, send=lambda frame: None
        )
        if checks:
            self.sender.on_open(Hello(PROTOCOL_VERSION, SIZE, FEATURE_CHECKSUM, "test"), FEATURE_CHECKSUM)
        for number in range(CHANNELS):
            self.sender.on_frame(OpenChannel(number, "p", number, 2))
        self.batch: OutgoingBatch | None = None
        self.wire = b""
        self.counter = 0
        self.lent: list[tuple[bytearray, list[LentBuffers]]] = []

    def open_view(
        self,
        partition_id: str,
        subpartition: int,
        notify: Notify,
        on_view: Callable[[BufferSource], None],
        on_failed: object,
        subpartitions: int = 1,
        packaging: Packaging = Packaging.PLAIN,
    ) -> Callable[[], None]:
        on_view(self.queues[subpartition].create_view(notify))
        return lambda: None

    def take_task_event(self, partition_id: str, event: object) -> bool:
        return False

    def act(self, name: str, channel: int, number: int) -> None:
        queue = self.queues[channel]
        match name:
            case "lend":
                self.lend(queue, number)
            case "credit":
                self.sender.on_frame(AddCredit(((channel, number),)))
            case "event":
                queue.add(EventBuffer(b"event %d" % self.counter, DataType.EVENT))
            case "priority":
                queue.add(EventBuffer(b"first %d" % self.counter, DataType.PRIORITY_EVENT))
            case "barrier":
                queue.add(EventBuffer(b"barrier", DataType.ALIGNED_BARRIER))
            case "resume" if queue.is_blocked:
                self.sender.on_frame(Resume(channel))
            case "collect":
                self.collect()
            case "send":
                self.send(number)
            case "take back":
                self.take_back()

    def lend(self, queue: ResultSubpartition, count: int) -> None:
        segments = self.pool.try_acquire_many(count)
        memory = bytearray((self.counter + at) % 251 for at in range(len(segments) * SIZE))
        self.counter += len(memory)
        runs = [segments] if self.together else [[segment] for segment in segments]
        self.lent.append((memory, []))
        at = 0
        for run in filter(None, runs):
            end = at + len(run) * SIZE
            element = LentBuffers((memoryview(memory)[at:end],), SIZE, run, self.pool, 0)
            self.lent[-1][1].append(element)
            queue.add_run(element)
            at = end

    def collect(self) -> None:
        if self.batch is None:
            batch = OutgoingBatch()
            self.sender.collect(batch)
            self.batch = batch if batch.pieces else None

    def send(self, count: int) -> None:
        if self.batch is not None:
            waiting = self.waiting()
            self.wire += waiting[:count]
            if self.batch.take(min(count, len(waiting))):
                self.batch = None

    def take_back(self) -> None:
        """What a cancelled writer does; its memory may change at once."""
        for memory, runs in self.lent:
            if take_back(runs) and self.batch is not None:
                self.batch.settle()
            memory[:] = b"\xee" * len(memory)

    def waiting(self) -> bytes:
        return b"" if self.batch is None else b"".join(self.batch.pieces)

    def look(self) -> tuple[object, ...]:
        return (
            self.wire,
            self.waiting(),
            self.pool.statistics(),
            self.sender.statistics(),
            [(queue.statistics(), queue.readable(), queue.queued_buffers()) for queue in self.queues],
            [all(run.is_returned for run in runs) for _, runs in self.lent],
        )


@given(st.booleans(), st.lists(actions, min_size=5, max_size=50), st.booleans())
def test_what_was_queued_together_is_sent_as_single_buffers_are(
    checks: bool, script: list[tuple[str, int, int]], is_cancelled: bool
) -> None:
    worlds = [World(together, checks=checks) for together in (False, True)]

    def both(name: str, channel: int, number: int) -> None:
        for world in worlds:
            world.act(name, channel, number)
        single, together = (world.look() for world in worlds)
        assert together == single, name

    for name, channel, number in script:
        both(name, channel, number)
    for world in worlds:
        if is_cancelled:
            for channel in range(CHANNELS):
                world.sender.on_frame(CancelChannel(channel))
        world.sender.on_closed(None)
        for queue in world.queues:
            queue.discard()
        if world.batch is not None:
            world.batch.release()
        assert world.pool.statistics().used == 0
        assert all(run.is_returned for _, runs in world.lent for run in runs)
