"""What TaskManagers keep for their partitions in a folder."""

from __future__ import annotations

import contextlib
from pathlib import Path


def kept_files(folder: Path, pattern: str = "*.*") -> list[Path]:
    """Such files of kept partitions. A TaskManager that leaves may take its folder away meanwhile."""
    found: list[Path] = []
    for kept in folder.glob("netstack-shuffle-*"):
        with contextlib.suppress(FileNotFoundError):
            found += kept.glob(pattern)
    return found
