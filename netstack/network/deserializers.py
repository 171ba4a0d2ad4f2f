"""Creates the deserializers of a gate's channels from a TaskManager's settings.

Takes: formats, `NetworkConfig`. Gives: a `RecordDeserializer` for each channel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..base.config import NetworkConfig
from ..exchange.inbound.gate import SingleInputGate
from ..exchange.inbound.union import UnionInputGate
from ..exchange.record.deserializer import RecordDeserializer
from ..exchange.record.formats import RecordFormat
from ..exchange.record.spill import SpillDirectory
from ..exchange.record.stream_records import StreamRecords

D = TypeVar("D")


def for_channels(gate: SingleInputGate | UnionInputGate, make: Callable[[], D]) -> list[D]:
    """Returns an object for each channel. The list of a union grows when a missing gate is added."""
    made: list[D] = []

    def grow() -> None:
        made.extend(make() for _ in range(gate.channel_count - len(made)))

    grow()
    if isinstance(gate, UnionInputGate):
        gate.on_added = grow
    return made


def new_deserializer(format: RecordFormat, spill: SpillDirectory, config: NetworkConfig) -> RecordDeserializer:
    """Returns a deserializer for one channel; the deserializers of a reader may share the format."""
    return RecordDeserializer(
        StreamRecords(format) if config.as_flink else format,
        spill=spill,
        spill_threshold_bytes=config.spill_threshold_bytes,
        max_record_bytes=config.max_record_bytes,
        accepts_runs=config.has_runs,
    )
