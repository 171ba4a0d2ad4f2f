"""The wire dialects by name: netstack's own, and Flink's.

Takes: a name. Gives: one codec for each connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...base.config import FLINK_DIALECT, NATIVE_DIALECT
from ...base.errors import ConfigError
from .codec import Codec
from .codec_native import NativeCodec
from .flink_consumer import FlinkConsumerCodec
from .flink_producer import FlinkProducerCodec

NATIVE: Final = NATIVE_DIALECT
FLINK: Final = FLINK_DIALECT


@dataclass(frozen=True, slots=True)
class Dialect:
    """The wire protocol of one TaskManager's connections.

    Attributes:
        name: its name for `dialect_named`.
        producer_codec: creates the codec of an accepted connection.
        consumer_codec: creates the codec of a dialled connection.
    """

    name: str
    producer_codec: Callable[[], Codec]
    consumer_codec: Callable[[], Codec]


def dialect_named(name: str, *, segment_size_bytes: int, new_id: Callable[[], bytes]) -> Dialect:
    """The dialect of this name.

    Args:
        name: `NATIVE` or `FLINK`.
        segment_size_bytes: segment size of this TaskManager.
        new_id: returns 16 random bytes, for a channel.

    Raises:
        ConfigError: unknown dialect.
    """
    if name == NATIVE:
        codec = NativeCodec(segment_size_bytes)  # has no state of a connection
        return Dialect(name, lambda: codec, lambda: codec)
    if name == FLINK:
        return Dialect(
            name,
            lambda: FlinkProducerCodec(segment_size_bytes),
            lambda: FlinkConsumerCodec(new_id, segment_size_bytes),
        )
    raise ConfigError(f"dialect {name!r}; give {NATIVE!r} or {FLINK!r}")
