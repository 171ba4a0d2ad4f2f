"""Settings of a network environment as they travel with a job.

Takes: a `NetworkConfig`. Gives: a document, and a checked `NetworkConfig` from one that came.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from ..config import NetworkConfig
from ..control.codec import Plain
from ..errors import ConfigError
from ..shown import shown

BUFFER_OVERHEAD_BYTES: Final = 560
"""What Python needs for a buffer beside its bytes, once it is used (measured: 553)."""


def counted_bytes(config: NetworkConfig) -> int:
    """What a job with settings of its own takes of a TaskManager's memory: at least half of what it may really take.

    So buffers of less than 560 bytes count for more than their bytes.
    """
    overhead = config.memory_bytes // config.segment_size_bytes * BUFFER_OVERHEAD_BYTES
    return max(config.memory_bytes, overhead)


def config_document(config: NetworkConfig) -> Plain:
    """Settings as they travel."""
    return dataclasses.asdict(config)


def config_of(document: Plain) -> NetworkConfig:
    """Settings that came.

    Raises:
        ConfigError: a value cannot work, or is of another type, or a name is unknown here.
    """
    fields = {field.name: field for field in dataclasses.fields(NetworkConfig)}
    for name in document:
        if name not in fields:
            raise ConfigError(f"{shown(name, 60)} is no setting of a network")
    for field in fields.values():
        value = document.get(field.name, field.default)
        kinds = [kind for name in str(field.type).split(" | ") for kind in _CONFIG_TYPES[name]]
        if type(value) not in kinds or value != value:  # no number: it would poison every sum it is in
            raise ConfigError(f"{field.name}={shown(value, 60)} of the job's settings is no {field.type}")
    return NetworkConfig(**document)


_CONFIG_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "None": (type(None),),
}
