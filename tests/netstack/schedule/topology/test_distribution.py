import pytest

from netstack import ConfigError
from netstack.schedule.graph.job_graph import UNDECIDED, DistributionPattern
from netstack.schedule.topology.distribution import (
    InputInfo,
    Piece,
    dynamic_input,
    dynamic_subpartitions,
    pointwise_consumers,
    pointwise_partitions,
    static_input,
)

ALL, POINTWISE = DistributionPattern.ALL_TO_ALL, DistributionPattern.POINTWISE


def partitions(producers, consumers):
    return [list(range(*ends)) for ends in zip(*pointwise_partitions(producers, consumers), strict=True)]


def consumers_of(producers, consumers):
    return [list(range(*ends)) for ends in zip(*pointwise_consumers(producers, consumers), strict=True)]


@pytest.mark.parametrize(
    ("producers", "consumers", "expected"),
    [
        (3, 2, [[0], [1, 2]]),
        (4, 2, [[0, 1], [2, 3]]),
        (4, 3, [[0], [1], [2, 3]]),
        (5, 2, [[0, 1], [2, 3, 4]]),
        (7, 3, [[0, 1], [2, 3], [4, 5, 6]]),
        (16, 3, [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15]]),
        (2, 3, [[0], [0], [1]]),
        (3, 5, [[0], [0], [1], [1], [2]]),
        (2, 5, [[0], [0], [0], [1], [1]]),
        (3, 7, [[0], [0], [0], [1], [1], [2], [2]]),
        (3, 16, [[0]] * 6 + [[1]] * 5 + [[2]] * 5),
    ],
)
def test_which_partitions_each_consumer_reads(producers, consumers, expected):
    assert partitions(producers, consumers) == expected


def test_three_times_as_many_producers():
    assert partitions(3 * 17, 17) == [[3 * index, 3 * index + 1, 3 * index + 2] for index in range(17)]


@pytest.mark.parametrize(("producers", "factor"), [(41, 2), (11, 7)])
def test_many_times_as_many_consumers(producers, factor):
    assert partitions(producers, factor * producers) == [[index // factor] for index in range(factor * producers)]


@pytest.mark.parametrize(("producers", "consumers"), [(3, 16), (19, 21), (15, 20), (11, 31)])
def test_fewer_producers_each_serve_an_even_share_and_consumers_read_one(producers, consumers):
    shares = [len(share) for share in consumers_of(producers, consumers)]
    assert all(len(read) == 1 for read in partitions(producers, consumers))
    assert sum(shares) == consumers
    assert set(shares) <= {consumers // producers, -(-consumers // producers)}


@pytest.mark.parametrize(("producers", "consumers"), [(16, 3), (21, 19), (20, 15), (31, 11)])
def test_fewer_consumers_each_read_an_even_share_and_producers_serve_one(producers, consumers):
    read = partitions(producers, consumers)
    assert [partition for share in read for partition in share] == list(range(producers))
    assert {len(share) for share in read} <= {producers // consumers, -(-producers // consumers)}


@pytest.mark.parametrize(
    ("producers", "consumers", "expected"),
    [
        (2, 3, [(0, 0), (0, 1), (1, 0)]),
        (2, 5, [(0, 0), (0, 1), (0, 2), (1, 1), (1, 0)]),
        (3, 7, [(0, 0), (0, 1), (0, 2), (1, 1), (1, 0), (2, 1), (2, 0)]),
    ],
)
def test_a_static_fan_out_takes_subpartitions_by_the_index_in_the_vertex(producers, consumers, expected):
    reads = static_input(POINTWISE, producers, consumers)
    assert [
        (piece.partitions.start, piece.subpartitions.start) for k in range(consumers) for piece in reads.pieces_of(k)
    ] == expected


def test_a_static_all_to_all_input_takes_its_own_subpartition_of_every_partition():
    reads = static_input(ALL, 3, 2)
    assert reads.pieces_of(1) == (Piece(range(3), range(1, 2)),)
    assert static_input(POINTWISE, 5, 2).pieces_of(1) == (Piece(range(2, 5), range(1)),)


@pytest.mark.parametrize(
    ("subpartitions", "consumers", "expected"),
    [
        (4, 2, [(0, 1), (2, 3)]),
        (4, 3, [(0, 0), (1, 1), (2, 3)]),
        (3, 1, [(0, 2)]),
        (3, 2, [(0, 0), (1, 2)]),
        (6, 4, [(0, 0), (1, 2), (3, 3), (4, 5)]),
        (10, 3, [(0, 2), (3, 5), (6, 9)]),
        (10, 8, [(0, 0), (1, 1), (2, 2), (3, 4), (5, 5), (6, 6), (7, 7), (8, 9)]),
        (128, 3, [(0, 41), (42, 84), (85, 127)]),
    ],
)
def test_subpartitions_are_cut_evenly_and_the_last_read_the_surplus(subpartitions, consumers, expected):
    reads = dynamic_input(ALL, 1, consumers, subpartitions)
    cuts = [reads.pieces_of(k)[0].subpartitions for k in range(consumers)]
    assert [(cut[0], cut[-1]) for cut in cuts] == expected


def test_a_dynamic_pointwise_input_shares_the_subpartitions_of_one_partition():
    reads = dynamic_input(POINTWISE, 2, 3, 4)
    assert [reads.pieces_of(k) for k in range(3)] == [
        (Piece(range(1), range(2)),),
        (Piece(range(1), range(2, 4)),),
        (Piece(range(1, 2), range(4)),),
    ]


def test_a_dynamic_all_to_all_input_reads_every_partition():
    reads = dynamic_input(ALL, 2, 3, 10)
    assert [reads.pieces_of(k)[0] for k in range(3)] == [
        Piece(range(2), range(3)),
        Piece(range(2), range(3, 6)),
        Piece(range(2), range(6, 10)),
    ]


def test_a_broadcast_partition_is_read_whole_by_everybody():
    reads = dynamic_input(ALL, 2, 3, 1, is_broadcast=True)
    assert [reads.pieces_of(k) for k in range(3)] == [(Piece(range(2), range(1)),)] * 3
    with pytest.raises(ConfigError, match="has 2 subpartitions; give it 1"):
        dynamic_input(ALL, 2, 3, 2, is_broadcast=True)
    all_of_it = dynamic_input(ALL, 2, 3, 2, is_broadcast=True, reads_all=True)
    assert all_of_it.pieces_of(2) == (Piece(range(2), range(2)),)


def test_more_consumers_than_subpartitions_are_refused():
    with pytest.raises(ConfigError, match="5 consumers share a partition of 4"):
        dynamic_input(ALL, 1, 5, 4)


def test_subpartitions_of_a_dynamic_producer():
    assert dynamic_subpartitions(ALL, 6, UNDECIDED, 128) == 128
    assert dynamic_subpartitions(ALL, 6, 10, 128) == 10
    assert dynamic_subpartitions(POINTWISE, 6, UNDECIDED, 128) == 22
    assert dynamic_subpartitions(POINTWISE, 4, UNDECIDED, 128) == 32
    assert dynamic_subpartitions(POINTWISE, 5, UNDECIDED, 128) == 26
    assert dynamic_subpartitions(ALL, 6, UNDECIDED, 128, is_broadcast=True) == 1


def test_several_pieces_of_one_subtask():
    pieces = [
        (Piece(range(1), range(2)),),
        (Piece(range(1), range(4, 5)), Piece(range(1, 2), range(2))),
    ]
    reads = InputInfo.of_pieces(pieces)
    assert reads.parallelism == 2
    assert [reads.pieces_of(k) for k in range(2)] == pieces
    assert [ends.tolist() for ends in reads.partition_ranges()] == [[0, 0], [1, 2]]


@pytest.mark.parametrize("pieces", [[()], [(Piece(range(0), range(1)),)]])
def test_a_subtask_that_reads_nothing_is_refused(pieces):
    with pytest.raises(ConfigError, match="has nothing to read"):
        InputInfo.of_pieces(pieces)
