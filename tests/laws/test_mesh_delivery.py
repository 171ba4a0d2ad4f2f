"""Laws of the proof of delivery among many: whole deliveries pass, any one change to them does not."""

from __future__ import annotations

import dataclasses
import random

from hypothesis import assume, given, strategies as st

from netstack_bench.generator import Source
from netstack_bench.places.hosts.invokables import SinkVerifier
from netstack_bench.places.hosts.spec import MeshSpec
from netstack_bench.verifier import Delivery, order_of, problems

Feed = list[
    tuple[int, int, int, int]
]  # sink, channel, first record, how many (each a stride of all lanes after the last)


@st.composite
def runs(draw: st.DrawFn) -> tuple[MeshSpec, int, Feed]:
    """A source's records, cut into what its sinks take at once; channels interleave in any way."""
    sinks, channels = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    spec = MeshSpec(hosts=tuple(f"h:{port + 1}" for port in range(sinks)), channels=channels)
    count = draw(st.integers(1, 200))
    rng = random.Random(draw(st.integers(0, 2**32)))
    lanes: list[Feed] = []
    for lane in range(spec.lanes):
        mine: Feed = []
        records = list(range(lane, count, spec.lanes))
        while records:
            taken = rng.randint(1, len(records))
            mine.append((*divmod(lane, channels), records[0], taken))
            del records[:taken]
        lanes.append(mine)
    feed = []
    while any(lanes):
        feed.append(rng.choice([lane for lane in lanes if lane]).pop(0))
    return spec, count, feed


def check(spec: MeshSpec, count: int, feed: Feed) -> list[str]:
    source = Source(spec.record_bytes, 1)
    sinks = [SinkVerifier(spec, spec.lanes, [sink * spec.channels]) for sink in range(spec.sinks)]
    for sink, channel, first, records in feed:
        made = [source.records(first + turn * spec.lanes, 1)[0] for turn in range(records)]
        sinks[sink].feed(channel, made)
    deliveries: dict[str, Delivery] = {}
    for number, each in enumerate(sinks):
        each.finish()
        deliveries[f"sink-{number}"] = Delivery.from_dict(each.groups[0].delivery().as_dict())
    return problems("source-0", source.expected(count), deliveries, order=order_of(spec), lanes=spec.lanes)


@given(run=runs())
def test_a_whole_delivery_is_proven(run: tuple[MeshSpec, int, Feed]) -> None:
    assert check(*run) == []


@given(run=runs(), at=st.integers(0, 10**6), change=st.sampled_from(["lost", "repeated", "shifted", "swapped"]))
def test_any_one_change_is_found(run: tuple[MeshSpec, int, Feed], at: int, change: str) -> None:
    spec, count, feed = run
    place = at % len(feed)
    sink, channel, first, records = feed[place]
    if change == "lost":
        del feed[place]
    elif change == "repeated":
        feed.insert(place, feed[place])
    elif change == "shifted":
        feed[place] = sink, channel, first + 1, records
    else:
        later = [other for other in range(place + 1, len(feed)) if feed[other][:2] == (sink, channel)]
        assume(later)
        feed[place], feed[later[0]] = feed[later[0]], feed[place]
    assert check(spec, count, feed) != []


@given(run=runs(), sink=st.integers(0, 2))
def test_counts_that_lie_are_found(run: tuple[MeshSpec, int, Feed], sink: int) -> None:
    spec, count, _ = run
    wrong = Delivery(records=count, checksum=Source(8, 1).expected(count)["checksum"])
    honest = dataclasses.replace(
        wrong, lanes=tuple((lane, lane + spec.lanes) for lane in range(min(spec.lanes, count)))
    )
    expected = Source(8, 1).expected(count)
    assert problems("s", expected, {"a": wrong}, order=order_of(spec), lanes=spec.lanes)
    assert bool(problems("s", expected, {"a": honest}, order=order_of(spec), lanes=spec.lanes)) is (count > spec.lanes)
