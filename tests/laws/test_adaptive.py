"""Laws of adaptive parallelism: everything is read, by as many subtasks as are allowed, and no pair twice."""

from collections import Counter

from hypothesis import given, strategies as st

from netstack import ConfigError
from netstack.schedule.adaptive.cut import DatasetSizes, PairedRow, PlainRow, cut_by_size
from netstack.schedule.adaptive.parallelism import (
    AdaptiveSettings,
    decide,
    nearest_power_of_two,
    rounded_parallelism,
)
from netstack.schedule.adaptive.skew import VertexInput
from netstack.schedule.graph.job_graph import DistributionPattern
from netstack.schedule.graph.settings import CutSettings

ROW = st.lists(st.integers(0, 30), min_size=1, max_size=25)


def naive_cut(sizes, limit, longest):
    starts, total = [], 0
    for at, size in enumerate(sizes):
        if not starts or total + size > limit or at - starts[-1] >= longest:
            starts.append(at)
            total = size
        else:
            total += size
    return starts


@given(ROW, st.integers(0, 800), st.integers(1, 30))
def test_a_cut_is_greedy(sizes, limit, longest):
    assert PlainRow(sizes, longest).cut(limit) == naive_cut(sizes, limit, longest)


@given(ROW, st.integers(0, 100))
def test_a_larger_limit_never_gives_more_stretches(sizes, limit):
    row = PlainRow(sizes, len(sizes))
    assert len(row.cut(limit + 1)) <= len(row.cut(limit))


@given(ROW, st.integers(1, 100), st.integers(1, 10), st.integers(0, 10))
def test_a_legal_cut_is_found_where_there_is_one(sizes, volume, least, more):
    row = PlainRow(sizes, len(sizes))
    most = least + more
    starts = cut_by_size(row, volume, least, most)
    legal = {limit for limit in range(row.total_bytes + 1) if least <= len(row.cut(limit)) <= most}
    if starts is None:
        assert not legal & (
            set(range(volume, row.total_bytes + 1)) if len(row.cut(volume)) > most else set(range(volume))
        )
    else:
        assert least <= len(starts) <= most
        assert starts[0] == 0
        assert starts == sorted(set(starts))


@given(ROW, st.integers(0, 100))
def test_a_row_whose_pieces_never_come_up_again_is_plain(sizes, limit):
    numbers = range(len(sizes))
    assert PairedRow(numbers, [numbers], [sizes], len(sizes)).cut(limit) == PlainRow(sizes, len(sizes)).cut(limit)


@st.composite
def inputs(draw, patterns=tuple(DistributionPattern)):
    """Up to three inputs of one vertex; all-to-all ones have equally many subpartitions."""
    width = draw(st.integers(1, 8))
    made = []
    for number in range(1, draw(st.integers(1, 3)) + 1):
        pattern = draw(st.sampled_from(patterns))
        partitions = draw(st.integers(1, 4))
        is_broadcast = pattern is DistributionPattern.ALL_TO_ALL and draw(st.integers(0, 4)) == 0
        sizes = DatasetSizes("d", partitions, 1 if is_broadcast else width)
        skewed = draw(st.integers(0, width))
        for partition in range(partitions):
            row = [draw(st.integers(0, 9)) * (20 if column == skewed else 1) for column in range(sizes.subpartitions)]
            sizes.record(partition, row)
        made.append(VertexInput(sizes, pattern, is_broadcast, number, draw(st.booleans()), draw(st.booleans())))
    return made


SETTINGS = st.builds(
    lambda least, more, volume, threshold: AdaptiveSettings(
        min_parallelism=least,
        max_parallelism=least + more,
        data_volume_per_task_bytes=volume,
        cut=CutSettings(skewed_factor=2.0, skewed_threshold_bytes=threshold),
    ),
    st.integers(1, 4),
    st.integers(0, 6),
    st.integers(1, 60),
    st.integers(1, 60),
)


def cells(info):
    """For each subtask, the (partition, subpartition) pairs that it reads; none twice."""
    read = []
    for subtask in range(info.parallelism):
        own = [
            (partition, subpartition)
            for piece in info.pieces_of(subtask)
            for partition in piece.partitions
            for subpartition in piece.subpartitions
        ]
        assert len(own) == len(set(own))
        read.append(set(own))
    return read


def decided(made, how):
    """A decision; None where there are fewer subpartitions than subtasks, which is refused."""
    try:
        return decide(made, how)
    except ConfigError:
        return None


@given(inputs(), SETTINGS)
def test_only_a_minimum_beyond_what_there_is_to_read_is_refused(made, how):
    assert decided(made, how) is not None or how.min_parallelism > min(one.sizes.subpartitions for one in made)


@given(inputs(), SETTINGS)
def test_everything_is_read_by_as_many_subtasks_as_are_allowed(made, how):
    decision = decided(made, how)
    if decision is None:
        return
    assert how.min_parallelism <= decision.parallelism <= how.max_parallelism
    for one, info in zip(made, decision.inputs, strict=True):
        assert info.parallelism == decision.parallelism
        everything = {(row, column) for row in range(one.sizes.partitions) for column in range(one.sizes.subpartitions)}
        read = cells(info)
        if one.is_broadcast:
            assert all(own == everything for own in read)
        else:
            assert set().union(*read) == everything
            assert all(read)
            if not one.binds_inputs or one.pattern is DistributionPattern.POINTWISE:
                assert sum(map(len, read)) == len(everything)


@given(inputs((DistributionPattern.ALL_TO_ALL,)), SETTINGS)
def test_bound_keys_stay_together(made, how):
    decision = decided(made, how)
    if decision is None:
        return
    for one, info in zip(made, decision.inputs, strict=True):
        if one.binds_keys and not one.is_broadcast:
            for own in cells(info):
                columns = Counter(column for _, column in own)
                assert set(columns.values()) == {one.sizes.partitions}


@given(inputs((DistributionPattern.ALL_TO_ALL,)), SETTINGS)
def test_every_pair_of_bound_inputs_meets_once(made, how):
    decision = decided(made, how)
    if decision is None:
        return
    bound = [
        (one, cells(info))
        for one, info in zip(made, decision.inputs, strict=True)
        if one.binds_inputs and not one.is_broadcast
    ]
    for at, (left, left_read) in enumerate(bound):
        for right, right_read in bound[at + 1 :]:
            others = [one for one, _ in bound if one is not left and one is not right]
            meetings = Counter(
                (row, other_row, column)
                for mine, theirs in zip(left_read, right_read, strict=True)
                for row, column in mine
                for other_row, other_column in theirs
                if column == other_column
            )
            columns = range(left.sizes.subpartitions)
            expected = {
                (row, other, column)
                for row in range(left.sizes.partitions)
                for other in range(right.sizes.partitions)
                for column in columns
            }
            assert set(meetings) == expected
            if not others:
                assert set(meetings.values()) == {1}


@given(st.integers(1, 1 << 20))
def test_the_nearest_power_of_two_is_the_nearest(number):
    nearest = nearest_power_of_two(number)
    assert nearest.bit_count() == 1
    assert abs(nearest - number) <= abs(2 * nearest - number)
    assert (
        nearest == 1 or abs(nearest - number) < abs(nearest // 2 - number) or nearest - number == number - nearest // 2
    )


@given(st.integers(2, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 44))
def test_a_rounded_subtask_reads_between_three_quarters_and_one_and_a_half_of_its_volume(volume, broadcast, other):
    subtasks = rounded_parallelism(volume, broadcast, other, 1, 1 << 45)
    share = volume - min(broadcast, -(-volume // 2))
    wanted = -(-other // share)
    assert subtasks == 1 or 3 * subtasks <= 4 * wanted <= 6 * subtasks + 4
