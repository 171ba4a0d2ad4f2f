import pytest

from netstack import ConfigError, LocalProtocolError
from netstack.schedule.adaptive.cut import DatasetSizes


def recorded(*rows):
    sizes = DatasetSizes("d", len(rows), len(rows[0]))
    for partition, row in enumerate(rows):
        sizes.record(partition, row)
    return sizes


def test_sizes_add_up():
    sizes = recorded([1, 2], [3, 4])
    assert sizes.is_complete
    assert sizes.by_subpartition().tolist() == [4, 6]
    assert sizes.by_partition().tolist() == [[1, 2], [3, 4]]
    assert sizes.total_bytes == 10


def test_a_producer_that_runs_again_is_forgotten_until_it_reports():
    sizes = recorded(*[[100]] * 6)
    sizes.forget(1)
    sizes.forget(1)
    assert sizes.recorded == 5
    assert sizes.total_bytes == 500
    with pytest.raises(LocalProtocolError, match="5 of 6 partitions"):
        sizes.by_partition()
    sizes.compact()
    assert sizes.recorded == 5
    sizes.record(1, [7])
    assert sizes.total_bytes == 507


def test_another_attempt_replaces_the_first():
    sizes = recorded([1, 2])
    sizes.record(0, [5, 5])
    assert sizes.total_bytes == 10


def test_compacted_sizes_are_sums_that_do_not_change():
    sizes = recorded([1, 2], [3, 4])
    sizes.compact()
    sizes.forget(0)
    sizes.record(1, [50, 50])
    assert sizes.is_complete
    assert sizes.by_subpartition().tolist() == [4, 6]
    with pytest.raises(LocalProtocolError, match="before `compact`"):
        sizes.by_partition()


@pytest.mark.parametrize(("partition", "row"), [(2, [1, 2]), (-1, [1, 2]), (0, [1]), (0, [1, 2, 3])])
def test_a_report_that_does_not_fit_is_refused(partition, row):
    with pytest.raises(ConfigError, match="2 partitions of 2"):
        DatasetSizes("d", 2, 2).record(partition, row)
