import pytest

from netstack.schedule.adaptive.cut import PairedRow, PlainRow, cut_by_number, cut_by_size

A = [10, 15, 13, 12, 1, 10, 8, 20, 12, 17]
B = [8, 12, 21, 9, 13, 7, 19, 13, 14, 5]


@pytest.mark.parametrize(
    ("sizes", "volume", "least", "most", "starts"),
    [
        ([one + other for one, other in zip(A, B, strict=True)], 60, 1, 10, [0, 2, 4, 7, 9]),
        (A, 10, 1, 2, [0, 6]),
        (A, 1000, 4, 10, [0, 2, 6, 8]),
        (A, 60, 1, 10, [0, 5, 9]),
        (A, 10, 3, 3, [0, 3, 7]),
        ([10, 1] * 5, 10, 8, 8, None),
        ([0, 0, 0], 10, 1, 10, [0]),
        ([0, 0, 0], 10, 2, 10, None),
        ([5], 0, 1, 1, [0]),
    ],
)
def test_a_row_is_cut_by_size(sizes, volume, least, most, starts):
    assert cut_by_size(PlainRow(sizes, len(sizes)), volume, least, most) == starts


@pytest.mark.parametrize(("limit", "starts"), [(61, [0, 6]), (60, [0, 5, 9]), (36, [0, 2, 6, 8])])
def test_a_stretch_grows_up_to_the_limit(limit, starts):
    assert PlainRow(A, len(A)).cut(limit) == starts


def test_a_stretch_has_a_longest_length():
    assert PlainRow([1] * 7, 3).cut(100) == [0, 3, 6]
    assert PairedRow([0] * 4, [[0, 1, 2, 3]], [[1] * 4], 3).cut(100) == [0, 3]


def test_an_element_larger_than_the_limit_is_alone():
    assert PlainRow([1, 9, 1, 1], 4).cut(3) == [0, 1, 2]


def test_a_piece_counts_once_in_a_stretch():
    # Ten pieces of one input, each with the one piece of the other.
    row = PairedRow([0] * 10, [list(range(10)), [0] * 10], [[10] * 10, [10]], 10)
    assert row.total_bytes == 200
    assert row.smallest_bytes == 20
    assert row.cut(30) == [0, 2, 4, 6, 8]
    assert row.cut(29) == list(range(10))
    assert row.cut(110) == [0]


def test_a_plain_row_is_a_paired_one_whose_pieces_never_come_up_again():
    paired = PairedRow(range(10), [list(range(10)), list(range(10))], [A, B], 10)
    plain = PlainRow([one + other for one, other in zip(A, B, strict=True)], 10)
    assert all(paired.cut(limit) == plain.cut(limit) for limit in range(240))


def test_a_stretch_has_all_combinations_of_what_it_reads():
    # Two pieces of each side: the second and third combination together would be all four.
    row = PairedRow([0, 0, 0, 0, 1], [[0, 0, 1, 1, 2], [0, 1, 0, 1, 2]], [[10, 10, 1], [10, 10, 1]], 5)
    assert row.cut(20) == [0, 1, 2, 3, 4]
    assert row.cut(30) == [0, 2, 4]
    assert row.cut(32) == [0, 2]
    assert row.cut(39) == [0, 2]
    assert row.cut(40) == [0, 4]
    assert row.cut(42) == [0]
    assert PairedRow([0, 0, 0], [[0, 1, 1], [1, 0, 1]], [[1, 1], [1, 1]], 5).cut(99) == [0, 1]


@pytest.mark.parametrize(
    ("elements", "stretches", "starts"), [(10, 8, [0, 1, 2, 3, 5, 6, 7, 8]), (3, 3, [0, 1, 2]), (3, 4, None)]
)
def test_a_row_is_cut_by_number(elements, stretches, starts):
    assert cut_by_number(elements, stretches) == starts
