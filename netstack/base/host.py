"""Facts about this machine that TaskManagers report and benchmarks store."""

from __future__ import annotations

from pathlib import Path


def congestion_control() -> str | None:
    """The default congestion control of TCP connections; None where the system does not report it."""
    try:
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip() or None
    except OSError:
        return None
