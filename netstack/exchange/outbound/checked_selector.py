"""CheckedSelector: checks what a selector of the user chooses.

Takes: a `ChannelSelector`. Gives: one whose choices are subpartitions that exist. Unchecked, the index after the last
one would send the record to every consumer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

from ...base.errors import ConfigError
from ...base.own_packages import OWN_PACKAGES
from .selector import ChannelSelector, checked_channel, checked_channels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .selector import Indices
    from .subpartition import ResultSubpartition


def checked(selector: ChannelSelector) -> ChannelSelector:
    """Returns the selector, wrapped if its class is not one of this package.

    Raises:
        ConfigError: it is not an object of a subclass of `ChannelSelector`.
    """
    if not isinstance(selector, ChannelSelector):
        raise ConfigError(
            f"selector={selector!r}; give an object of a subclass of ChannelSelector, such as RebalanceSelector(),"
            " or CustomSelector(function)"
        )
    return selector if type(selector).__module__.partition(".")[0] in OWN_PACKAGES else CheckedSelector(selector)


@final
class CheckedSelector(ChannelSelector):
    """Passes on the choices of another selector.

    Every choice raises ConfigError if it is not a whole number from 0 to `channels` - 1.
    """

    def __init__(self, selector: ChannelSelector) -> None:
        self._selector = selector
        self._rule = type(selector).__qualname__
        self.is_broadcast = selector.is_broadcast
        self.is_round_robin = selector.is_round_robin
        self.advance = selector.advance  # type: ignore[method-assign]

    def setup(self, channels: int) -> None:
        """Sets up the other selector too."""
        super().setup(channels)
        self._selector.setup(channels)

    def observe(self, subpartitions: Sequence[ResultSubpartition]) -> None:
        """Lets the other selector observe."""
        self._selector.observe(subpartitions)

    def select(self, record: Any) -> int:
        """The subpartition that the other selector chose."""
        return checked_channel(self._selector.select(record), self.channels, self._rule)

    def select_batch(self, array: NDArray[Any]) -> int | Indices:
        """The subpartitions that the other selector chose."""
        return checked_channels(self._selector.select_batch(array), len(array), self.channels, self._rule)

    def select_many(self, records: list[Any]) -> list[int] | None:
        """The subpartitions that the other selector chose."""
        chosen = self._selector.select_many(records)
        if chosen is None:
            return None
        return [checked_channel(channel, self.channels, self._rule) for channel in chosen]
