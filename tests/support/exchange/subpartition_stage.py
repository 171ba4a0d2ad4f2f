"""A subpartition with its writer and reader, on a small pool."""

from __future__ import annotations

from netstack.base.events import (
    Alignment,
    CheckpointBarrier,
    Event,
    UserEvent,
    data_type_of,
    encode_event,
)
from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.buffer.builder import BufferBuilder
from netstack.exchange.buffer.elements import EventBuffer
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.outbound.subpartition import ResultSubpartition

SIZE = 16
EVENT = UserEvent("e")
UNALIGNED = CheckpointBarrier(2, alignment=Alignment.UNALIGNED)


class Stage:
    """A subpartition with a pool, a view, and a count of notifications."""

    def __init__(self, *, view: bool = True) -> None:
        self.network = NetworkBufferPool(16, SIZE)
        self.pool = self.network.create_pool(16, 16)
        self.log: list[str] = []
        self.told = 0
        self.subpartition = ResultSubpartition(
            3,
            lambda index: self.log.append(f"consumed {index}"),
            lambda index: self.log.append(f"acknowledged {index}"),
            lambda index, checkpoint_id, data: self.log.append(f"{checkpoint_id} overtook {data!r} of {index}"),
        )
        self.view: ResultSubpartition | None = None
        self.taken: list[Buffer] = []
        if view:
            self.open_view()

    def open_view(self) -> ResultSubpartition:
        self.view = self.subpartition.create_view(self.notify)
        return self.view

    def notify(self) -> None:
        self.told += 1

    def add_open(self, data: bytes = b"") -> BufferBuilder:
        """An open buffer in the queue from its first byte on."""
        segment = self.pool.try_acquire()
        assert segment is not None
        builder = BufferBuilder(segment, self.pool, 0)
        self.subpartition.add(builder.create_consumer())
        builder.append(data)
        return builder

    def finish(self, builder: BufferBuilder) -> None:
        builder.finish()
        builder.close()
        self.subpartition.on_buffer_finished()

    def add_finished(self, data: bytes) -> None:
        self.finish(self.add_open(data))

    def add_event(self, event: Event = EVENT, *, is_last: bool = False) -> bool:
        element = EventBuffer(encode_event(event), data_type_of(event))
        return self.subpartition.add(element, is_last=is_last)

    def poll(self) -> tuple[bytes, int, bool] | None:
        """(bytes, backlog, more available) of the next buffer."""
        buffer = self.subpartition.poll()
        if buffer is None:
            return None
        result = bytes(buffer.memory), buffer.backlog, buffer.more_available
        buffer.recycle()
        return result

    def is_available(self) -> bool:
        return self.subpartition.is_available(has_credit=True)

    def backlog(self) -> int:
        return self.subpartition.backlog_buffers()

    def assert_all_home(self) -> None:
        assert self.pool.statistics().used == 0
