"""Records that were encoded, and told their subpartition, in another thread than the one that writes them.

Takes: a format and a selector of the caller. Gives: their stand-ins for the `RecordWriter`, which only look up what was
decided: an item is (subpartition, payload), or (subpartition, pieces of the payload).

Why: a record may be changed once `emit` has returned, and an error of its own belongs to that call. The one decision
that is made late is `AdaptiveRebalanceSelector`'s, which looks at the load and not at the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

from ..outbound.adaptive import AdaptiveRebalanceSelector
from ..outbound.selector import ChannelSelector, Indices
from ..record.formats import Encoded, RecordFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..outbound.subpartition import ResultSubpartition

LATE: Final = -1
"""Stands for a subpartition in an item: choose when it is written."""


@final
class EncodedFormat(RecordFormat):
    """Stands for a format whose work is done."""

    def __init__(self, format: RecordFormat) -> None:
        self.name = format.name
        self.fixed_width_bytes = format.fixed_width_bytes
        self.numpy_dtype = format.numpy_dtype
        self._format = format

    def encode(self, record: Any) -> Encoded:
        """The payload of an item."""
        payload: Encoded = record[1]
        return payload

    def encode_pieces(self, record: Any) -> list[Encoded]:
        """The payload of an item, in pieces if it came so."""
        payload = record[1]
        return payload if payload.__class__ is list else [payload]

    def decode(self, view: memoryview) -> Any:
        """As the format itself."""
        return self._format.decode(view)


@final
class ChosenSelector(ChannelSelector):
    """Stands for a selector that has chosen already.

    Attributes:
        chosen: what the selector chose for the array that is written now: an index, one for each record, or, going
            round, the first; None to ask it.
        fixed: the subpartition of every record where there is no choice, or `LATE`; else None.
        choose: chooses for a record, in the caller's thread, where nothing is fixed.
    """

    def __init__(self, selector: ChannelSelector) -> None:
        self._selector = selector
        self.choose = selector.select
        self._is_late = isinstance(selector, AdaptiveRebalanceSelector)
        self.is_broadcast = selector.is_broadcast
        self.is_round_robin = selector.is_round_robin
        self.fixed: int | None = None
        self.chosen: int | Indices | None = None

    def setup(self, channels: int) -> None:
        """See `ChannelSelector.setup`."""
        super().setup(channels)
        self._selector.setup(channels)
        if channels == 1 or self.is_broadcast:
            self.fixed = 0
        elif self._is_late:
            self.fixed = LATE

    def observe(self, subpartitions: Sequence[ResultSubpartition]) -> None:
        """See `ChannelSelector.observe`."""
        self._selector.observe(subpartitions)

    def choose_batch(self, array: NDArray[Any], count: int) -> int | Indices | None:
        """Chooses for an array, in the caller's thread: what `chosen` must be while it is written."""
        if self.fixed is not None:
            return None
        return self._selector.advance(count) if self.is_round_robin else self._selector.select_batch(array)

    def select(self, record: Any) -> int:
        """The subpartition of an item."""
        slot: int = record[0]
        return self._selector.select(record) if slot == LATE else slot

    def select_batch(self, array: NDArray[Any]) -> int | Indices:
        """What was chosen for the array that is written now."""
        return self._selector.select_batch(array) if self.chosen is None else self.chosen

    def advance(self, count: int) -> int:
        """What was chosen for the array that is written now."""
        assert isinstance(self.chosen, int)
        return self.chosen
