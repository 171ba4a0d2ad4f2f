import numpy as np
import pytest

from netstack import ConfigError
from netstack.schedule.adaptive.cut import DatasetSizes
from netstack.schedule.adaptive.skew import VertexInput, bound_inputs, single_input
from netstack.schedule.graph.job_graph import DistributionPattern
from netstack.schedule.graph.settings import CutSettings

SETTINGS = CutSettings(skewed_factor=4.0, skewed_threshold_bytes=10)
POINTWISE = DistributionPattern.POINTWISE


def sizes_of(rows):
    sizes = DatasetSizes("d", len(rows), len(rows[0]))
    for partition, row in enumerate(rows):
        sizes.record(partition, row)
    return sizes


def joined(number, partitions, skewed=(), *, binds_keys):
    """One side of a join: three subpartitions of 1 byte a partition, the skewed ones of 10."""
    row = [10 if column in skewed else 1 for column in range(3)]
    return VertexInput(sizes_of([row] * partitions), input_number=number, binds_keys=binds_keys)


def reads(info):
    """For each subtask, its pieces as (first, last) partition: (first, last) subpartition, inclusive."""
    return [
        {
            (piece.partitions.start, piece.partitions.stop - 1): (
                piece.subpartitions.start,
                piece.subpartitions.stop - 1,
            )
            for piece in info.pieces_of(subtask)
        }
        for subtask in range(info.parallelism)
    ]


@pytest.mark.parametrize("copies", [1, 10])
def test_bound_keys_are_never_split_however_skewed(copies):
    left = [joined(1, 10, (0,), binds_keys=True)] * copies
    right = [joined(2, 10, binds_keys=True)] * copies
    infos = bound_inputs([*left, *right], 10, 1, 10, 10, SETTINGS)
    assert all(reads(info) == [{(0, 9): (0, 0)}, {(0, 9): (1, 1)}, {(0, 9): (2, 2)}] for info in infos)


@pytest.mark.parametrize("copies", [1, 10])
def test_a_skewed_subpartition_is_cut_and_its_partner_read_by_all(copies):
    left = [joined(1, 10, (0,), binds_keys=False)] * copies
    right = [joined(2, 10, binds_keys=True)] * copies
    infos = bound_inputs([*left, *right], 10, 1, 10, 10, SETTINGS)
    halves = [{(low, low + 1): (0, 0)} for low in range(0, 10, 2)]
    assert all(reads(info) == [*halves, {(0, 9): (1, 1)}, {(0, 9): (2, 2)}] for info in infos[:copies])
    assert all(reads(info) == [{(0, 9): (0, 0)}] * 5 + [{(0, 9): (1, 1)}, {(0, 9): (2, 2)}] for info in infos[copies:])


@pytest.mark.parametrize("copies", [1, 10])
def test_two_skewed_sides_meet_in_all_combinations(copies):
    left = [joined(1, 2, (1,), binds_keys=False)] * copies
    right = [joined(2, 2, (1,), binds_keys=False)] * copies
    infos = bound_inputs([*left, *right], 10, 1, 2, 2, SETTINGS)
    assert reads(infos[0]) == [{(0, 1): (0, 0), (0, 0): (1, 1)}, {(1, 1): (1, 1), (0, 1): (2, 2)}]
    assert reads(infos[-1]) == [{(0, 1): (0, 1)}, {(0, 1): (1, 2)}]


def test_a_union_is_read_as_one_input():
    inputs = [joined(1, 2, binds_keys=True), joined(1, 3, binds_keys=True), joined(2, 2, binds_keys=True)]
    infos = bound_inputs(inputs, 10, 1, 2, 2, SETTINGS)
    assert [reads(info) for info in infos] == [
        [{(0, last): (0, 1)}, {(0, last): (2, 2)}] for last in (1, 2, 1)
    ]  # fmt: skip


def test_a_union_of_different_widths_is_not_split():
    inputs = [
        joined(1, 2, (1,), binds_keys=False),
        joined(1, 3, (1,), binds_keys=False),
        joined(2, 2, (1,), binds_keys=False),
    ]
    infos = bound_inputs(inputs, 10, 1, 2, 2, SETTINGS)
    assert reads(infos[0]) == [{(0, 1): (0, 1)}, {(0, 1): (1, 2)}]
    assert reads(infos[1]) == [{(0, 2): (0, 1)}, {(0, 2): (1, 2)}]
    assert reads(infos[2]) == [{(0, 1): (0, 0), (0, 0): (1, 1)}, {(1, 1): (1, 1), (0, 1): (2, 2)}]


def test_neighbouring_slices_are_joined():
    # Subpartition 0 is cut in three: the second subtask reads two of these pieces, and all of 1 and 2.
    given = VertexInput(sizes_of([[20, 1, 1]] * 5), binds_keys=False)
    (info,) = bound_inputs([given], 60, 2, 2, 2, SETTINGS)
    assert reads(info) == [{(0, 1): (0, 0)}, {(2, 4): (0, 0), (0, 4): (1, 2)}]


def test_broadcast_inputs_are_read_whole_by_everybody():
    a = VertexInput(sizes_of([[10, 15, 13, 12, 1, 10, 8, 20, 12, 17]]))
    broadcast = VertexInput(sizes_of([[10], [10]]), is_broadcast=True)
    infos = bound_inputs([a, broadcast], 60, 1, 10, 2, CutSettings())
    assert reads(infos[0]) == [{(0, 0): (0, 4)}, {(0, 0): (5, 8)}, {(0, 0): (9, 9)}]
    assert reads(infos[1]) == [{(0, 1): (0, 0)}] * 3
    assert reads(bound_inputs([broadcast], 60, 1, 10, 2, CutSettings())[0]) == [{(0, 1): (0, 0)}] * 2


@pytest.mark.parametrize(
    ("rows", "parallelism", "expected"),
    [
        ([[1, 1, 1]] * 2, 2, [{(0, 0): (0, 2)}, {(1, 1): (0, 2)}]),
        ([[1, 1, 1]] * 2, 3, [{(0, 0): (0, 1)}, {(0, 0): (2, 2), (1, 1): (0, 0)}, {(1, 1): (1, 2)}]),
        (
            [[10, 10, 10], [1, 1, 1], [1, 1, 1]], 3,
            [{(0, 0): (0, 0)}, {(0, 0): (1, 1)}, {(0, 0): (2, 2), (1, 2): (0, 2)}],
        ),
        (
            [[1, 1, 1], [10, 10, 10], [1, 1, 1]], 3,
            [{(0, 0): (0, 2), (1, 1): (0, 0)}, {(1, 1): (1, 1)}, {(1, 1): (2, 2), (2, 2): (0, 2)}],
        ),
        (
            [[8, 12, 21, 9, 13], [7, 19, 13, 14, 5]], 4,
            [{(0, 0): (0, 1)}, {(0, 0): (2, 3)}, {(0, 0): (4, 4), (1, 1): (0, 1)}, {(1, 1): (2, 4)}],
        ),
    ],
)  # fmt: skip
def test_pointwise_inputs_are_cut_by_data(rows, parallelism, expected):
    given = VertexInput(sizes_of(rows), POINTWISE, binds_keys=False, binds_inputs=False)
    volume = 30 if parallelism == 4 else 10
    assert reads(single_input(given, volume, parallelism, SETTINGS)) == expected


def test_a_pointwise_input_that_binds_keys_is_shared_out_by_partition():
    given = VertexInput(sizes_of([[100, 1], [1, 1]]), POINTWISE, binds_inputs=False)
    assert reads(single_input(given, 10, 2, SETTINGS)) == [{(0, 0): (0, 1)}, {(1, 1): (0, 1)}]


def test_a_single_input_that_binds_keys_keeps_subpartitions_whole():
    a = [10, 15, 13, 12, 1, 10, 8, 20, 12, 17]
    given = VertexInput(sizes_of([a, [0] * 10]), binds_inputs=False)
    assert reads(single_input(given, 1000, 3, SETTINGS)) == [{(0, 1): (0, 2)}, {(0, 1): (3, 6)}, {(0, 1): (7, 9)}]


def test_where_bytes_cannot_decide_the_number_of_pieces_does():
    given = VertexInput(sizes_of([[10, 1] * 5]))
    (info,) = bound_inputs([given], 10, 8, 8, 8, SETTINGS)
    ranges = [(0, 0), (1, 1), (2, 2), (3, 4), (5, 5), (6, 6), (7, 7), (8, 9)]
    assert reads(info) == [{(0, 0): one} for one in ranges]
    empty = VertexInput(sizes_of([[0, 0], [0, 0]]), POINTWISE, binds_keys=False)
    assert reads(single_input(empty, 10, 2, SETTINGS)) == [{(0, 0): (0, 1)}, {(1, 1): (0, 1)}]


def test_a_subtask_opens_no_more_channels_than_allowed():
    given = VertexInput(sizes_of(np.ones((1024, 1024), np.int64)))
    (info,) = bound_inputs([given], 256 << 20, 1, 100, 1, CutSettings())
    assert info.parallelism == 32
    assert reads(info) == [{(0, 1023): (32 * subtask, 32 * subtask + 31)} for subtask in range(32)]


def test_inputs_that_cannot_be_cut_together_are_refused():
    with pytest.raises(ConfigError, match=r"\[2, 3\] subpartitions"):
        bound_inputs([VertexInput(sizes_of([[1, 1]])), joined(2, 2, binds_keys=True)], 10, 1, 2, 2, SETTINGS)
    with pytest.raises(ConfigError, match="only some edges of input 1"):
        bound_inputs([joined(1, 2, binds_keys=True), joined(1, 2, binds_keys=False)], 10, 1, 2, 2, SETTINGS)
    with pytest.raises(ConfigError, match="subpartitions"):
        bound_inputs([joined(1, 2, binds_keys=True)], 10, 4, 4, 4, SETTINGS)
