"""What a cluster looked like: the last ten minutes of the page, or all of a recording (`recording`).

Takes: snapshots as JSON text. Gives: them back, the oldest first, to whoever draws them.

Rules: what is kept is compressed and bounded, however large the jobs are: then it reaches less far back.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from ..json_text import json_text

KEPT_S: Final = 600.0
"""How far back the page can be dragged."""

MAX_BYTES: Final = 8 << 20
"""Of all that is kept, compressed: some twenty times as much as text."""


@dataclass(slots=True)
class Kept:
    """A snapshot, compressed, and the time for which it was true: seconds since 1970."""

    at: float
    until: float
    packed: bytes


@final
class History:
    """Snapshots of the last `kept_s` seconds; one that is like the one before is that one, seen longer.

    Attributes:
        number: how many different ones there have been: whoever has seen this one has seen all.
        last: the newest, as JSON; empty before the first.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES, kept_s: float = KEPT_S) -> None:
        self.number = 0
        self.last = ""
        self._max_bytes = max_bytes
        self._kept_s = kept_s
        self._kept: deque[Kept] = deque()
        self._bytes = 0

    def add(self, at: float, text: str) -> None:
        """Keeps a snapshot.

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
        """Keeps a snapshot that was seen for a while."""
        self.add(at, text)
        self._kept[-1].until = until

    def kept(self) -> Sequence[Kept]:
        """All of them, the oldest first; they do not change any more, but for the `until` of the last."""
        return tuple(self._kept)

    @staticmethod
    def text(kept: Sequence[Kept]) -> str:
        """Entries as one JSON list of `at`, `until` (seconds since 1970) and `snapshot`."""
        return f"[{','.join(map(entry_text, kept))}]"


def snapshot_text(snapshot: Mapping[str, Any]) -> str:
    """A snapshot as JSON, whatever sinks and TaskManagers put into it."""
    return json_text(snapshot, compact=True)


def entry_text(kept: Kept) -> str:
    """One of them as JSON: `at`, `until`, `snapshot`."""
    return f'{{"at":{kept.at:.3f},"until":{kept.until:.3f},"snapshot":{zlib.decompress(kept.packed).decode()}}}'
