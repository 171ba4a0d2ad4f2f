"""Creates the deserializer of a channel from a TaskManager's settings."""

from __future__ import annotations

from ..config import NetworkConfig
from ..record.deserializer import RecordDeserializer
from ..record.formats import RecordFormat
from ..record.spill import SpillDirectory
from ..record.stream_records import StreamRecords


def new_deserializer(format: RecordFormat, spill: SpillDirectory, config: NetworkConfig) -> RecordDeserializer:
    """Returns a deserializer for one channel; the deserializers of a reader may share the format."""
    return RecordDeserializer(
        StreamRecords(format) if config.as_flink else format,
        spill=spill,
        spill_threshold_bytes=config.spill_threshold_bytes,
        max_record_bytes=config.max_record_bytes,
        accepts_runs=config.has_runs,
    )
