"""The engines that can be measured: netstack, and the peers it is compared with in the same run.

Takes: a name. Gives: the engine's module, and the settings under which a peer does the same work.

A peer moves the same records between the same two processes with the same pacing and the same verification; only what
is in between differs. A real Flink is a JVM of its own, with its own source and sinks (`netstack_bench.engines.flink`).
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Final, Protocol

from netstack.base.errors import ConfigError

from ..spec import Emit, RunSpec

PEERS: Final = ("nocredit", "plain", "raw", "zmq", "flight", "flink")

_ENGINES: Final = {
    **dict.fromkeys(("netstack", "nocredit", "plain"), ".netstack"),
    **{name: f".{name}" for name in ("raw", "zmq", "flight")},
}


class Engine(Protocol):
    """A module that moves records from a producer process to a consumer process (`places.local.worker_io`)."""

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
    engine: Any = importlib.import_module(path, __package__)
    return engine  # type: ignore[no-any-return]


def uses_timeout(name: str) -> bool:
    """Whether an engine is netstack itself, whose buffers have a timeout."""
    return _ENGINES.get(name) == _ENGINES["netstack"]


def peer_spec(name: str, spec: RunSpec) -> RunSpec:
    """The settings under which a peer does the work of `spec`: without the notions it does not have.

    Channels, credit, debloating and buffers are our own ways to do the work, so a peer goes without; a longer link or a
    slower consumer is other work, so a peer that does not have it is refused.

    Raises:
        ConfigError: the peer cannot do this work at all.
    """
    if name == "nocredit":
        if not spec.credit:
            raise ConfigError("--peer nocredit is --credit off beside --credit on; leave one of the two out")
        return dataclasses.replace(spec, credit=False)
    if name == "plain":
        if spec.transport == "tcp":
            raise ConfigError("--peer plain is --transport tcp beside another one; give --transport shm, tls or unix")
        return dataclasses.replace(spec, transport="tcp")
    if name == "flink":
        from .flink import FlinkSpec

        return FlinkSpec.of(spec)
    if name not in ("raw", "zmq", "flight"):
        return spec
    for flag, is_asked in (
        *((flag, True) for flag in spec.line_flags),
        ("--consume-rate", spec.consume_rate_per_s is not None),
        ("--checkpoints", spec.checkpoints != "none"),
        ("--memory", spec.memory_bytes is not None),
        (f"--transport {spec.transport}", spec.transport in ("tls", "shm")),
    ):
        if is_asked:
            raise ConfigError(f"--peer {name} knows no {flag}; leave out one of the two, or choose --peer nocredit")
    bare = dataclasses.replace(spec, channels=1, credit=True, debloat_s=None)
    if name == "raw":
        if spec.input_path is not None:
            raise ConfigError("--peer raw moves bytes and knows no rows; leave out --input, or choose --peer zmq")
        emit: Emit = "batch" if spec.rate_per_s is None else "record"
        return dataclasses.replace(bare, emit=emit, batch_records=None)
    if name == "zmq":
        if spec.input_path is not None and spec.emit != "record":
            raise ConfigError("--peer zmq sends single rows; give --emit record with --input")
        framed: Emit = "batch" if spec.emit == "batch" and spec.rate_per_s is None else "record"
        return dataclasses.replace(bare, emit=framed, key_column=None)
    return dataclasses.replace(bare, emit="arrow", key_column=None)
