from __future__ import annotations

import numpy as np
import pytest

from netstack_bench.generator import Source
from netstack_bench.places.hosts.invokables import SinkVerifier
from netstack_bench.places.hosts.spec import MeshSpec
from netstack_bench.verifier import Delivery, Order, order_of, problems

HOSTS = ("a:1", "b:1")


def spec_of(emit: str = "record", channels: int = 2, record_bytes: int = 16) -> MeshSpec:
    return MeshSpec(hosts=HOSTS, emit=emit, channels=channels, record_bytes=record_bytes)  # type: ignore[arg-type]


def deliver(spec: MeshSpec, count: int, drop: int | None = None, twice: int | None = None) -> dict[str, Delivery]:
    """Records of one source, one by one to both sinks; one may be left out, one may come twice."""
    source = Source(spec.record_bytes, count)
    sinks = [SinkVerifier(spec, spec.lanes, [sink * spec.channels]) for sink in range(2)]
    for index, record in enumerate(source.records(0, count)):
        sink, channel = divmod(index % spec.lanes, spec.channels)
        if index != drop:
            sinks[sink].feed(channel, [record])
        if index == twice:
            sinks[sink].feed(channel, [record])
    for each in sinks:
        each.finish()
    return {f"sink-{number}": each.groups[0].delivery() for number, each in enumerate(sinks)}


def found(spec: MeshSpec, deliveries: dict[str, Delivery], count: int) -> list[str]:
    expected = Source(spec.record_bytes, 1).expected(count)
    return problems("source-0", expected, deliveries, order=order_of(spec), lanes=spec.lanes)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 999])
def test_what_arrives_whole_is_proven(count: int) -> None:
    spec = spec_of()
    assert found(spec, deliver(spec, count), count) == []


@pytest.mark.parametrize("lost", [0, 1, 500, 998])
def test_a_lost_record_is_found_and_named(lost: int) -> None:
    spec = spec_of()
    reported = "; ".join(found(spec, deliver(spec, 999, drop=lost), 999))
    assert "source-0 sent 999 records, 998 arrived" in reported
    assert "checksum" in reported or lost == 0
    assert {0: "starts with record 4", 1: "starts with record 5", 500: "record 504 came where 500", 998: "record 998"}[
        lost
    ] in reported


def test_a_repeated_record_is_found_and_named() -> None:
    spec = spec_of()
    reported = "; ".join(found(spec, deliver(spec, 999, twice=17), 999))
    assert "999 records, 1000 arrived" in reported
    assert "record 17 came where 21 was due" in reported
    assert "source-0 to sink-0" in reported


def test_a_changed_byte_is_found() -> None:
    spec = spec_of()
    sinks = deliver(spec, 40)
    changed = SinkVerifier(spec, spec.lanes, [0])
    for index, record in enumerate(Source(16, 40).records(0, 40)):
        if index % 4 < 2:
            changed.feed(index % 4, [record if index != 8 else record[:-1] + b"?"])
    changed.finish()
    (only,) = found(spec, {**sinks, "sink-0": changed.groups[0].delivery()}, 40)
    assert "checksum of what source-0 sent" in only


def test_a_lane_that_never_came_and_one_that_came_twice() -> None:
    spec = spec_of()
    sinks = deliver(spec, 40)
    reported = "; ".join(found(spec, {"sink-0": sinks["sink-0"]}, 40))
    assert "record 2 and those after it on its channel never arrived" in reported
    reported = "; ".join(found(spec, {**sinks, "sink-9": sinks["sink-1"]}, 40))
    assert "record 2 arrived at sink-1 and at sink-9" in reported


def test_many_problems_are_summed_up() -> None:
    spec = spec_of(channels=50)
    reported = found(spec, {}, 1000)
    assert reported[-1].endswith("and 95 more of this kind")


def test_arrays_are_proven_by_lane() -> None:
    spec = spec_of("batch")
    source = Source(16, 1000)
    sinks = [SinkVerifier(spec, spec.lanes, [sink * 2]) for sink in range(2)]
    for first in range(0, 3000, 1000):
        array = source.array(first, 1000)
        for lane in range(4):
            sinks[lane // 2].feed_array(lane % 2, array[lane::4])
    for each in sinks:
        each.finish()
    deliveries = {str(number): each.groups[0].delivery() for number, each in enumerate(sinks)}
    assert found(spec, deliveries, 3000) == []
    assert sum(each.received_records for each in sinks) == 3000


def blocks(spec: MeshSpec, order: list[list[int]]) -> dict[str, Delivery]:
    """Columnar batches of 100 records by number, to each sink in this order."""
    source = Source(16, 100)
    deliveries = {}
    for number, mine in enumerate(order):
        sink = SinkVerifier(spec, spec.lanes, [number * spec.channels])
        for block in mine:
            for batch in source.arrow(block * 100, 100):
                sink.feed_arrow(0, batch)
        sink.finish()
        deliveries[f"sink-{number}"] = sink.groups[0].delivery()
    return deliveries


def test_columnar_batches_are_proven_by_sums() -> None:
    pytest.importorskip("pyarrow")
    spec = spec_of("arrow", channels=1)
    assert order_of(spec) is Order.BLOCKS
    assert found(spec, blocks(spec, [[0, 2, 4], [1, 3, 5]]), 600) == []
    assert "600 records, 500 arrived" in found(spec, blocks(spec, [[0, 2], [1, 3, 5]]), 600)[0]
    # The number, and even the sum of the indexes, are right: blocks 1 and 4 stand for blocks 2 and 3.
    (only,) = found(spec, blocks(spec, [[0, 1, 4], [1, 4, 5]]), 600)
    assert only == "source-0: not each of records 0 to 599 arrived exactly once"
    reported = found(spec, blocks(spec, [[2, 0, 4], [1, 3, 5]]), 600)
    assert reported == ["source-0 to sink-0: channel 0: record 0 came after record 299"]


def test_groups_are_kept_apart_and_lanes_follow_their_base() -> None:
    spec = spec_of(channels=1)
    sink = SinkVerifier(spec, spec.lanes, [1, 1])
    source = Source(16, 10).records(0, 10)
    for index in range(1, 10, 2):
        sink.feed(0, [source[index]])
        if index < 6:
            sink.feed(1, [source[index]])
    sink.finish()
    assert [group.delivery().records for group in sink.groups] == [5, 3]
    assert [group.delivery().lanes for group in sink.groups] == [((1, 11),), ((1, 7),)]


def test_a_delivery_travels_as_plain_data() -> None:
    delivery = Delivery(5, 7, ((1, 9), (2, 10)), 3, 4, ("a", "b"))
    assert Delivery.from_dict(delivery.as_dict()) == delivery


def test_stamped_records_are_measured_against_their_own_source() -> None:
    spec = MeshSpec(hosts=HOSTS, rate_per_s=1000.0, seconds=1)
    sink = SinkVerifier(spec, spec.lanes, [0, 0])
    starts = (5_000_000, 9_000_000)
    for group, start_ns in zip(sink.groups, starts, strict=True):
        group.begin(start_ns)
    record = np.array([2], dtype="<u8").tobytes()
    for channel, start_ns in enumerate(starts):
        sink.feed(channel, [np.array([0], dtype="<u8").tobytes()], start_ns + 1000)
        sink.feed(channel, [record], start_ns + 2_000_000 + 3000)
    sink.finish()
    assert [(group.latency.count, group.latency.max_ns) for group in sink.groups] == [(2, 3000), (2, 3000)]
