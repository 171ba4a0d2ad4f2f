"""Reads one subpartition of a partition somewhere, as each of Spark's tasks does, by a connection of its own.

Takes: where it is. Gives: its records, to the end; again from where it was when the connection broke.

Rules: blocking. What is read again has to be the same: of an epoch of a `Publisher` it is. A partition that is consumed
once (pipelined) is read once: what breaks it is raised.
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


def read_subpartition(endpoint: StreamLocation, partition: str, subpartition: int, *, again: bool) -> Iterator[Any]:
    """Every record, in order.

    Args:
        endpoint: where.
        partition: its name.
        subpartition: which.
        again: whether it can be read more than once: then a lost connection is made again, and what was handed out is
            passed over.

    Raises:
        ConnectionLost, ChannelFailed, ...: what a gate raises, after `retry_s` of trying.
    """
    handed_out = 0
    last_well_s = time.monotonic()
    with endpoint.open() as network:
        while True:
            try:
                with contextlib.closing(_records(network, endpoint, partition, subpartition)) as records:
                    for at, record in enumerate(records):
                        if at >= handed_out:
                            last_well_s = time.monotonic()
                            handed_out += 1
                            yield record
                return
            except (ConnectionLost, ChannelFailed, OSError):
                if not again or time.monotonic() - last_well_s > endpoint.retry_s:
                    raise
                time.sleep(_AGAIN_S)


def _records(
    network: blocking.NetworkEnvironment, endpoint: StreamLocation, partition: str, subpartition: int
) -> Generator[Any, None, None]:
    descriptor = ChannelDescriptor(endpoint.address, partition, subpartition)
    gate = network.open_gate([descriptor])
    reader = blocking.RecordReader(gate, format=endpoint.record_format())
    try:
        while (found := reader.next_records()) is not None:
            yield from found
    finally:
        reader.close()
