"""Plans: channels, connections, buffers and regions, counted; the renderings of them."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
from job_shapes import job_graph, nightly_join

from netstack.base.config import KIB, NetworkConfig
from netstack.base.errors import ConfigError
from netstack.base.ids import ResultPartitionType
from netstack.exchange.buffer.requirements import GatePlan, PartitionPlan, required_buffers
from netstack.schedule.graph.examples import word_count
from netstack.schedule.graph.job_graph import Dataset, DistributionPattern, JobEdge, JobGraph, JobVertex
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import (
    ExchangeMode,
    GlobalExchangeMode,
    StreamEdge,
    StreamGraph,
    StreamNode,
    StreamSettings,
)
from netstack.schedule.plan import plan as planning
from netstack.schedule.plan.as_json import plan_document
from netstack.schedule.plan.html import plan_html, plan_svg
from netstack.schedule.plan.labels import letter, ranges, shortened
from netstack.schedule.plan.plan import Plan, SlotsIn
from netstack.schedule.plan.text import plan_text
from netstack.schedule.slots.slots import LoadBalanceMode

F = "jobs:function"

make_plan = partial(planning.make_plan, slots_in=SlotsIn.LOOP)
"""A TaskManager is one process, unless a test says otherwise."""


def shuffle(parallelism: int) -> StreamGraph:
    job = StreamEnvironment("shuffle", parallelism=parallelism)
    job.source(F).rebalance().sink(F)
    return job.stream_graph()


@pytest.mark.parametrize(
    ("parallelism", "taskmanagers", "channels", "local", "connections"),
    [
        (4, 2, 16, 8, 2),
        (16, 4, 256, 64, 12),
        (100, 10, 10_000, 1_000, 90),
        (10_000, 100, 100_000_000, 1_000_000, 9_900),
    ],
)
def test_a_full_shuffle(parallelism: int, taskmanagers: int, channels: int, local: int, connections: int) -> None:
    plan = make_plan(shuffle(parallelism), taskmanagers=taskmanagers)
    assert plan.channels is not None
    (edge,) = plan.channels.edges
    assert (edge.channels, edge.local, edge.remote) == (channels, local, channels - local)
    assert (edge.connections, plan.channels.connections) == (connections, connections)
    assert plan.channels.dialled.tolist() == plan.channels.accepted.tolist() == [taskmanagers - 1] * taskmanagers


def test_uids_are_told() -> None:
    job = StreamEnvironment("words")
    job.source(F, name="lines").map(F, name="split").uid("words").sink(F, name="sink")
    plan = make_plan(job.stream_graph())
    assert "Uids    in checkpoints split is 'words'\n" in plan_text(plan)
    assert [chain["uids"] for chain in plan_document(plan)["chains"]] == [{"split": "words"}]
    assert "Uids" not in plan_text(make_plan(shuffle(2)))


def test_a_pointwise_exchange_stays_local() -> None:
    job = StreamEnvironment(parallelism=6)
    job.source(F).rescale().sink(F)
    plan = make_plan(job.stream_graph(), taskmanagers=3)
    assert plan.channels is not None
    assert (plan.channels.edges[0].channels, plan.channels.edges[0].remote, plan.channels.connections) == (6, 0, 0)


def test_datasets_share_connections() -> None:
    job = StreamEnvironment(parallelism=4)
    job.source(F).rebalance().map(F).rebalance().sink(F)
    plan = make_plan(job.stream_graph(), taskmanagers=2)
    assert plan.channels is not None
    assert [edge.connections for edge in plan.channels.edges] == [2, 2]
    assert plan.channels.connections == 2


def test_buffers_are_those_of_each_gate_and_partition() -> None:
    plan = make_plan(word_count().stream_graph(), taskmanagers=2)
    assert plan.buffers is not None
    # lines.0 split.0 split.1 count.0 count.1 and show.0 run on the first TaskManager, half of all splits and counts.
    first = required_buffers(
        gates={
            "split": GatePlan(1, 1),
            "split again": GatePlan(1, 1),
            "count": GatePlan(4, 2),
            "count again": GatePlan(4, 2),
            "show": GatePlan(4, 2),
        },
        partitions={
            "lines": PartitionPlan(4),
            "split": PartitionPlan(4),
            "split again": PartitionPlan(4),
            "count": PartitionPlan(1),
            "count again": PartitionPlan(1),
        },
        connections=1,
    )
    assert (int(plan.buffers.required[0]), int(plan.buffers.maximum[0])) == (first.required, first.maximum)


def test_more_than_the_memory_holds() -> None:
    plan = make_plan(shuffle(40), taskmanagers=2, network=NetworkConfig(memory_bytes=64 * 32 * KIB))
    assert plan.buffers is not None
    assert plan.buffers.missing == int(plan.buffers.required.max()) - 64
    assert not plan.is_possible
    assert "are missing. Give each TaskManager " in " ".join(plan_text(plan).split())
    assert plan_document(plan)["fits"] is False
    assert 'class="bad"' in plan_html(plan)


def test_each_slot_is_a_process_with_its_share_of_the_memory() -> None:
    """Two TaskManagers of two slots, and four by four subtasks: each process dials the three others."""
    graph, network = shuffle(4), NetworkConfig(memory_bytes=256 * 1024 * KIB)
    plan = planning.make_plan(graph, taskmanagers=2, slots=2, network=network)
    assert plan.channels is not None
    assert plan.buffers is not None
    (edge,) = plan.channels.edges
    assert (edge.local, edge.remote, plan.channels.connections) == (4, 12, 12)
    assert (plan.channels.tcp_connections, plan.channels.within) == (8, 4)
    needed = required_buffers(
        config=network, gates={"gate": GatePlan(4, 1)}, partitions={"made": PartitionPlan(4)}, connections=3
    )
    assert plan.buffers.required.tolist() == [needed.required] * 4
    assert plan.buffers.available == 128 * 1024 // 32
    text = " ".join(plan_text(plan).split())
    assert "on 8 TCP connections between slots of different TaskManagers and 4 in shared memory within them" in text
    assert "each slot is a process with memory for 4,096 network buffers" in text
    assert "4,096 network buffers in each slot, which is a process" in plan_html(plan)
    assert max(map(len, plan_text(plan).splitlines())) <= 100
    document = plan_document(plan)
    assert (document["cluster"]["slots_in"], document["network"]["tcp_connections"]) == ("processes", 8)
    assert document["taskmanagers"][0]["dials"] == document["taskmanagers"][0]["accepts"] == 6
    assert document["taskmanagers"][0]["buffers_required"] == needed.required


def test_what_fits_into_a_loop_may_not_fit_into_processes() -> None:
    graph = shuffle(40)
    network = NetworkConfig(memory_bytes=1700 * 32 * KIB)
    assert make_plan(graph, taskmanagers=1, network=network, slots=40).is_possible
    plan = planning.make_plan(graph, taskmanagers=1, network=network, slots=40)
    assert not plan.is_possible
    assert re.search(r"slot \d+ of TaskManager 0 needs 744 network buffers, but the memory of a slot", plan_text(plan))


def test_a_job_with_network_settings_of_its_own_has_their_buffers_in_each_process() -> None:
    own = NetworkConfig(memory_bytes=32 * KIB, segment_size_bytes=KIB)
    graph = replace(shuffle(4), settings=StreamSettings(network=own))
    for slots_in in SlotsIn:
        plan = planning.make_plan(graph, taskmanagers=2, slots=2, slots_in=slots_in)
        assert plan.buffers is not None
        assert plan.buffers.available == 32
        assert not plan.is_possible
        assert "Set memory_bytes of the job's network settings to " in " ".join(plan_text(plan).split())


def test_the_size_of_the_cluster() -> None:
    graph = shuffle(6)
    actual = [
        (plan.taskmanagers, plan.slots)
        for plan in (
            make_plan(graph),
            make_plan(graph, taskmanagers=4),
            make_plan(graph, slots=4),
            make_plan(graph, taskmanagers=5, slots=3),
        )
    ]
    assert actual == [(6, 1), (4, 2), (2, 4), (5, 3)]
    with pytest.raises(ConfigError, match="slots=0"):
        make_plan(graph, slots=0)


@pytest.mark.parametrize(
    "mode",
    [
        GlobalExchangeMode.ALL_EDGES_BLOCKING,
        GlobalExchangeMode.ALL_EDGES_HYBRID_FULL,
        GlobalExchangeMode.ALL_EDGES_HYBRID_SELECTIVE,
    ],
)
def test_subtasks_of_a_batch_job_take_turns(mode: GlobalExchangeMode) -> None:
    job = replace(shuffle(6), settings=StreamSettings(is_batch=True, exchange_mode=mode))
    plan = make_plan(job, taskmanagers=1, slots=1)
    assert plan.is_possible
    assert (plan.placement, plan.problem) == (None, "")
    text = "There are fewer slots (1) than subtasks that could run at the same time: they take turns"
    assert text in " ".join(plan_text(plan).split())
    assert text in plan_html(plan)
    document = plan_document(plan)
    assert (document["fits"], document["problems"], document["slots"]["taken_in_turns"]) == (True, [], True)
    # The balancer of tasks would wait for slots for all of them.
    balanced = make_plan(job, taskmanagers=1, slots=1, mode=LoadBalanceMode.TASKS)
    assert balanced.is_possible
    assert "load balance tasks (none for this job, which keeps results)" in plan_text(balanced)


def test_a_region_of_a_batch_job_needs_all_its_slots() -> None:
    job = StreamEnvironment("job", parallelism=3, settings=StreamSettings(is_batch=True))
    pipelined = job.source("a:read").rebalance().exchange(ExchangeMode.PIPELINED).map("a:f").slot_sharing_group("other")
    pipelined.key_by("a:key").exchange(ExchangeMode.BATCH).sink("a:show")
    assert make_plan(job.stream_graph(), taskmanagers=1, slots=6).is_possible
    assert "needs 6 slots at once" in make_plan(job.stream_graph(), taskmanagers=1, slots=5).problem


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_task_that_may_hold_the_slot_of_its_producer_takes_no_turns(is_batch: bool) -> None:
    """A batch job gives each vertex a slot sharing group of its own."""
    settings = StreamSettings(is_batch=is_batch, exchange_mode=GlobalExchangeMode.ALL_EDGES_HYBRID_FULL)
    plan = make_plan(replace(shuffle(6), settings=settings), taskmanagers=1, slots=5)
    assert plan.is_possible == is_batch
    assert ("1 TaskManager has 5" in plan.problem) != is_batch


def test_too_few_slots() -> None:
    plan = make_plan(shuffle(6), taskmanagers=1, slots=5)
    assert plan.placement is None
    assert not plan.is_possible
    document = plan_document(plan)
    assert "needs 6 slots" in document["problems"][0]
    assert document["taskmanagers"] is None
    assert document["network"] is None
    assert document["chains"][0]["taskmanagers"] is None
    assert "does not fit" in plan_text(plan)
    assert "Does not fit" in plan_html(plan)


def test_modes_of_load_balance() -> None:
    def spread(mode: LoadBalanceMode) -> list[int]:
        job = StreamEnvironment()
        job.source(F).set_parallelism(6).rebalance().sink(F).set_parallelism(3)
        plan = make_plan(job.stream_graph(), taskmanagers=3, slots=2, mode=mode)
        assert plan.placement is not None
        return [int(count) for count in plan.placement.tasks]

    assert spread(LoadBalanceMode.NONE) == [4, 3, 2]
    assert spread(LoadBalanceMode.TASKS) == [3, 3, 3]


def test_regions() -> None:
    plan = make_plan(nightly_join().stream_graph())
    assert [(region.vertices, region.sizes) for region in plan.regions] == [
        ((0,), {1: 6}),
        ((1,), {1: 2}),
        ((2, 3), {2: 6}),
        ((4,), {1: 3}),
    ]


def test_regions_that_wait_for_each_other_are_one() -> None:
    job = StreamEnvironment(buffer_timeout_s=None, settings=StreamSettings(is_chaining_enabled=False))
    first = job.source(F, name="v1")
    blocking = first.exchange(ExchangeMode.BATCH).map(F, name="v2").exchange(ExchangeMode.BATCH)
    first.map(F, name="v3").connect(blocking, F, name="v4")
    plan = make_plan(job.stream_graph())
    assert [(region.vertices, region.sizes) for region in plan.regions] == [((0, 1, 2, 3), {4: 1})]


def test_stages_take_turns() -> None:
    plan = make_plan(nightly_join().stream_graph(), taskmanagers=3, slots=2)
    document = plan_document(plan)
    assert [len(stage) for stage in document["slots"]["stages"]] == [1, 1, 1, 1]
    assert document["slots"]["required"] == 17
    assert document["slots"]["available"] == 6
    assert "in 4 stages, one after the other" in plan_text(plan)
    assert "4 stages run one after the other" in plan_html(plan)
    for text in (" ".join(plan_text(plan).split()), plan_html(plan)):
        assert "This plan assumes that no other job has slots" in text
        assert "Later stages take the slots that become free first." in text


def test_a_job_without_parallelism_is_planned_as_far_as_possible() -> None:
    job = StreamEnvironment("later", settings=StreamSettings(is_batch=True, is_dynamic=True))
    job.source(F).set_parallelism(3).key_by(F).map(F)
    plan = make_plan(job.stream_graph())
    assert plan.is_undecided
    assert plan.is_possible
    document = plan_document(plan)
    assert [chain["parallelism"] for chain in document["chains"]] == [3, None]
    assert (document["slots"]["required"], document["slots"]["by_group"]) == (None, {})
    assert "parallelism is decided while the job runs" in plan_text(plan)
    assert "divided while the job runs" in plan_html(plan)
    assert "undecided" in plan_svg(plan)


def test_a_job_graph_has_no_reasons() -> None:
    plan = make_plan(job_graph(word_count().stream_graph()))
    assert plan_document(plan)["reasons"] is None
    assert "Chaining\n" not in plan_text(plan)
    assert "Chaining</h2>" not in plan_html(plan)


def words_plan() -> Plan:
    return make_plan(word_count().stream_graph(), taskmanagers=2)


def test_the_picture_in_text() -> None:
    lines = plan_text(words_plan()).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[:2] == [
        "word count: 4 chains of 5 operators, 10 tasks, 4 slots",
        "on 2 TaskManagers with 2 slots each, load balance none",
    ]
    squeezed = [" ".join(line.split()) for line in lines]
    assert "┌──┤ writes split.0, pipelined_bounded │" in squeezed
    assert "└─▶│ from B: hash, all to all 16 channels: 8 local, 8 remote on 2 connections │" in squeezed
    assert "count ═══ frequent chained: all conditions hold" in squeezed
    assert "split ╌╌╌ count not chained: C10 partitioner is hash" in squeezed
    assert "0 6 1 50 120 [A0 B0 C0 D0] [B1 C1]" in squeezed
    assert "A B C D: 1 region of 10 tasks" in squeezed


def test_lines_of_the_picture_cross() -> None:
    job = StreamEnvironment("cross")
    a, b = job.source(F, name="a"), job.source(F, name="b")
    a.connect(b, F, name="c")
    text = plan_text(make_plan(job.stream_graph()))
    assert "┌─┼──┤    writes b.0" in text
    assert "│ └─▶│ from A: forward, pointwise" in text
    assert "└───▶│ from B: forward, pointwise, input 2" in text


def test_a_wide_job_is_drawn_without_lines() -> None:
    job = StreamEnvironment("wide")
    first, *others = (job.source(F, name=f"s{index}") for index in range(80))
    first.union(*others).sink(F, name="all")
    plan = make_plan(job.stream_graph())
    text = plan_text(plan)
    assert "▶" not in text
    assert "… and 21 chains more" in text
    assert "… and 20 edges more" in text
    assert max(map(len, text.splitlines())) <= 100
    assert plan_html(plan).count('class="edge"') == 80


def test_a_long_chain_is_cut() -> None:
    graph = StreamGraph(
        name="long",
        nodes=tuple(StreamNode(name=f"operator {index}", is_source=not index) for index in range(200)),
        edges=tuple(StreamEdge(source=index, target=index + 1) for index in range(199)),
    )
    plan = make_plan(graph)
    assert "(200 operators)" in plan_text(plan)
    assert "… 193 operators more" in plan_svg(plan)


def test_a_large_plan_tells_ranges() -> None:
    plan = make_plan(shuffle(400), taskmanagers=100, network=NetworkConfig(memory_bytes=1 << 33))
    text = plan_text(plan)
    assert " A4-7 B4-7\n" in text
    assert "… and 60 TaskManagers more" in text
    assert plan_document(plan)["chains"][0]["taskmanagers"][:5] == [0, 0, 0, 0, 1]


def test_the_document() -> None:
    document = json.loads(json.dumps(plan_document(words_plan())))
    assert list(document) == [
        "job",
        "fits",
        "problems",
        "cluster",
        "chains",
        "datasets",
        "edges",
        "reasons",
        "slots",
        "network",
        "taskmanagers",
        "regions",
    ]
    assert document["chains"][2] == {
        "id": "C",
        "name": "count -> frequent",
        "operators": ["count", "frequent"],
        "functions": ["words:Count", "words:is_frequent"],
        "uids": {},
        "parallelism": 4,
        "max_parallelism": 128,
        "slot_sharing_group": "default",
        "co_location_group": None,
        "taskmanagers": [0, 0, 1, 1],
        "slots": [0, 1, 0, 1],
    }
    assert document["edges"][1] == {
        "from": "B",
        "to": "C",
        "input": 1,
        "dataset": "split.0",
        "partitioner": "hash",
        "pattern": "all_to_all",
        "function": "words:word",
        "buffer_timeout_s": 0.1,
        "is_prompt": False,
        "channels": 16,
        "local": 8,
        "remote": 8,
        "tcp_connections": 2,
    }
    assert document["network"] == {
        "channels": 24,
        "local": 12,
        "remote": 12,
        "tcp_connections": 2,
        "tcp_connections_by_dataset": 4,
        "shared_memory_connections": 0,
        "buffers_available": 2048,
        "segment_size_bytes": 32768,
    }
    assert [row["buffers_required"] for row in document["taskmanagers"]] == [50, 46]
    assert document["regions"] == [{"chains": ["A", "B", "C", "D"], "regions": 1, "sizes": {"10": 1}}]
    reported = document["reasons"][1]
    assert [one["number"] for one in reported["conditions"] if not one["holds"]] == ["C10"]


def test_names_are_escaped() -> None:
    job = StreamEnvironment('<"job">')
    job.source(F, name='<b>"x\\').rebalance().sink(F, name="&")
    plan = make_plan(job.stream_graph())
    assert "<b>" not in plan_html(plan)
    ElementTree.fromstring(plan_svg(plan))


def diamond() -> StreamEnvironment:
    """An edge past two layers, an input read twice, a side output, co-location, more TaskManagers than are used."""
    job = StreamEnvironment("diamond", parallelism=4)
    events = job.source(F, name="events").co_location_group("pair")
    deep = events.rebalance().map(F, name="left").co_location_group("pair").rebalance().map(F, name="deep")
    join = deep.union(events.rescale().map(F, name="right").set_parallelism(2)).connect(
        events.broadcast().union(events.rebalance()), F, name="join"
    )
    join.side_output("late").sink(F, name="late").set_parallelism(1)
    return job


def test_everything_that_is_told_of_an_edge_and_a_chain() -> None:
    text = plan_text(make_plan(diamond().stream_graph(), taskmanagers=20, slots=4))
    squeezed = [" ".join(line.split()) for line in text.splitlines()]
    assert any("│ A events 4 subtasks, slots of 'default', co-located in 'pair' │" in line for line in squeezed)
    assert any("from A: broadcast, all to all, input 2" in line for line in squeezed)
    assert any("from E: rebalance, all to all, side output 'late' 4 channels" in line for line in squeezed)
    assert any("│ │ └─┼─▶│ from A: rescale, pointwise" in line for line in squeezed)
    assert "0 19 0 114 408 A0-3 B0-3 C0-3 D0-1 E0-3 F0" in squeezed
    assert "nothing runs on 19 TaskManagers more" in squeezed


def test_a_dataset_that_is_read_twice_by_one_chain_is_one_line() -> None:
    job = StreamEnvironment("twice", settings=StreamSettings(is_batch=True))
    source = job.source(F, name="a")
    source.rebalance().connect(source.rebalance(), F, name="b")
    plan = make_plan(job.stream_graph())
    assert len(plan.job.datasets) == 1
    text = plan_text(plan)
    assert "├─▶│ from A: rebalance, all to all" in text
    assert "└─▶│ from A: rebalance, all to all, input 2" in text


@pytest.mark.parametrize("make", [word_count, nightly_join, diamond])
def test_the_drawing_is_well_formed_and_boxes_do_not_overlap(make: type[StreamEnvironment]) -> None:
    root = ElementTree.fromstring(plan_svg(make_plan(make().stream_graph())))
    boxes = [
        tuple(float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        for box in root.iter("rect")
        if box.attrib["class"] == "box"
    ]
    for number, (x, y, width, height) in enumerate(boxes):
        assert 0 <= x <= float(root.attrib["width"]) - width
        assert 0 <= y <= float(root.attrib["height"]) - height
        for other_x, other_y, other_width, other_height in boxes[:number]:
            assert (
                x >= other_x + other_width
                or other_x >= x + width
                or y >= other_y + other_height
                or other_y >= y + height
            )


def test_a_plan_refuses_a_result_that_no_task_can_write() -> None:
    vertices = (JobVertex("a", 1, is_source=True), JobVertex("b", 1))
    result = Dataset("records", 0, ResultPartitionType.PIPELINED_APPROXIMATE)
    job = JobGraph("by hand", vertices, (result,), (JobEdge(0, 1, DistributionPattern.ALL_TO_ALL),))
    with pytest.raises(ConfigError, match=r"'records' .* pipelined_approximate"):
        make_plan(job)


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_needs_no_more_width_than_the_screen(chromium: str, tmp_path: Path, width: int) -> None:
    page = tmp_path / "plan.html"
    check = "<script>document.title = document.documentElement.scrollWidth <= innerWidth ? 'fits' : 'too wide'</script>"
    page.write_text(plan_html(make_plan(nightly_join().stream_graph(), taskmanagers=3, slots=2)) + check, "utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom"]
    displayed = subprocess.run(
        [chromium, *flags, f"--user-data-dir={tmp_path}", page.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "<title>fits</title>" in displayed.stdout


def test_short_texts() -> None:
    assert [letter(number) for number in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert shortened("abcdefghij", 7) == "abcd…ij"
