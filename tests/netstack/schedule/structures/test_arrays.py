import numpy as np
import pytest

from netstack.schedule.structures import (
    NOTHING,
    Batches,
    GrowingArray,
    expand_ranges,
    index_array,
    offsets_of,
    one_batch,
    single_batches,
)


def test_an_array_grows_at_its_end_and_keeps_what_it_had():
    grown = GrowingArray()
    for value in range(100):
        grown.extend([value, -value])
        grown.extend_with(7, 1)
    assert len(grown) == 300
    assert grown.view[:6].tolist() == [0, 0, 7, 1, -1, 7]
    assert grown.view[-3:].tolist() == [99, -99, 7]
    assert grown.view.dtype == np.int32


def test_a_view_can_be_written():
    grown = GrowingArray(np.bool_)
    grown.extend_with(False, 3)
    grown.view[1] = True
    assert grown.view.tolist() == [False, True, False]


def test_ranges_are_written_out_one_after_the_other_and_empty_ones_give_nothing():
    assert expand_ranges(index_array([0, 5, 7]), index_array([3, 5, 9])).tolist() == [0, 1, 2, 7, 8]
    assert expand_ranges(NOTHING, NOTHING).size == 0
    assert expand_ranges(index_array([4]), index_array([4])).size == 0


def test_offsets_of_rows():
    assert offsets_of(index_array([2, 0, 3])).tolist() == [0, 2, 2, 5]


def test_batches_are_counted_indexed_and_iterated():
    batches = Batches(index_array([4, 5, 6]), index_array([0, 2, 3]))
    assert len(batches) == 2
    assert batches[1].tolist() == [6]
    assert batches.tolist() == [[4, 5], [6]]
    with pytest.raises(IndexError, match="batch 2 of 2"):
        batches[2]


def test_subtasks_go_together_or_alone():
    assert one_batch(index_array([1, 2])).tolist() == [[1, 2]]
    assert one_batch(NOTHING).tolist() == []
    assert single_batches(index_array([1, 2])).tolist() == [[1], [2]]
    assert single_batches(NOTHING).tolist() == []
