"""From names of groups to slots."""

from __future__ import annotations

import pytest
from job_shapes import job_graph

from netstack.base.errors import ConfigError
from netstack.schedule.graph.job_graph import JobGraph, ResourceProfile
from netstack.schedule.graph.slot_groups import inherited_group, logical_regions, required_slots, slots_by_group
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import ExchangeMode, GlobalExchangeMode, StreamSettings

F = "jobs:function"


def made(job: StreamEnvironment) -> JobGraph:
    return job_graph(job.stream_graph())


@pytest.mark.parametrize(
    ("explicit", "inputs", "name"),
    [
        ("mine", ["a"], "mine"),
        (None, [], "default"),
        (None, ["a", "a"], "a"),
        (None, ["a", "b"], "default"),
    ],
)
def test_the_group_of_an_operator(explicit: str | None, inputs: list[str], name: str) -> None:
    assert inherited_group(explicit, inputs) == name


@pytest.mark.parametrize(("group", "slots"), [("test", 30), ("default", 20)])
def test_required_slots(group: str, slots: int) -> None:
    job = StreamEnvironment(parallelism=20)
    job.source(F).set_parallelism(10).map(F).slot_sharing_group(group).key_by(F).process(F).sink(F)
    assert required_slots(made(job)) == slots


def test_slots_of_the_worked_examples() -> None:
    job = StreamEnvironment()
    job.source(F).map(F).filter(F).slot_sharing_group("group_03").map(F).filter(F).slot_sharing_group("group_04").sink(
        F
    )
    assert slots_by_group(made(job)) == (1, 1, 1)
    job = StreamEnvironment()
    job.source(F).set_parallelism(4).map(F).set_parallelism(10).sink(F).set_parallelism(20)
    assert required_slots(made(job)) == 20


def four(is_shared: bool | None, is_batch: bool) -> list[str]:
    settings = StreamSettings(is_batch=is_batch, shares_slots_by_default=is_shared)
    job = StreamEnvironment(settings=settings)
    job.source(F, name="a").rebalance().map(F, name="b").rebalance().map(F, name="c").slot_sharing_group("named").sink(
        F, name="d"
    ).start_new_chain().slot_sharing_group("default")
    graph = made(job)
    return [graph.slot_sharing_groups[vertex.slot_sharing_group].name for vertex in graph.vertices]


@pytest.mark.parametrize(("is_shared", "is_batch"), [(True, True), (None, False), (True, False)])
def test_whoever_names_no_group_shares_slots(is_shared: bool | None, is_batch: bool) -> None:
    assert four(is_shared, is_batch) == ["default", "default", "named", "default"]


def test_each_region_of_a_batch_job_has_its_own_group() -> None:
    assert four(None, True) == ["default of a", "default of b", "named", "default of d"]
    assert four(False, False) == ["default of a", "default of a", "named", "default of a"]


def test_a_region_shares_slots_in_batch() -> None:
    settings = StreamSettings(is_batch=True, exchange_mode=GlobalExchangeMode.FORWARD_EDGES_PIPELINED)
    job = StreamEnvironment(settings=settings, parallelism=3)
    stream = job.source(F, name="a").map(F, name="b").start_new_chain().rebalance().map(F, name="c")
    stream.map(F, name="d").start_new_chain()
    graph = made(job)
    assert logical_regions(graph) == ((0, 1), (2, 3))
    assert [vertex.slot_sharing_group for vertex in graph.vertices] == [0, 0, 1, 1]
    assert slots_by_group(graph) == (3, 3)


def test_hybrid_results_go_with_the_default_group_only() -> None:
    job = StreamEnvironment()
    job.source(F).rebalance().exchange(ExchangeMode.HYBRID_FULL).map(F).slot_sharing_group("x")
    graph = job.stream_graph()
    with pytest.raises(ConfigError, match=r"'source\.0' is hybrid_full"):
        job_graph(graph)


def test_profiles_of_groups() -> None:
    profile = ResourceProfile("concrete", 2.0, 1 << 30)
    job = StreamEnvironment(group_profiles={"big": profile})
    job.source(F).map(F).slot_sharing_group("big")
    assert [group.profile.kind for group in made(job).slot_sharing_groups] == ["unknown", "concrete"]
    job.group_profiles["other"] = profile
    graph = job.stream_graph()
    with pytest.raises(ConfigError, match=r"no vertex .* groups other"):
        job_graph(graph)


def co_located(group: str, mode: ExchangeMode) -> StreamEnvironment:
    job = StreamEnvironment(buffer_timeout_s=None)
    first = job.source(F, name="head").co_location_group("loop")
    last = first.rebalance().exchange(mode).map(F, name="tail").co_location_group("loop")
    last.slot_sharing_group(group)
    return job


def test_co_located_vertices_share_slots_and_run_together() -> None:
    assert made(co_located("default", ExchangeMode.PIPELINED)).vertices[1].co_location_group == "loop"
    separate = co_located("other", ExchangeMode.PIPELINED).stream_graph()
    with pytest.raises(ConfigError, match="groups 'default' and 'other'"):
        job_graph(separate)
    later = co_located("default", ExchangeMode.BATCH).stream_graph()
    with pytest.raises(ConfigError, match="are in different pipelined regions"):
        job_graph(later)


def test_slots_that_cannot_be_counted_yet() -> None:
    job = StreamEnvironment(settings=StreamSettings(is_batch=True, is_dynamic=True))
    job.source(F)
    graph = made(job)
    with pytest.raises(ConfigError, match="'source' has no parallelism yet"):
        required_slots(graph)
