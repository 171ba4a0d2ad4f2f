"""The engines that can be measured: netstack, and the peers it is compared with in the same run.

Takes: a name. Gives: the engine's module, and the settings under which a peer does the same work.

A peer moves the same records between the same two processes with the same pacing and the same verification; only what
is in between differs.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Final, Protocol

from netstack.errors import ConfigError

from ..spec import Emit, RunSpec

PEERS: Final = ("raw", "zmq", "flight")

_ENGINES: Final = {"netstack": "bench.engine", **{name: f"bench.peers.{name}" for name in PEERS}}


class Engine(Protocol):
    """A module that moves records from a producer process to a consumer process (`bench.worker_io`)."""

    def produce(self, spec: RunSpec, io: Any) -> Any:
        """Sends what `io.next_span` hands out, and returns `Facts` when all of it is on its way; may be async."""

    def consume(self, spec: RunSpec, io: Any) -> Any:
        """Feeds `io.verifier` until the producer's end arrives, and returns `Facts`; may be async."""


def load_engine(name: str) -> Engine:
    """The module of an engine, or of `package.module`.

    Raises:
        ConfigError: no engine of this name.
        MissingExtra: it needs a package that is not installed.
    """
    path = _ENGINES.get(name, name if "." in name else None)
    if path is None:
        raise ConfigError(f"no engine {name!r}; there are {', '.join(_ENGINES)}")
    engine: Any = importlib.import_module(path)
    return engine  # type: ignore[no-any-return]


def peer_spec(name: str, spec: RunSpec) -> RunSpec:
    """The settings under which a peer does the work of `spec`: without the notions it does not have.

    Raises:
        ConfigError: the peer cannot do this work at all.
    """
    if name == "raw":
        if spec.input_path is not None:
            raise ConfigError("--peer raw moves bytes and knows no rows; leave out --input, or choose --peer zmq")
        emit: Emit = "batch" if spec.rate_per_s is None else "record"
        return dataclasses.replace(spec, channels=1, emit=emit, batch_records=None)
    if name == "zmq":
        if spec.input_path is not None and spec.emit == "arrow":
            raise ConfigError("--peer zmq sends single records; give --emit record with --input")
        return dataclasses.replace(spec, channels=1, emit="record", key_column=None)
    if name == "flight":
        return dataclasses.replace(spec, channels=1, emit="arrow", key_column=None)
    return spec
