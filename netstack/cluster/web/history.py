"""History of cluster snapshots: the last ten minutes for the page, or all of a recording (`recording`).

Takes: snapshots as JSON text. Gives: the stored snapshots, oldest first.

Rules: snapshots are compressed, and their total size is bounded: with large jobs the history covers less time.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from ...base.text.json_text import json_text

KEPT_S: Final = 600.0
"""How far back the time slider of the page reaches."""

MAX_BYTES: Final = 8 << 20
"""Limit of all compressed snapshots; as text they are about twenty times as long."""


@dataclass(slots=True)
class Kept:
    """A compressed snapshot and the period in which it was current, in seconds since 1970."""

    at: float
    until: float
    packed: bytes


@final
class History:
    """The snapshots of the last `kept_s` seconds; a repeated snapshot extends the period of the previous one.

    Attributes:
        number: number of different snapshots so far; readers compare it to detect a change.
        last: the newest snapshot as JSON; empty before the first.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES, kept_s: float = KEPT_S) -> None:
        self.number = 0
        self.last = ""
        self._max_bytes = max_bytes
        self._kept_s = kept_s
        self._kept: deque[Kept] = deque()
        self._bytes = 0

    def add(self, at: float, text: str) -> None:
        """Stores a snapshot.

        Args:
            at: seconds since 1970.
            text: a JSON document.
        """
        if text == self.last:
            self._kept[-1].until = at
        else:
            self.number += 1
            self.last = text
            packed = zlib.compress(text.encode(), 1)
            self._kept.append(Kept(at, at, packed))
            self._bytes += len(packed)
        while len(self._kept) > 1 and (self._kept[0].until < at - self._kept_s or self._bytes > self._max_bytes):
            self._bytes -= len(self._kept.popleft().packed)

    def extend(self, at: float, until: float, text: str) -> None:
        """Stores a snapshot that was current from `at` to `until`."""
        self.add(at, text)
        self._kept[-1].until = until

    def kept(self) -> Sequence[Kept]:
        """Returns all snapshots, oldest first; only the `until` of the last one may still change."""
        return tuple(self._kept)

    @staticmethod
    def text(kept: Sequence[Kept]) -> str:
        """Returns snapshots as one JSON list of `at`, `until` (seconds since 1970) and `snapshot`."""
        return f"[{','.join(map(entry_text, kept))}]"


def snapshot_text(snapshot: Mapping[str, Any]) -> str:
    """Returns a snapshot as JSON; tolerates any values from sinks and TaskManagers."""
    return json_text(snapshot, compact=True)


def entry_text(kept: Kept) -> str:
    """Returns one stored snapshot as JSON: `at`, `until`, `snapshot`."""
    return f'{{"at":{kept.at:.3f},"until":{kept.until:.3f},"snapshot":{zlib.decompress(kept.packed).decode()}}}'
