"""Gathers the channel state of one task in one checkpoint: the data that unaligned barriers overtook, by channel.

Takes: pieces of data from input channels and subpartitions. Gives: the bytes of each channel.

Rules: a capture belongs to one checkpoint; a task has one capture per checkpoint in progress. Pieces of a channel are
kept in order, and joined once, by `result`. Adding to an aborted or failed capture does nothing. Adding to a finished
side is a programming error, because that data would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

from ...base.errors import CheckpointError, LocalProtocolError
from .snapshot import ChannelBytes, ChannelKey

_Pieces: TypeAlias = dict[ChannelKey, list[bytes]]


@dataclass(frozen=True, slots=True)
class ChannelState:
    """Overtaken data by channel; channels without overtaken data are omitted.

    Attributes:
        inputs: data that had arrived but was not processed, by the partition and subpartition that the channel reads.
        outputs: data that was not sent, by partition and subpartition. It follows the consumer's `inputs`.
    """

    inputs: ChannelBytes
    outputs: ChannelBytes


@dataclass(frozen=True, slots=True)
class ChannelStateStatistics:
    """A snapshot of one capture.

    Attributes:
        input_bytes: bytes gathered from input channels, including dropped ones.
        output_bytes: bytes gathered from subpartitions, including dropped ones.
    """

    input_bytes: int
    output_bytes: int


@final
class ChannelStateCapture:
    """Gathers the channel state of one task for one checkpoint.

    Args:
        max_bytes: maximum size of inputs and outputs together; the capture fails beyond it.
        on_end: called once, with the capture, when both sides are finished or the capture has failed; not after
            `abort`. It is the last action of the call that leads to it.
    """

    __slots__ = (
        "_input_bytes",
        "_inputs",
        "_max_bytes",
        "_on_end",
        "_output_bytes",
        "_outputs",
        "_result",
        "_unfinished",
        "checkpoint_id",
        "failure",
        "is_aborted",
    )

    def __init__(self, checkpoint_id: int, *, max_bytes: int, on_end: Callable[[ChannelStateCapture], None]) -> None:
        self.checkpoint_id = checkpoint_id
        self._max_bytes = max_bytes
        self._on_end = on_end
        self._inputs: _Pieces = {}
        self._outputs: _Pieces = {}
        self._input_bytes = 0
        self._output_bytes = 0
        self._unfinished = {"inputs", "outputs"}
        self.is_aborted = False
        """Whether the data was dropped, by `abort` or because the capture failed."""
        self.failure: CheckpointError | None = None
        """Why the capture failed; the text is the reason for declining the checkpoint."""
        self._result: ChannelState | None = None

    @property
    def is_complete(self) -> bool:
        """Whether both sides are finished and it was not aborted."""
        return not self._unfinished and not self.is_aborted

    def add_input(self, channel: ChannelKey, data: bytes | memoryview) -> None:
        """Adds data before the barrier that had arrived but was not processed.

        Args:
            channel: the partition and subpartition that the input channel reads.
            data: the next bytes of the channel; a view is copied, `bytes` are kept.

        Raises:
            LocalProtocolError: the inputs are finished.
        """
        if self._takes("inputs"):
            self._input_bytes += len(data)
            self._add(self._inputs, channel, data)

    def add_output(self, channel: ChannelKey, data: bytes | memoryview) -> None:
        """Adds data before the barrier that was not sent yet.

        Raises:
            LocalProtocolError: the outputs are finished.
        """
        if self._takes("outputs"):
            self._output_bytes += len(data)
            self._add(self._outputs, channel, data)

    def finish_inputs(self) -> None:
        """The barriers of all input channels have arrived. Raises LocalProtocolError if called twice."""
        self._finish("inputs")

    def finish_outputs(self) -> None:
        """All subpartitions have reported their overtaken data. Raises LocalProtocolError if called twice."""
        self._finish("outputs")

    def abort(self) -> None:
        """Drops all data, at any time. Idempotent. `on_end` is not called afterwards."""
        self.is_aborted = True
        # Replaced, not cleared, since a thread may be joining them.
        self._inputs, self._outputs = {}, {}
        self._result = None

    def result(self) -> ChannelState | None:
        """The bytes of every channel; None unless complete. The first call joins the pieces; it may run in a thread."""
        if self._result is None and self.is_complete:
            joined = ChannelState(_joined(self._inputs), _joined(self._outputs))
            if self.is_aborted:
                return None  # aborted by another thread meanwhile
            self._inputs, self._outputs = {}, {}
            self._result = joined
        return self._result

    def statistics(self) -> ChannelStateStatistics:
        """A snapshot of the gathered sizes."""
        return ChannelStateStatistics(self._input_bytes, self._output_bytes)

    def _takes(self, side: str) -> bool:
        if self.is_aborted:
            return False
        if side not in self._unfinished:
            raise LocalProtocolError(
                f"checkpoint {self.checkpoint_id}: the {side} of its channel state are finished; add data before"
                f" calling finish_{side}"
            )
        return True

    def _add(self, pieces: _Pieces, channel: ChannelKey, data: bytes | memoryview) -> None:
        total_bytes = self._input_bytes + self._output_bytes
        if total_bytes > self._max_bytes:
            self.abort()
            self.failure = CheckpointError(
                f"checkpoint {self.checkpoint_id}: its channel state has at least {total_bytes} bytes, the maximum is"
                f" {self._max_bytes}: raise the limit, take aligned checkpoints, or reduce the data in flight"
            )
            self._on_end(self)
        elif data:
            pieces.setdefault(channel, []).append(bytes(data))

    def _finish(self, side: str) -> None:
        if self._takes(side):
            self._unfinished.discard(side)
            if not self._unfinished:
                self._on_end(self)


def _joined(pieces: _Pieces) -> ChannelBytes:
    return {channel: b"".join(parts) for channel, parts in pieces.items()}
