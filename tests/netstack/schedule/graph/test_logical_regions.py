import pytest
from job_shapes import job_of

from netstack.schedule.graph.slot_groups import acyclic_logical_regions, logical_regions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a(1) -all,blocking-> b(1) -all,pipelined-> c(1)", [1, 2]),
        ("a(1) -all,blocking-> b(1) -all,blocking-> c(1)", [1, 1, 1]),
        ("a(1) -all,pipelined-> b(1) -all,pipelined_bounded-> c(1)", [3]),
        ("a(1) -all,blocking-> b(1); a -all,pipelined-> c(1); b -all,pipelined-> d(1); c -all,pipelined-> d", [4]),
        ("a(1) -all,pipelined_approximate-> b(1) -all,hybrid_full-> c(1) -all,hybrid_selective-> d(1)", [1, 1, 1, 1]),
        ("a(1); b(1); c(1)", [1, 1, 1]),
    ],
)
def test_sizes(text, expected):
    assert [len(vertices) for vertices in logical_regions(job_of(text))] == expected


def test_regions_and_vertices_are_in_topological_order():
    job = job_of("a(1); b(1); a -all,blocking-> c(1); b -all,pipelined-> d(1); a -all,pipelined-> e(1)")
    assert logical_regions(job) == ((0, 4), (1, 3), (2,))


def test_regions_that_wait_for_each_other_are_one_when_asked_for():
    job = job_of("a(1) -all,blocking-> b(1); a -all,pipelined-> c(1); b -all,blocking-> d(1); c -all,pipelined-> d")
    assert logical_regions(job) == ((0, 2, 3), (1,))
    assert acyclic_logical_regions(job) == ((0, 1, 2, 3),)


def test_regions_without_a_circle_stay_as_they_are():
    job = job_of("a(1) -all,blocking-> b(1) -all,pipelined-> c(1)")
    assert acyclic_logical_regions(job) == logical_regions(job) == ((0,), (1, 2))
