import pytest
from job_shapes import job_of

from netstack import ConfigError
from netstack.base.ids import ResultPartitionType
from netstack.schedule.graph.job_graph import DistributionPattern


def test_a_chain_of_arrows():
    job = job_of("a(2) -pointwise,pipelined-> b(3) -all,blocking-> c(1)")
    assert [(vertex.name, vertex.parallelism, vertex.is_source) for vertex in job.vertices] == [
        ("a", 2, True),
        ("b", 3, False),
        ("c", 1, False),
    ]
    assert [dataset.type for dataset in job.datasets] == [ResultPartitionType.PIPELINED, ResultPartitionType.BLOCKING]
    assert [(edge.dataset, edge.consumer, edge.pattern) for edge in job.edges] == [
        (0, 1, DistributionPattern.POINTWISE),
        (1, 2, DistributionPattern.ALL_TO_ALL),
    ]


def test_arrows_of_one_name_share_a_dataset():
    job = job_of("a(1); b(1); a -all,blocking=x-> c(1); a -all,blocking=x-> d(1); b -all,blocking=x-> d")
    assert [edge.dataset for edge in job.edges] == [0, 0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [("a(1) -> b(1)", "no arrow at '-> b"), ("a(1); ,b", "no vertex at"), ("a", "no parallelism")],
)
def test_what_cannot_be_read_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        job_of(text)
