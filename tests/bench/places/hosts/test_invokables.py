from __future__ import annotations

from collections import Counter

import pytest
import trio

from netstack_bench.pacing import clock_ns
from netstack_bench.places.hosts.invokables import BackSelector, SourceIo
from netstack_bench.places.hosts.spec import MeshSpec


@pytest.mark.parametrize("channels", [1, 2, 4, 16, 64])
def test_every_lane_is_sampled_though_spans_are_multiples_of_their_number(channels: int) -> None:
    spec = MeshSpec(hosts=("a:1", "b:1"), channels=channels, records=16_384 * 40 * channels)

    async def main() -> Counter[int]:
        io = SourceIo(spec)
        io.sampler._interval_ns = 0
        io.begin(clock_ns(), spins=False)
        while await io.next_span_async() is not None:
            await trio.lowlevel.checkpoint()
        assert io.sent_records == spec.records
        assert io.stopped_ns > 0
        return Counter((io.sampler.samples()[0] % spec.lanes).tolist())

    lanes = trio.run(main)
    assert len(lanes) == spec.lanes
    assert max(lanes.values()) <= 3 * min(lanes.values())


def test_a_paced_source_takes_no_samples() -> None:
    spec = MeshSpec(hosts=("a:1",), records=20, rate_per_s=1e5)

    async def main() -> SourceIo:
        io = SourceIo(spec)
        io.begin(clock_ns(), spins=False)
        while await io.next_span_async() is not None:
            pass
        return io

    io = trio.run(main)
    assert io.sent_records == 20
    assert len(io.sampler.samples()[0]) == 0


def test_a_relay_answers_on_the_channel_it_was_asked_on() -> None:
    selector = BackSelector()
    selector.setup(8)
    selector.target = 5
    assert selector.select(b"") == 5
