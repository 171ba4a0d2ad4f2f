"""The verifier of a sink: one verifier for each source, fed by the channels that come from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy.typing as npt

from ...proof import Taker, Verifier
from ...spec import RunSpec
from ..local.worker_io import verifier_of

if TYPE_CHECKING:
    import pyarrow as pa

_Feeds: TypeAlias = list[tuple[Callable[..., None], int]]


@final
class SinkVerifier(Taker):
    """Verifies all channels of a sink: one verifier in `groups` for each source's group of channels."""

    def __init__(self, spec: RunSpec, lanes: int, lane_bases: Sequence[int]) -> None:
        """Creates the verifiers of a sink.

        Each source has this many `lanes`; `lane_bases` has for each group of channels the first of its source's lanes.
        """
        self.groups: tuple[Verifier, ...] = tuple(verifier_of(spec, lanes) for _ in lane_bases)
        channels = range(spec.channels)
        lanes_of = [
            (group, base + channel) for group, base in zip(self.groups, lane_bases, strict=True) for channel in channels
        ]
        # Bound once, because stamped records pass one by one.
        self._feed: _Feeds = [(group.feed, lane) for group, lane in lanes_of]
        self._feed_array: _Feeds = [(group.feed_array, lane) for group, lane in lanes_of]
        self._feed_arrow: _Feeds = [(group.feed_arrow, lane) for group, lane in lanes_of]

    @property
    def received_records(self) -> int:
        """Implements `Taker.received_records`."""
        return sum(group.received_records for group in self.groups)

    def feed(self, channel: int, records: Sequence[bytes | memoryview], now_ns: int | None = None) -> None:
        """Implements `Taker.feed`."""
        feed, lane = self._feed[channel]
        feed(lane, records, now_ns)

    def feed_array(self, channel: int, array: npt.NDArray[Any], now_ns: int | None = None) -> None:
        """Implements `Taker.feed_array`."""
        feed, lane = self._feed_array[channel]
        feed(lane, array, now_ns)

    def feed_arrow(self, channel: int, batch: pa.RecordBatch, now_ns: int | None = None) -> None:
        """Implements `Taker.feed_arrow`."""
        feed, lane = self._feed_arrow[channel]
        feed(lane, batch, now_ns)

    def finish(self) -> None:
        """Implements `Taker.finish`."""
        for group in self.groups:
            group.finish()
