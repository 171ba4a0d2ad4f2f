"""A real Flink as a peer: one warm JVM with a MiniCluster of two task managers, TCP over loopback between them."""

from .session import FlinkSession
from .spec import FlinkSpec

__all__ = ["FlinkSession", "FlinkSpec"]
