"""What TaskManagers keep for their partitions in a folder."""

from __future__ import annotations

import contextlib
from pathlib import Path


def kept_files(folder: Path, pattern: str = "*.*") -> list[Path]:
    """Such files of kept partitions. A TaskManager that leaves may take its folder away meanwhile."""
    actual: list[Path] = []
    for kept in folder.glob("netstack-shuffle-*"):
        with contextlib.suppress(FileNotFoundError):
            actual += kept.glob(pattern)
    return actual
