"""Job graphs made by hand: questions, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from netstack.base.errors import ConfigError
from netstack.base.ids import ResultPartitionType
from netstack.schedule.graph.job_graph import UNDECIDED, Dataset, DistributionPattern, JobEdge, JobGraph, JobVertex

A, B = JobVertex("a", 2), JobVertex("b", 3)
AB = Dataset("ab", 0, ResultPartitionType.PIPELINED_BOUNDED)
EDGE = JobEdge(0, 1, DistributionPattern.ALL_TO_ALL)


def test_who_reads_whom() -> None:
    job = JobGraph("job", (A, B), (AB,), (EDGE, EDGE))
    assert job.inputs_of(1) == job.consumers_of(0) == (EDGE, EDGE)
    assert (job.inputs_of(0), job.outputs_of(0), job.outputs_of(1)) == ((), (0,), ())
    assert job == JobGraph("job", (A, B), (AB,), (EDGE, EDGE))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"vertices": ()}, "job 'job' is empty; add an operator"),
        ({"vertices": (JobVertex("\x1b[2J", 1),)}, r"vertex '\\x1b\[2J' has unprintable characters"),
        ({"vertices": (A, A)}, "two vertices named 'a'"),
        ({"vertices": (JobVertex("a", 0),)}, "'a': parallelism 0; give 1 to 128"),
        ({"vertices": (JobVertex("a", 129),)}, "'a': parallelism 129; give 1 to 128"),
        ({"vertices": (JobVertex("a", UNDECIDED),)}, "'a' has no parallelism, but the job is not adaptive"),
        ({"vertices": (JobVertex("a", 1, slot_sharing_group=1),)}, "no slot sharing group 1"),
        ({"vertices": (A,), "datasets": (Dataset("x", 1, ResultPartitionType.BLOCKING),)}, "'x': no vertex 1"),
        ({"vertices": (A, B), "edges": (EDGE,)}, "no such dataset or vertex"),
        (
            {"vertices": (A, B), "datasets": (AB,), "edges": (JobEdge(0, 0, DistributionPattern.POINTWISE),)},
            "edge 'ab' -> 'a' goes backwards",
        ),
    ],
)
def test_what_is_no_job(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        JobGraph("job", **given)
