"""A selector that is told where to.

Takes: a subpartition, set before each record. Gives: it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from ..outbound.selector import ChannelSelector

if TYPE_CHECKING:
    import numpy.typing as npt


@final
class TargetSelector(ChannelSelector):
    """Whatever is written goes where the writer's owner said before.

    Attributes:
        target: the subpartition.
    """

    target = 0

    def select(self, record: Any) -> int:
        """The target."""
        return self.target

    def select_batch(self, array: npt.NDArray[Any]) -> int:
        """The target, for the whole array."""
        return self.target
