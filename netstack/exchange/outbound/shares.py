"""The shares of a small batch that goes to many subpartitions, on their way into the open buffers.

Takes: the payloads of a batch, grouped by slot. Gives: the next share to write.
"""

from __future__ import annotations

from typing import final

from ..record.framing import PREFIX_BYTES, RUN_HEAD_BYTES, head_of


@final
class Shares:
    """The shares of a batch, in the order of writing.

    Attributes:
        width: bytes of each payload.
        has_runs: whether shares are runs; else they are cells.
        body: the payloads of all shares, or their cells; owned by this object.
        offset: where the bytes of the next share begin.
    """

    __slots__ = ("body", "counts", "has_runs", "index", "offset", "slots", "width")

    def __init__(self, slots: list[int], counts: list[int], width: int, has_runs: bool, body: memoryview) -> None:
        self.slots = slots
        self.counts = counts
        self.width = width
        self.has_runs = has_runs
        self.body = body
        self.index = 0
        self.offset = 0

    @property
    def next_bytes(self) -> int:
        """Framed bytes of the next share."""
        count = self.counts[self.index]
        if not self.has_runs:
            return count * (self.width + PREFIX_BYTES)
        return count * self.width + (PREFIX_BYTES if count == 1 else RUN_HEAD_BYTES)

    def take(self) -> bytes:
        """Takes the next share, framed."""
        count = self.counts[self.index]
        head = head_of(count, self.width) if self.has_runs else b""
        end = self.offset + self.next_bytes - len(head)
        framed = b"".join((head, self.body[self.offset : end]))
        self.index += 1
        self.offset = end
        return framed
