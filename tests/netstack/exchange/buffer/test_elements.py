"""Queue elements that are events."""

from __future__ import annotations

from netstack.base.events import DataType
from netstack.exchange.buffer.elements import EventBuffer

# Events.


def test_an_event_is_built_once_from_the_heap() -> None:
    event = EventBuffer(b"\x00", DataType.END_OF_PARTITION)
    assert (event.is_finished, event.has_data(), event.unread_bytes) == (True, True, 1)
    buffer = event.build()
    assert buffer is not None
    assert (bytes(buffer.memory), buffer.data_type, buffer.segment) == (b"\x00", DataType.END_OF_PARTITION, None)
    assert event.build() is None
    assert event.unread_bytes == 0
    assert event.snapshot() == b"\x00"
    event.close()
    buffer.recycle()
