"""A real Flink as a peer: one warm JVM with a MiniCluster of two task managers, TCP over loopback between them.

Takes: the settings of a run. Gives: the document of the same run on Flink, with Flink's own metrics under our names.
"""

from .session import FlinkSession
from .spec import FlinkSpec

__all__ = ["FlinkSession", "FlinkSpec"]
