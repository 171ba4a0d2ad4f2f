"""A writer with its partition, and who reads it, on a clock that tests set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netstack.base.config import NetworkConfig
from netstack.base.events import DataType
from netstack.base.ids import PartitionId, ResultPartitionType
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.outbound.partition import ResultPartition
from netstack.exchange.outbound.selector import (
    ChannelSelector,
    RebalanceSelector,
)
from netstack.exchange.outbound.writer import PartitionWriter
from netstack.exchange.record.formats import format_named
from netstack.testing.scripted import VirtualHost

SIZE = 32


def nothing() -> None:
    pass


class Refused(Exception):
    pass


class Stage:
    """A partition, its writer, and a clock."""

    def __init__(
        self,
        *,
        subpartitions: int = 1,
        selector: ChannelSelector | None = None,
        timeout_s: float | None = None,
        buffers: tuple[int, int | None] | None = None,
        segments: int = 64,
        segment_bytes: int = SIZE,
        overdraft: int = 0,
        quota: int | None = None,
        format: str = "bytes",
        as_flink: bool = False,
    ) -> None:
        self.network = NetworkBufferPool(segments, segment_bytes)
        self.host = VirtualHost(nothing)
        self.pool = self.network.create_pool(
            *(buffers or (subpartitions + 1, None)),
            subpartitions=subpartitions,
            max_buffers_per_channel=quota,
            max_overdraft=overdraft,
        )
        self.partition = ResultPartition(
            PartitionId("p"),
            ResultPartitionType.PIPELINED,
            subpartitions,
            self.pool,
            on_released=lambda partition: None,
            host=self.host,
            config=NetworkConfig.flink() if as_flink else NetworkConfig(),
        )
        self.writer = PartitionWriter(
            self.partition,
            selector=selector or RebalanceSelector(),
            format=format_named(format),
            buffer_timeout_s=timeout_s,
            refuse=Refused,
        )
        self.told = [0] * subpartitions
        for index in range(subpartitions):
            self.partition.create_view(index, self.teller(index))

    def teller(self, index: int) -> Callable[[], None]:
        def notify() -> None:
            self.told[index] += 1

        return notify

    def visible(self, subpartition: int = 0) -> bool:
        return self.partition.subpartitions[subpartition].is_available(has_credit=True)

    def read_one(self, subpartition: int = 0) -> bytes | None:
        """The next data a reader would be given, if it is told of any."""
        while self.visible(subpartition):
            buffer = self.partition.subpartitions[subpartition].poll()
            if buffer is None:
                return None
            data, kind = bytes(buffer.contiguous()), buffer.data_type
            buffer.recycle()
            if kind is DataType.DATA:
                return data
        return None

    def read(self, subpartition: int = 0) -> bytes:
        """All a reader would be given now."""
        actual = bytearray()
        while (data := self.read_one(subpartition)) is not None:
            actual += data
        return bytes(actual)

    def emit(self, record: Any) -> None:
        assert self.writer.try_emit(record)

    def emit_until_full(self, record: bytes, limit: int = 1000) -> int:
        count = 0
        while count < limit and self.writer.try_emit(record):
            count += 1
        return count


def buffers(stage: Stage, subpartition: int = 0) -> list[int]:
    """The bytes of each buffer that is in the queue, the open one included."""
    stage.writer.flush()
    actual = []
    while (data := stage.read_one(subpartition)) is not None:
        actual.append(len(data))
    return actual
