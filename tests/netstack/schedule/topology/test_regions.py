import dataclasses

import pytest
from job_shapes import job_of

from netstack import ConfigError
from netstack.schedule.structures import index_array
from netstack.schedule.topology.execution_graph import ExecutionGraph
from netstack.schedule.topology.regions import Regions


def regions_of(text):
    """The regions as sets of names such as a0."""
    topology = ExecutionGraph(job_of(text))
    regions = Regions(topology)
    return [
        {f"{topology.job.vertices[vertex].name}{index}" for vertex, index in map(topology.place_of, members.tolist())}
        for members in map(regions.members, range(len(regions)))
    ]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("s(5) -all,blocking-> k(5)", [1] * 10),
        ("s(5) -all,pipelined-> k(5)", [10]),
        ("s(5) -pointwise,pipelined-> k(5)", [2] * 5),
        ("s(5) -pointwise,blocking-> k(5)", [1] * 10),
        ("a(1) -all,blocking-> b(1); a -all,pipelined-> c(1); b -all,pipelined-> d(1); c -all,pipelined-> d", [4]),
        ("a(1); b(1); c(1)", [1, 1, 1]),
        ("a(1) -all,pipelined_approximate-> b(1); a -all,pipelined_approximate=x-> c(1);"
         "b -all,pipelined_approximate-> d(1); c -all,pipelined_approximate-> d", [1, 1, 1, 1]),
        ("a(1) -all,pipelined-> c(1); b(1); d(1); b -all,pipelined-> d", [2, 2]),
        ("a(1); b(1); a -all,pipelined-> c(1); b -all,pipelined-> c", [3]),
        # A consumer of two blocking results stays apart from both producers.
        ("a(1); b(1); a -all,blocking-> c(1); b -all,blocking-> c", [1, 1, 1]),
    ],
)  # fmt: skip
def test_sizes(text, sizes):
    assert [len(region) for region in regions_of(text)] == sizes


def test_pointwise_pipelines_before_a_blocking_shuffle():
    assert regions_of("s(2) -pointwise,pipelined-> m(2) -all,blocking-> k(2)") == [
        {"s0", "m0"}, {"s1", "m1"}, {"k0"}, {"k1"}
    ]  # fmt: skip


def test_a_pipelined_shuffle_before_a_blocking_one():
    assert regions_of("a(2) -all,pipelined-> b(2) -all,blocking-> c(2)") == [{"a0", "a1", "b0", "b1"}, {"c0"}, {"c1"}]


DIAMOND = (
    "A(2) -pointwise,pipelined-> B(2); A -pointwise,pipelined-> C(2);B -{},blocking-> D(2); C -pointwise,pipelined-> D"
)


def test_a_blocking_shuffle_inside_would_deadlock_so_it_is_one_region():
    assert [len(region) for region in regions_of(DIAMOND.format("all"))] == [8]


def test_a_blocking_pointwise_edge_inside_its_own_region_merges_nothing():
    assert regions_of(DIAMOND.format("pointwise")) == [{"A0", "B0", "C0", "D0"}, {"A1", "B1", "C1", "D1"}]


def test_a_blocking_edge_that_crosses_one_way_merges_nothing():
    text = "x(4) -pointwise,pipelined-> y(3) -pointwise,blocking-> z(2); x -pointwise,pipelined-> z"
    assert regions_of(text) == [{"x0", "x1", "y0", "y1", "z0"}, {"x2", "x3", "y2", "z1"}]


def test_pointwise_regions_that_wait_for_each_other_are_merged():
    text = "a(2) -pointwise,pipelined-> b(3) -pointwise,blocking-> c(2); a -pointwise,pipelined-> c"
    assert [len(region) for region in regions_of(text)] == [4, 3]
    back = "; c -pointwise,blocking-> d(4); b -pointwise,pipelined-> d"
    assert [len(region) for region in regions_of(text + back)] == [11]


def test_logical_regions_in_a_circle_are_converted_as_one():
    text = (
        "a(2) -{0},blocking-> b(2); a -pointwise,pipelined-> c(2);"
        "b -pointwise,blocking-> d(2); c -pointwise,pipelined-> d"
    )
    assert [len(region) for region in regions_of(text.format("all"))] == [8]
    assert regions_of(text.format("pointwise")) == [{"a0", "c0", "d0", "b0"}, {"a1", "c1", "d1", "b1"}]


def test_members_of_several_regions():
    regions = Regions(ExecutionGraph(job_of("s(2) -pointwise,pipelined-> k(2)")))
    assert regions.region_of.tolist() == [0, 1, 0, 1]
    assert regions.members_of_all(index_array([1, 0])).tolist() == [[1, 3], [0, 2]]
    assert regions.of_subtasks(index_array([3, 1])).tolist() == [1]
    assert regions.sizes().tolist() == [2, 2]


def test_a_dynamic_job_gets_regions_as_it_grows():
    topology = ExecutionGraph(job_of("a(2) -all,blocking-> b(-1) -pointwise,pipelined-> c(-1)", is_dynamic=True))
    regions = Regions(topology)
    assert len(regions) == 0
    topology.initialise(0)
    assert regions.extend() == range(2)
    assert regions.extend() == range(2, 2)
    topology.decide(1, 3)
    topology.decide(2, 3)
    topology.initialise(1)
    topology.initialise(2)
    assert regions.extend() == range(2, 5)
    assert [regions.members(region).tolist() for region in range(5)] == [[0], [1], [2, 5], [3, 6], [4, 7]]


def test_a_logical_region_comes_as_a_whole():
    topology = ExecutionGraph(job_of("a(2) -all,pipelined-> b(2)", is_dynamic=True))
    topology.initialise(0)
    with pytest.raises(ConfigError, match=r"\['b'\] must run at the same time"):
        Regions(topology)


def co_located(text):
    job = job_of(text)
    vertices = tuple(dataclasses.replace(vertex, co_location_group="g") for vertex in job.vertices)
    return dataclasses.replace(job, vertices=vertices)


def test_co_located_subtasks_are_in_one_region():
    assert len(Regions(ExecutionGraph(co_located("a(2) -all,pipelined-> b(2)")))) == 1
    with pytest.raises(ConfigError, match=r"subtask 0 of 'a' and of 'b' .* 'g'"):
        Regions(ExecutionGraph(co_located("a(2) -all,blocking-> b(2)")))


def test_the_headline_job_has_a_region_for_every_subtask():
    assert len(Regions(ExecutionGraph(job_of("source(10000) -all,blocking-> sink(10000)")))) == 20_000
