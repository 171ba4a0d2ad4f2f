import pytest

from netstack import ConfigError
from netstack.schedule.adaptive.cut import DatasetSizes
from netstack.schedule.adaptive.parallelism import (
    AdaptiveSettings,
    decide,
    nearest_power_of_two,
    rounded_parallelism,
)
from netstack.schedule.adaptive.skew import VertexInput
from netstack.schedule.graph.job_graph import DistributionPattern, SourceSize

MIB, GIB = 1 << 20, 1 << 30
A = [10, 15, 13, 12, 1, 10, 8, 20, 12, 17]
B = [8, 12, 21, 9, 13, 7, 19, 13, 14, 5]


def given(*rows, **flags):
    sizes = DatasetSizes("d", len(rows), len(rows[0]))
    for partition, row in enumerate(rows):
        sizes.record(partition, row)
    return VertexInput(sizes, **flags)


def ranges(info):
    return [
        (piece.subpartitions.start, piece.subpartitions.stop - 1)
        for k in range(info.parallelism)
        for piece in info.pieces_of(k)
    ]


def settings(least, most, volume, **more):
    return AdaptiveSettings(min_parallelism=least, max_parallelism=most, data_volume_per_task_bytes=volume, **more)


@pytest.mark.parametrize(
    ("number", "nearest"),
    [
        (0, 1),
        (1, 1),
        (2, 2),
        (3, 4),
        (5, 4),
        (6, 8),
        (11, 8),
        (12, 16),
        (17, 16),
        (23, 16),
        (24, 32),
        (47, 32),
        (48, 64),
    ],
)
def test_the_nearest_power_of_two_and_of_two_the_larger(number, nearest):
    assert nearest_power_of_two(number) == nearest


ROUNDED = AdaptiveSettings(
    min_parallelism=3,
    max_parallelism=100,
    data_volume_per_task_bytes=GIB,
    default_source_parallelism=10,
    is_rounded=True,
)


@pytest.mark.parametrize(
    ("broadcast", "other", "parallelism"),
    [
        (256 * MIB, 33 * 256 * MIB, 8),
        (256 * MIB, 9 * GIB, 16),
        (256 * MIB, 1024 * GIB + 8 * GIB, 64),
        (256 * MIB, 512 * MIB, 4),
        (GIB, 8 * GIB, 16),
        (512 * MIB, 33 * 256 * MIB, 16),
        (0, 0, 4),
    ],
)
def test_the_formula_of_1_15(broadcast, other, parallelism):
    assert ROUNDED.bounds == (4, 64)
    assert rounded_parallelism(GIB, broadcast, other, *ROUNDED.bounds) == parallelism
    inputs = [given([broadcast], is_broadcast=True), given([other] + [0] * 127)]
    decision = decide(inputs, ROUNDED)
    assert decision.parallelism == parallelism
    assert len(set(ranges(decision.inputs[1]))) == parallelism


def test_sources_are_not_rounded():
    assert decide([], ROUNDED).parallelism == 10


def test_the_cut_decides_not_the_division():
    decision = decide([given(A), given(B, input_number=2)], settings(1, 10, 60))
    assert decision.parallelism == 5
    assert [ranges(info) for info in decision.inputs] == [[(0, 1), (2, 3), (4, 6), (7, 8), (9, 9)]] * 2


@pytest.mark.parametrize(
    ("row", "bounds", "volume", "expected"),
    [
        (A, (1, 2), 10, [(0, 5), (6, 9)]),
        (A, (4, 10), 1000, [(0, 1), (2, 5), (6, 7), (8, 9)]),
        ([10, 1] * 5, (8, 8), 10, [(0, 0), (1, 1), (2, 2), (3, 4), (5, 5), (6, 6), (7, 7), (8, 9)]),
    ],
)
def test_bounds_move_the_cut(row, bounds, volume, expected):
    decision = decide([given(row)], settings(*bounds, volume))
    assert decision.parallelism == len(expected)
    assert ranges(decision.inputs[0]) == expected


def test_broadcast_inputs_do_not_count():
    decision = decide([given(A), given([10], is_broadcast=True)], settings(1, 10, 60))
    assert ranges(decision.inputs[0]) == [(0, 4), (5, 8), (9, 9)]
    assert ranges(decision.inputs[1]) == [(0, 0)] * 3


def test_only_broadcast_inputs_give_the_least():
    decision = decide([given([10], is_broadcast=True)] * 2, settings(1, 10, 60))
    assert [ranges(info) for info in decision.inputs] == [[(0, 0)]] * 2


def test_with_a_pointwise_input_the_division_decides_for_all():
    pointwise = given(
        [8, 12, 21, 9, 13], [7, 19, 13, 14, 5],
        pattern=DistributionPattern.POINTWISE, binds_keys=False, binds_inputs=False,
    )  # fmt: skip
    decision = decide([given(A), pointwise], settings(1, 10, 60))
    assert decision.parallelism == 4
    assert decision.inputs[0].parallelism == 4
    pieces = [decision.inputs[1].pieces_of(k) for k in range(4)]
    assert [[(list(p.partitions), p.subpartitions.start, p.subpartitions.stop) for p in one] for one in pieces] == [
        [([0], 0, 2)],
        [([0], 2, 4)],
        [([0], 4, 5), ([1], 0, 2)],
        [([1], 2, 5)],
    ]


def test_without_bound_keys_bytes_are_divided_by_the_volume():
    other = given([256 * MIB] * 33, binds_keys=False, binds_inputs=False)
    decision = decide([given([256 * MIB], is_broadcast=True), other], settings(3, 100, GIB))
    assert decision.parallelism == 9


def test_empty_inputs_give_the_least():
    assert decide([given([0] * 8)], settings(2, 10, 60)).parallelism == 2
    assert decide([given([0] * 8, binds_inputs=False)], settings(1, 10, 60)).parallelism == 1


@pytest.mark.parametrize(
    ("least", "most", "of_vertex", "expected"), [(16, 128, 8, 8), (1, 32, 128, 32), (1, 128, 128, 128)]
)
def test_the_smaller_maximum_counts(least, most, of_vertex, expected):
    wide = given([GIB] * 128)
    assert decide([wide], settings(least, most, 1), max_parallelism=of_vertex).parallelism == expected


@pytest.mark.parametrize(("default", "of_vertex", "expected"), [(32, 8, 8), (None, 200, 128), (32, 200, 32)])
def test_sources(default, of_vertex, expected):
    sources = AdaptiveSettings(default_source_parallelism=default)
    assert decide([], sources, max_parallelism=of_vertex).parallelism == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (SourceSize(), 32),
        (SourceSize(bytes=4 * GIB), 4),
        (SourceSize(splits=3), 3),
        (SourceSize(bytes=8 * GIB, splits=5), 5),
        (SourceSize(bytes=2 * GIB, splits=5), 2),
        (SourceSize(bytes=0, splits=0), 1),
    ],
)
def test_sources_that_can_tell(source, expected):
    sources = AdaptiveSettings(default_source_parallelism=32, data_volume_per_task_bytes=GIB)
    assert decide([], sources, source=source, max_parallelism=100).parallelism == expected


def test_a_result_that_is_consumed_twice_counts_twice():
    twice = given([100] * 16)
    assert decide([twice, twice], settings(1, 100, 400)).parallelism == 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_parallelism": 0},
        {"min_parallelism": 5, "max_parallelism": 4},
        {"min_parallelism": 5, "max_parallelism": 7, "is_rounded": True},
        {"data_volume_per_task_bytes": 0},
        {"default_source_parallelism": 0},
    ],
)
def test_bounds_that_nothing_fits_are_refused(wrong):
    with pytest.raises(ConfigError, match=r"; give|: give"):
        AdaptiveSettings(**wrong)
