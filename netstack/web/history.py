"""What the cluster looked like during the last ten minutes.

Takes: snapshots as JSON text. Gives: them back, the oldest first, to whoever draws or saves them.

Rules: what is kept is compressed and bounded, however large the jobs are: then it reaches less far back.
"""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass
from typing import Final, final

KEPT_S: Final = 600.0
"""How far back the page can be dragged."""

MAX_BYTES: Final = 32 << 20
"""Of all that is kept, compressed."""


@dataclass(slots=True)
class _Kept:
    at: float
    until: float
    packed: bytes


@final
class History:
    """Snapshots of the last `KEPT_S` seconds; one that is like the one before is that one, seen longer.

    Attributes:
        number: how many different ones there have been: whoever has seen this one has seen all.
        last: the newest, as JSON; empty before the first.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self.number = 0
        self.last = ""
        self._max_bytes = max_bytes
        self._kept: deque[_Kept] = deque()
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
            self._kept.append(_Kept(at, at, packed))
            self._bytes += len(packed)
        while len(self._kept) > 1 and (self._kept[0].until < at - KEPT_S or self._bytes > self._max_bytes):
            self._bytes -= len(self._kept.popleft().packed)

    def document(self) -> str:
        """All of them as one JSON list of `at`, `until` (seconds since 1970) and `snapshot`."""
        parts = (
            f'{{"at":{each.at:.3f},"until":{each.until:.3f},"snapshot":{zlib.decompress(each.packed).decode()}}}'
            for each in self._kept
        )
        return f"[{','.join(parts)}]"
