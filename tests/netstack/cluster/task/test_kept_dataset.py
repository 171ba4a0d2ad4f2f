"""Who reads which part of a kept dataset."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import ConfigError
from netstack.cluster.task.kept_dataset import KeptDataset, shares


@given(st.lists(st.integers(1, 20), min_size=1, max_size=9), st.integers(1, 40))
def test_every_piece_is_read_once_and_shares_are_even(subpartitions: list[int], parallelism: int) -> None:
    actual = shares(subpartitions, parallelism)
    pieces = [
        (partition, index)
        for share in actual
        for partition, first, count in share
        for index in range(first, first + count)
    ]
    assert sorted(pieces) == [
        (partition, index) for partition, count in enumerate(subpartitions) for index in range(count)
    ]
    sizes = [sum(count for _, _, count in share) for share in actual]
    assert max(sizes) - min(sizes) <= 1
    assert all(len({partition for partition, _, _ in share}) == len(share) for share in actual)


def test_a_dataset_that_nobody_has_looked_up_is_refused() -> None:
    with pytest.raises(ConfigError, match="'words' was not looked up"):
        KeptDataset("words")
