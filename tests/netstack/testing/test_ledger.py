"""The laws themselves: each of them notices when it is broken, and says which channel, pool or half it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from netstack.base.events import UserEvent
from netstack.exchange.inbound.channel import RemoteInputChannel
from netstack.exchange.outbound.selector import CustomSelector
from netstack.exchange.outbound.writer import PartitionWriter
from netstack.exchange.record.formats import format_named
from netstack.testing.link import Link, Step

SEGMENT = 32


class Stage:
    """Two channels with data queued at both ends, waiting for buffers: something of everything that can go wrong."""

    def __init__(self) -> None:
        self.link = link = Link(segment_size_bytes=SEGMENT, exclusive_buffers=1, floating_buffers=2)
        self.partition = link.create_partition("p", subpartitions=2, buffers=(20, 20))
        self.gate = link.open_gate([("p", 0), ("p", 1)])
        self.writer = PartitionWriter(
            self.partition,
            selector=CustomSelector(lambda record, channels: record[0]),
            format=format_named("bytes"),
            buffer_timeout_s=None,
            refuse=BlockingIOError,
        )
        for _ in range(6):
            assert self.writer.try_emit(b"\0" + bytes(SEGMENT - 5))
            assert self.writer.try_emit(b"\1" + bytes(SEGMENT - 5))
        link.run()
        channel = self.gate.channels[0]
        assert isinstance(channel, RemoteInputChannel)
        self.channel = channel
        self.sending = link.sender._channels[0]
        link.check()


def lose_in_queue(stage: Stage) -> None:
    stage.channel.manager.queue.pop()


def move_between_channels(stage: Stage) -> None:
    """All sums stay what they were."""
    other: Any = stage.gate.channels[1]
    (own,) = (buffer for buffer in stage.channel.manager.queue if not buffer.is_floating)
    stage.channel.manager.queue.remove(own)
    other.manager.queue.append(own)


def forget_listener(stage: Stage) -> None:
    pool: Any = stage.gate.pool
    pool._listeners.clear()


def leave_line(stage: Stage) -> None:
    stage.gate._line.remove(stage.channel)
    stage.channel.is_enqueued = False


def leave_sending_line(stage: Stage) -> None:
    taken = stage.link.take(stage.gate)
    assert taken is not None
    stage.link.give_back(taken)
    stage.link.step(Step.CONSUMER_WRITES)
    stage.link.step(Step.PRODUCER_READS)
    stage.link.check()
    (sending,) = stage.link.sender._ready
    stage.link.sender._ready.clear()
    sending.is_registered = False


def stand_in_the_wrong_line(stage: Stage) -> None:
    """A priority event waits in the line of those without."""
    stage.writer.broadcast_event(UserEvent("urgent"), priority=True)
    stage.link.check()
    stage.sending.is_first = False


DAMAGES: list[tuple[Callable[[Stage], object], str]] = [
    (lambda stage: stage.link.consumer_pool.try_take(), "consumer: .* segments lent"),
    (lambda stage: stage.link.producer_pool.try_take(), "producer: .* segments lent"),
    (lambda stage: setattr(stage.channel.manager, "floating", [object()]), "is not the 1 free buffers"),
    (
        lambda stage: setattr(stage.channel.manager.credit, "unannounced", 7),
        r"unannounced 7 .* is not the 0 free buffers",
    ),
    (lambda stage: setattr(stage.sending.credit, "available", -1), "credit -1"),
    (lambda stage: setattr(stage.sending.credit, "granted", 99), "credits were lost on the way"),
    (lambda stage: stage.link._to_consumer.data.update({0: 1}), "-1 data buffers were lost on the way"),
    (lambda stage: stage.link._to_producer.credits.update({0: 3}), "-3 credits were lost on the way"),
    (lambda stage: setattr(stage.gate.pool, "_requested", -1), "a pool has"),
    (lambda stage: setattr(stage.partition.pool, "present_size", 1), "shrank below its guarantee"),
    (lambda stage: setattr(stage.partition.pool, "present_size", 99), "grew too large"),
    (lose_in_queue, "buffers are somewhere"),
    (move_between_channels, "buffers are somewhere"),
    (forget_listener, "waits for a buffer that nobody will offer"),
    (lambda stage: setattr(stage.channel.manager, "_is_waiting", False), "wants .* waits for none"),
    (leave_line, "has something to read and is not in line"),
    (lambda stage: setattr(stage.channel, "_priority_count", 1), "channel 0 .*: element 0"),
    (lambda stage: setattr(stage.partition.subpartitions[0], "_data_buffers", 0), "subpartition 0: . data buffers"),
    (lambda stage: setattr(stage.partition.subpartitions[0], "_events", 3), "subpartition 0: . events"),
    (leave_sending_line, "has something to send, 1 credits, and is not in line"),
    (stand_in_the_wrong_line, "has a priority event and stands in the ordinary line"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damage_is_noticed(damage: Callable[[Stage], object], message: str) -> None:
    stage = Stage()
    damage(stage)
    with pytest.raises(AssertionError, match=message):
        stage.link.check()


def test_a_half_notices_that_it_was_not_woken() -> None:
    stage = Stage()
    stage.writer.broadcast_event(UserEvent("urgent"), priority=True)
    stage.link._producer.is_write_wanted = False
    with pytest.raises(AssertionError, match="no write was requested"):
        stage.link.step(Step.PRODUCER_WRITES)


def test_a_half_notices_other_bytes_in_the_middle_of_a_write() -> None:
    stage = Stage()
    stage.writer.broadcast_event(UserEvent("urgent"), priority=True)
    stage.link.chunk = lambda available: 10
    stage.link.step(Step.PRODUCER_WRITES)
    batch = stage.link._producer.batch
    assert batch is not None
    batch.pieces[-1] = bytes(len(batch.pieces[-1]))
    with pytest.raises(AssertionError, match="goes on with other bytes"):
        stage.link.step(Step.PRODUCER_WRITES)
