"""Plans of jobs small enough to be worked out on paper."""

import pytest

from netstack import ConfigError
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.plan.as_json import plan_document
from netstack.schedule.plan.plan import SlotsIn, make_plan
from netstack.schedule.plan.text import plan_text
from netstack.schedule.slots.slots import LoadBalanceMode

NONE, SLOTS, TASKS = LoadBalanceMode
F = "jobs:function"


def shuffles(*parallelisms):
    """A, B, C ... with these parallelisms, every record to any subtask of the next."""
    job = StreamEnvironment("shuffles")
    stream = job.source(F, name="A").set_parallelism(parallelisms[0])
    for letter, parallelism in zip("BCDE", parallelisms[1:], strict=False):
        stream = stream.rebalance().map(F, name=letter).set_parallelism(parallelism)
    return job.stream_graph()


def planned(graph, taskmanagers, slots, mode=NONE):
    return make_plan(graph, taskmanagers=taskmanagers, slots=slots, mode=mode, slots_in=SlotsIn.LOOP)


def who_is_where(plan):
    """What runs on each TaskManager, slot by slot, such as `A0B0`."""
    document = plan_document(plan)
    slots = [["" for _ in range(plan.slots)] for _ in range(plan.taskmanagers)]
    for chain in document["chains"]:
        for subtask, (where, slot) in enumerate(zip(chain["taskmanagers"], chain["slots"], strict=True)):
            slots[where][slot] += f"{chain['name']}{subtask}"
    return slots


def tasks(plan):
    return [one["tasks"] for one in plan_document(plan)["taskmanagers"]]


def test_six_and_three_by_default():
    plan = planned(shuffles(6, 3), 3, 2)
    assert who_is_where(plan) == [["A0B0", "A1B1"], ["A2B2", "A3"], ["A4", "A5"]]
    assert tasks(plan) == [4, 3, 2]


def test_six_and_three_in_balance():
    plan = planned(shuffles(6, 3), 3, 2, TASKS)
    assert who_is_where(plan) == [["A0B0", "A3"], ["A1B1", "A4"], ["A2B2", "A5"]]
    assert tasks(plan) == [3, 3, 3]


def test_one_four_four_two_three_by_default():
    plan = planned(shuffles(1, 4, 4, 2, 3), 2, 2)
    assert who_is_where(plan) == [["A0B0C0D0E0", "B1C1D1E1"], ["B2C2E2", "B3C3"]]
    assert tasks(plan) == [9, 5]


def test_one_four_four_two_three_in_balance():
    plan = planned(shuffles(1, 4, 4, 2, 3), 2, 2, TASKS)
    slots = [len(slot) // 2 for taskmanager in who_is_where(plan) for slot in taskmanager]
    assert sorted(slots) == [3, 3, 4, 4]
    assert tasks(plan) == [7, 7]


def test_two_taskmanagers_with_two_slots_share_two_connections():
    plan = planned(shuffles(4, 4), 2, 2)
    assert who_is_where(plan) == [["A0B0", "A1B1"], ["A2B2", "A3B3"]]
    document = plan_document(plan)
    edge = document["edges"][0]
    assert (edge["channels"], edge["local"], edge["remote"]) == (16, 8, 8)
    # A0 and A1 reach B2 and B3 over one connection; the other direction has one more.
    assert document["network"]["tcp_connections"] == edge["tcp_connections"] == 2
    assert [(one["dials"], one["accepts"]) for one in document["taskmanagers"]] == [(1, 1), (1, 1)]


@pytest.mark.parametrize("mode", LoadBalanceMode)
@pytest.mark.parametrize(("parallelism", "count"), [(4, 2), (16, 4), (100, 10)])
def test_a_full_shuffle_over_equal_taskmanagers_is_the_same_in_any_mode(parallelism, count, mode):
    plan = planned(shuffles(parallelism, parallelism), count, parallelism // count, mode)
    network = plan_document(plan)["network"]
    assert network["channels"] == parallelism**2
    assert network["local"] == parallelism**2 // count
    assert network["tcp_connections"] == count * (count - 1)


def test_channels_and_connections_counted_one_by_one():
    document = plan_document(planned(shuffles(5, 7, 3), 3, 3, TASKS))
    places = {chain["name"]: chain["taskmanagers"] for chain in document["chains"]}
    everybody = set()
    for edge, (source, target) in zip(document["edges"], ("AB", "BC"), strict=True):
        pairs = [(one, other) for one in places[source] for other in places[target]]
        remote = [pair for pair in pairs if pair[0] != pair[1]]
        assert (edge["local"], edge["remote"]) == (len(pairs) - len(remote), len(remote))
        assert edge["tcp_connections"] == len(set(remote))
        everybody.update(remote)
    assert document["network"]["tcp_connections"] == len(everybody)


def test_ten_in_one_group_and_twenty_in_another_take_thirty_slots():
    job = StreamEnvironment("groups", parallelism=20)
    source = job.source(F, name="A").set_parallelism(10)
    source.map(F, name="B").slot_sharing_group("test").map(F, name="C").rebalance().sink(F, name="D")
    plan = make_plan(job.stream_graph(), taskmanagers=3)
    assert plan_document(plan)["slots"]["by_group"] == {"default": 10, "test": 20}
    assert plan.slots == 10
    refused = planned(job.stream_graph(), 1, 29)
    assert not refused.is_possible
    assert "needs 30 slots" in refused.problem
    assert "needs 30 slots" in plan_text(refused)


def test_the_same_job_in_one_group_takes_twenty_slots():
    job = StreamEnvironment("one group", parallelism=20)
    job.source(F).set_parallelism(10).map(F).map(F).rebalance().sink(F)
    assert plan_document(make_plan(job.stream_graph()))["slots"]["required"] == 20


def test_groups_are_inherited_and_break_chains():
    job = StreamEnvironment("three groups", parallelism=1)
    stream = job.source(F, name="source").map(F, name="first")
    stream = stream.filter(F, name="second").slot_sharing_group("group_03").map(F, name="third")
    stream = stream.filter(F, name="fourth").slot_sharing_group("group_04").map(F, name="fifth")
    stream.sink(F, name="print")
    document = plan_document(make_plan(job.stream_graph()))
    assert [chain["name"] for chain in document["chains"]] == [
        "source -> first", "second -> third", "fourth -> fifth -> print",
    ]  # fmt: skip
    assert document["slots"]["by_group"] == {"default": 1, "group_03": 1, "group_04": 1}


def test_slots_of_no_taskmanagers_are_refused():
    with pytest.raises(ConfigError, match="taskmanagers=0"):
        make_plan(shuffles(1, 1), taskmanagers=0)
