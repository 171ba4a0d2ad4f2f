"""What reads the records of a channel, as a TaskManager's settings say.

Takes: a format, `NetworkConfig`. Gives: a `RecordDeserializer`.
"""

from __future__ import annotations

from ..config import NetworkConfig
from ..record.deserializer import RecordDeserializer
from ..record.formats import RecordFormat
from ..record.spill import SpillDirectory
from ..record.stream_records import StreamRecords


def new_deserializer(format: RecordFormat, spill: SpillDirectory, config: NetworkConfig) -> RecordDeserializer:
    """For one channel; the format may be shared by those of one reader."""
    return RecordDeserializer(
        StreamRecords(format) if config.as_flink else format,
        spill=spill,
        spill_threshold_bytes=config.spill_threshold_bytes,
        max_record_bytes=config.max_record_bytes,
        accepts_runs=config.has_runs,
    )
