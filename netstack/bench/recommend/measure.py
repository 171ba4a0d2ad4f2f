"""Makes the runs that a recommendation needs, on two processes or on TaskManagers of the user's hosts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from ..bottleneck import bottleneck_name
from ..interval import ENOUGH_REPEATS, Interval
from ..processes import MeasurementFailed
from ..runners import RunOnce
from ..spec import RunSpec, constants_of
from ..store import flatten
from ..words import setting_text
from .search import Sample

PAYS: Final = 1.02
"""The whole interval of the throughput with more buffers must be above this multiple."""

_ROOM: Final = 1.25  # times the product of bandwidth and delay: credit comes back a little late


class Measurer:
    """Makes repeats of points; the throughput at the timeout `reference_s` counts as 100 %.

    `spec` are the settings with the chosen buffers; the timeout and the rate are set for each run. `rate_per_s` is that
    of the latency runs. `on_repeat` receives a line for each repeat. `rows` are those of every run so far.
    """

    def __init__(
        self, run: RunOnce, spec: RunSpec, reference_s: float, rate_per_s: float, on_repeat: Callable[[str], None]
    ) -> None:
        self._run = run
        self.spec = spec
        self._reference_s = reference_s
        self._rate_per_s = rate_per_s
        self._on_repeat = on_repeat
        self._repeats = 0
        self.rows: list[dict[str, Any]] = []

    def __call__(self, timeout_s: float) -> Sample:
        """One repeat: throughput at the reference and here, in an order that alternates; then latency."""
        here = replace(self.spec, buffer_timeout_s=timeout_s)
        there = replace(self.spec, buffer_timeout_s=self._reference_s)
        pair = [there] if here == there else [there, here]
        if self._repeats % 2:
            pair.reverse()
        self._repeats += 1
        rows = {spec: self._measured(spec) for spec in pair}
        paced = self._measured(replace(here, rate_per_s=self._rate_per_s))
        p99 = paced.get("latency_us_p99") or paced.get("round_trip_latency_us_p99")
        if not p99:
            raise MeasurementFailed("a paced run has no latency: it was too short; give a longer --seconds")
        sample = Sample(
            float(rows[there]["payload_mb_per_s"]),
            float(rows[here]["payload_mb_per_s"]),
            float(p99),
            bottleneck_name(rows[here]),
        )
        self._on_repeat(
            f"timeout {setting_text('buffer_timeout_s', timeout_s)}: {sample.mb_per_s:.3g} MB/s,"
            f" {sample.mb_per_s / sample.reference_mb_per_s:.0%} of that at"
            f" {setting_text('buffer_timeout_s', self._reference_s)}; p99 {sample.p99_us / 1000:.3g} ms"
        )
        return sample

    def size_buffers(self, has_time: Callable[[], bool]) -> None:
        """Sets as many floating buffers as the line holds, if the profile allows it and runs by turns show a gain."""
        plain = replace(self.spec, buffer_timeout_s=self._reference_s)
        if not plain.round_trip_s or "floating_buffers" in constants_of(plain.acts_as):
            return
        first = self._measured(plain)
        per_s = plain.link_bytes_per_s or 1e6 * float(first.get("wire_mb_per_s") or first["payload_mb_per_s"])
        under_way = math.ceil(_ROOM * per_s * plain.round_trip_s / plain.segment_size_bytes)
        missing = under_way - plain.channels * plain.exclusive_buffers
        if missing <= plain.floating_buffers + plain.spare_buffers:
            return
        wide = replace(plain, floating_buffers=missing)
        pairs: list[tuple[float, float]] = []
        while len(pairs) < ENOUGH_REPEATS and has_time():
            one, other = (float(self._measured(spec)["payload_mb_per_s"]) for spec in (plain, wide))
            pairs.append((one, other))
        result = Interval.of_pairs(pairs)
        if result is not None:
            self._on_repeat(
                f"{missing:,} floating buffers instead of {plain.floating_buffers}: {result.percent()} of the rate"
            )
            if result.low > PAYS:
                self.spec = replace(self.spec, floating_buffers=missing)

    def _measured(self, spec: RunSpec) -> dict[str, Any]:
        row = flatten({**self._run(spec), "settings": spec.as_dict()})
        if row.get("delivered") is not True:
            raise MeasurementFailed("a run did not deliver every record; its figures do not count")
        self.rows.append(row)
        return row
