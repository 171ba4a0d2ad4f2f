"""Channel state of one task in one checkpoint: the data that an unaligned barrier overtook, gathered by channel.

Takes: pieces of data as input channels and subpartitions report them. Gives: the bytes of each channel.

Rules: a capture belongs to one checkpoint; a task has as many as checkpoints are under way, and they know nothing of
each other. Pieces of a channel are kept in the order in which they were added, and joined once, when somebody asks.
Adding to a capture that was aborted, or that failed, does nothing: whoever reports data need not know. Adding to a side
that is finished is a mistake of this program, because that data would be missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

from ..errors import CheckpointError, LocalProtocolError
from .snapshot import ChannelBytes, ChannelKey

_Pieces: TypeAlias = dict[ChannelKey, list[bytes]]


@dataclass(frozen=True, slots=True)
class ChannelState:
    """What was overtaken, by channel; channels on which nothing was overtaken are left out.

    Attributes:
        inputs: by the partition and subpartition that the channel reads: what has arrived and was not processed.
        outputs: by partition and subpartition: what was not sent. It follows what `inputs` of the consumer holds.
    """

    inputs: ChannelBytes
    outputs: ChannelBytes


@dataclass(frozen=True, slots=True)
class ChannelStateStatistics:
    """A snapshot of one capture.

    Attributes:
        input_bytes: gathered from input channels, also if they were dropped since.
        output_bytes: gathered from subpartitions, likewise.
    """

    input_bytes: int
    output_bytes: int


@final
class ChannelStateCapture:
    """Gathers the channel state of one task for one checkpoint.

    Args:
        checkpoint_id: whose.
        max_bytes: of inputs and outputs together. More makes the capture fail, and nothing else.
        on_end: called once, with the capture, when both sides are finished or when it failed; not for `abort`. It is
            the last thing that the call which led to it does.
    """

    __slots__ = (
        "_failure",
        "_input_bytes",
        "_inputs",
        "_is_aborted",
        "_max_bytes",
        "_on_end",
        "_output_bytes",
        "_outputs",
        "_result",
        "_unfinished",
        "checkpoint_id",
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
        self._is_aborted = False
        self._failure: CheckpointError | None = None
        self._result: ChannelState | None = None

    @property
    def is_complete(self) -> bool:
        """Whether both sides are finished and it was not aborted."""
        return not self._unfinished and not self._is_aborted

    @property
    def is_aborted(self) -> bool:
        """Whether everything was dropped: by `abort`, or because it failed."""
        return self._is_aborted

    @property
    def failure(self) -> CheckpointError | None:
        """Why it failed by itself; the text is fit for declining the checkpoint."""
        return self._failure

    def add_input(self, channel: ChannelKey, data: bytes | memoryview) -> None:
        """Data in front of the barrier that has arrived and was not processed.

        Args:
            channel: the partition and subpartition that the input channel reads.
            data: the next bytes of it; a view is copied, `bytes` are kept.

        Raises:
            LocalProtocolError: the inputs are finished.
        """
        if self._takes("inputs"):
            self._input_bytes += len(data)
            self._add(self._inputs, channel, data)

    def add_output(self, channel: ChannelKey, data: bytes | memoryview) -> None:
        """Data in front of the barrier that was not sent yet; otherwise as `add_input`.

        Args:
            channel: partition and subpartition.
            data: the next bytes of it.

        Raises:
            LocalProtocolError: the outputs are finished.
        """
        if self._takes("outputs"):
            self._output_bytes += len(data)
            self._add(self._outputs, channel, data)

    def finish_inputs(self) -> None:
        """The barriers of all input channels have come.

        Raises:
            LocalProtocolError: called twice.
        """
        self._finish("inputs")

    def finish_outputs(self) -> None:
        """All subpartitions have reported what was overtaken.

        Raises:
            LocalProtocolError: called twice.
        """
        self._finish("outputs")

    def abort(self) -> None:
        """Drops everything, at any time; idempotent. `on_end` is not called any more."""
        self._is_aborted = True
        # Replaced, not cleared: a thread may just be joining them.
        self._inputs, self._outputs = {}, {}
        self._result = None

    def result(self) -> ChannelState | None:
        """The bytes of every channel; None unless complete. The first call joins them, and may be made in a thread."""
        if self._result is None and self.is_complete:
            joined = ChannelState(_joined(self._inputs), _joined(self._outputs))
            if self._is_aborted:
                return None  # by another thread, meanwhile
            self._inputs, self._outputs = {}, {}
            self._result = joined
        return self._result

    def statistics(self) -> ChannelStateStatistics:
        """What was gathered."""
        return ChannelStateStatistics(self._input_bytes, self._output_bytes)

    def _takes(self, side: str) -> bool:
        if self._is_aborted:
            return False
        if side not in self._unfinished:
            raise LocalProtocolError(
                f"checkpoint {self.checkpoint_id}: the {side} of its channel state are finished; add data before"
                f" finish_{side}, or to a newer checkpoint"
            )
        return True

    def _add(self, pieces: _Pieces, channel: ChannelKey, data: bytes | memoryview) -> None:
        total_bytes = self._input_bytes + self._output_bytes
        if total_bytes > self._max_bytes:
            self.abort()
            self._failure = CheckpointError(
                f"checkpoint {self.checkpoint_id}: channel state of {total_bytes} bytes and more; {self._max_bytes} is"
                " the most: raise the bound, take aligned checkpoints, or let less data be in flight"
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
