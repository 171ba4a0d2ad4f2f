"""Reads one subpartition of a partition somewhere, as each of Spark's tasks does, by a connection of its own.

Takes: where it is. Gives: its records, to the end; of an epoch of a `Publisher` again from where it was when the
connection broke. Any other partition is read once: what breaks it is raised.

Rules: blocking.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from .. import blocking
from ..config import NATIVE_DIALECT, NetworkConfig
from ..errors import ChannelFailed, ConnectionLost
from ..ids import ChannelDescriptor
from ..record.flink import value_format_named
from ..record.formats import RecordFormat, format_named
from ..runtime.authentication import Secret
from .stream_request import EpochRequest

_AGAIN_S: Final = 0.2
_LISTEN: Final = "tcp://127.0.0.1:0"  # nobody reads from a consumer
_FLINK: Final = "flink-"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLocation:
    """Where a stream is, and how to speak to it.

    Attributes:
        address: of the producing TaskManager.
        format: of its records.
        dialect: of its connections.
        segment_size_bytes: as it has it.
        secret_file: what both share; None for no secret.
        retry_s: how long a lost connection is tried again.
    """

    address: str
    format: str = "arrow"
    dialect: str = NATIVE_DIALECT
    segment_size_bytes: int = 32 * 1024
    secret_file: str | None = None
    retry_s: float = 60.0

    def open(self) -> blocking.NetworkEnvironment:
        """A network environment that can read there."""
        config = NetworkConfig(dialect=self.dialect, segment_size_bytes=self.segment_size_bytes)
        secret = None if self.secret_file is None else Secret.from_file(Path(self.secret_file))
        return blocking.open_network(_LISTEN, config, secret=secret)

    def record_format(self) -> RecordFormat:
        """A new format object."""
        name = self.format
        return value_format_named(name.removeprefix(_FLINK)) if name.startswith(_FLINK) else format_named(name)


def read_subpartition(endpoint: StreamLocation, partition: str, subpartition: int) -> Iterator[Any]:
    """Every record, in order.

    Args:
        endpoint: where.
        partition: its name.
        subpartition: which.

    Raises:
        ConnectionLost, ChannelFailed, ...: what a gate raises.
    """
    with endpoint.open() as network:
        yield from _records(network, endpoint, ChannelDescriptor(endpoint.address, partition, subpartition))


def read_epoch(endpoint: StreamLocation, stream: str, epoch: int, subpartition: int) -> Iterator[Any]:
    """Every record of an epoch that a `Publisher` offers, in order.

    A lost connection is made again, and what was handed out is passed over.

    Args:
        endpoint: where.
        stream: its name.
        epoch: its number.
        subpartition: which.

    Raises:
        ConnectionLost, ChannelFailed, ...: what a gate raises, after `retry_s` of trying.
    """
    handed_out = 0
    last_well_s = time.monotonic()
    with endpoint.open() as network:
        while True:
            wanted = ChannelDescriptor(endpoint.address, EpochRequest(stream, epoch, subpartition).partition(), 0)
            try:
                with contextlib.closing(_records(network, endpoint, wanted)) as records:
                    for at, record in enumerate(records):
                        if at >= handed_out:
                            last_well_s = time.monotonic()
                            handed_out += 1
                            yield record
                return
            except (ConnectionLost, ChannelFailed, OSError):
                if time.monotonic() - last_well_s > endpoint.retry_s:
                    raise
                time.sleep(_AGAIN_S)


def _records(
    network: blocking.NetworkEnvironment, endpoint: StreamLocation, channel: ChannelDescriptor
) -> Generator[Any, None, None]:
    reader = blocking.RecordReader(network.open_gate([channel]), format=endpoint.record_format())
    try:
        while (found := reader.next_records()) is not None:
            yield from found
    finally:
        reader.close()
