"""Laws of slots: who may share one, who gets which, and that nobody is left half served."""

from dataclasses import replace
from itertools import permutations

from hypothesis import assume, given, settings, strategies as st

from netstack.base.ids import ResultPartitionType
from netstack.cluster.jobmanager.resource_manager.slot_manager import SlotManager
from netstack.schedule.descriptors.shuffle import TaskManagerLocation
from netstack.schedule.events import Proceed, SlotsOffered, StartJob, TaskManagerRegistered, Tick
from netstack.schedule.graph.job_graph import (
    ANY_PROFILE,
    UNKNOWN_PROFILE,
    Dataset,
    DistributionPattern,
    JobEdge,
    JobGraph,
    JobVertex,
    ResourceProfile,
    SlotSharingGroup,
)
from netstack.schedule.graph.slot_groups import required_slots
from netstack.schedule.instructions import Continue, Deploy, RequireSlots
from netstack.schedule.scheduler import Scheduler
from netstack.schedule.scheduler_settings import SchedulerSettings
from netstack.schedule.slots.placement import place
from netstack.schedule.slots.slot_matching import FreeSlots, can_serve, match_balanced
from netstack.schedule.slots.slot_pool import SlotPool
from netstack.schedule.slots.slot_sharing import (
    LocalInputPreferred,
    consumed_partitions,
    local_input_preferred,
    task_balanced,
)
from netstack.schedule.slots.slots import LoadBalanceMode, Location, PhysicalSlot, SlotDemand, SlotRequest

PROFILES = (ResourceProfile("concrete", 1.0, 1), ResourceProfile("concrete", 2.0, 2))
STRATEGIES = st.sampled_from([local_input_preferred, task_balanced])


@st.composite
def graphs(draw, co_location=True, may_run=False):
    """Jobs of one logical pipelined region, in up to three slot sharing groups.

    Those that may run have no subtasks that must share a slot in different regions.
    """
    count = draw(st.integers(1, 7))
    group_count = draw(st.integers(1, 3))
    vertices = []
    for index in range(count):
        group = draw(st.integers(0, group_count - 1))
        together = f"co{group}" if co_location and draw(st.booleans()) and draw(st.booleans()) else None
        vertices.append(
            JobVertex(f"v{index}", draw(st.integers(1, 9)), slot_sharing_group=group, co_location_group=together)
        )
    pairs = [(index, index + 1) for index in range(count - 1)]
    pairs += draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=5))
    pairs = [(low, high) for low, high in pairs if low < high < count]
    datasets = tuple(
        Dataset(f"d{number}", low, ResultPartitionType.PIPELINED_BOUNDED) for number, (low, _) in enumerate(pairs)
    )
    patterns = list(DistributionPattern)
    if may_run and any(vertex.co_location_group for vertex in vertices):
        patterns = [DistributionPattern.ALL_TO_ALL]
    edges = tuple(JobEdge(number, high, draw(st.sampled_from(patterns))) for number, (_, high) in enumerate(pairs))
    groups = tuple(SlotSharingGroup(f"g{number}") for number in range(group_count))
    return JobGraph("job", tuple(vertices), datasets, edges, groups)


def naive_local_input_preferred(graph):
    """The rules word by word, with sets of subtasks, and a shared list of candidates for each consumed group."""
    slots, place_of, bound = [], {}, {}
    parallelisms = [vertex.parallelism for vertex in graph.vertices]
    for index, vertex in enumerate(graph.vertices):
        mine = vertex.slot_sharing_group
        candidates = {}

        def take(slot, subtask, index=index):
            slot["members"].add((index, subtask))
            slot["vertices"].add(index)
            place_of[index, subtask] = slot

        deferred = []
        inputs = [
            (number, consumed)
            for number, consumed in enumerate(consumed_partitions(graph, index, parallelisms))
            if graph.vertices[consumed.producer].slot_sharing_group == mine
        ]
        for subtask in range(vertex.parallelism):
            slot = bound.get((vertex.co_location_group, subtask))
            if slot is None:
                for number, consumed in inputs:
                    key = number, consumed.first[subtask], consumed.last[subtask]
                    if key not in candidates:
                        candidates[key] = [
                            place_of[consumed.producer, partition] for partition in range(key[1], key[2] + 1)
                        ]
                    while candidates[key] and slot is None:
                        actual = candidates[key].pop(0)
                        slot = None if index in actual["vertices"] else actual
                    if slot is not None:
                        break
            if slot is None:
                deferred.append(subtask)
            else:
                take(slot, subtask)
        for subtask in deferred:
            slot = next((one for one in slots if one["group"] == mine and index not in one["vertices"]), None)
            if slot is None:
                slot = {"group": mine, "members": set(), "vertices": set()}
                slots.append(slot)
            take(slot, subtask)
        if vertex.co_location_group is not None:
            for subtask in range(vertex.parallelism):
                bound[vertex.co_location_group, subtask] = place_of[index, subtask]
    return [slot["members"] for slot in slots]


def check_sharing(graph, groups):
    assert groups.count == required_slots(graph)
    for vertex, of_vertex in zip(graph.vertices, groups.of_vertex, strict=True):
        assert len(set(of_vertex.tolist())) == of_vertex.size == vertex.parallelism
        assert set(groups.slot_sharing_group[of_vertex].tolist()) == {vertex.slot_sharing_group}
    together = {}
    for vertex, of_vertex in zip(graph.vertices, groups.of_vertex, strict=True):
        if vertex.co_location_group is not None:
            for subtask, group in enumerate(of_vertex.tolist()):
                assert together.setdefault((vertex.co_location_group, subtask), group) == group


@given(graphs(), STRATEGIES)
def test_subtasks_share_slots_as_they_may_and_as_they_must(graph, strategy):
    check_sharing(graph, strategy(graph))


@given(graphs())
def test_the_default_strategy_is_what_its_rules_say(graph):
    groups = local_input_preferred(graph)
    assert [set(groups.members(group)) for group in range(groups.count)] == naive_local_input_preferred(graph)


@given(graphs())
def test_growing_never_changes_what_is_there(graph):
    strategy = LocalInputPreferred(graph)
    before = []
    parallelisms = [vertex.parallelism for vertex in graph.vertices]
    for index, parallelism in enumerate(parallelisms):
        strategy.add(index, parallelism, consumed_partitions(graph, index, parallelisms))
        grown = strategy.groups()
        assert [groups.tolist() for groups in grown.of_vertex[:index]] == before
        before.append(grown.of_vertex[index].tolist())


@given(graphs(co_location=False))
def test_balanced_slots_of_a_group_differ_by_one_task_at_most(graph):
    groups = task_balanced(graph)
    loads = groups.loads()
    for number in set(groups.slot_sharing_group.tolist()):
        own = loads[groups.slot_sharing_group == number]
        assert own.max() - own.min() <= 1


@given(graphs(may_run=True), st.lists(st.integers(0, 6), min_size=1, max_size=8), st.sampled_from(LoadBalanceMode))
def test_a_plan_gives_every_group_a_slot_of_its_own(graph, slots, mode):
    assume(sum(slots) >= required_slots(graph))
    placement = place(graph, slots, mode)
    given_away = list(zip(placement.taskmanager_of_group.tolist(), placement.slot_of_group.tolist(), strict=True))
    assert len(set(given_away)) == len(given_away) == placement.groups.count
    assert all(0 <= slot < slots[taskmanager] for taskmanager, slot in given_away)
    assert placement.slots_used.sum() == placement.groups.count
    assert placement.tasks.sum() == sum(vertex.parallelism for vertex in graph.vertices)


def played(graph, slots, taken, mode):
    """Where a JobManager's slots and a scheduler put every subtask of a job: TaskManager, and which of its free slots.

    Args:
        slots: how many each TaskManager has.
        taken: those that another job has, as pairs of TaskManager and slot.
    """
    scheduler = Scheduler(graph, "run", settings=SchedulerSettings(mode=mode))
    everything = SlotDemand((1,) * sum(slots))
    cluster = SlotManager(mode, lambda job_id: everything if job_id == "other" else scheduler.slot_demand())
    for number, count in enumerate(slots):
        cluster.register(str(number), count)
    cluster.job_came("other")
    cluster.require("other", sum(slots))
    for offer in cluster.offers():
        for slot in offer.slots:
            if (int(offer.taskmanager), slot) not in taken:
                cluster.give_back("other", offer.taskmanager, slot)
    cluster.job_came("job")
    locations = [TaskManagerLocation(str(n), f"tcp://h{n}:1") for n in range(len(slots))]
    where = {}
    waiting = [StartJob(), Tick()]
    while waiting:
        event = waiting.pop(0)
        for message in scheduler.handle(event, 0.0 if isinstance(event, StartJob) else 1.0):
            if isinstance(message, Deploy):
                where.update(zip(message.subtasks.tolist(), message.slots, strict=True))
            elif isinstance(message, Continue):
                waiting.insert(0, Proceed())
            elif isinstance(message, RequireSlots):
                cluster.require("job", message.total)
        for offer in sorted(cluster.offers(), key=lambda offer: int(offer.taskmanager)):
            waiting.insert(-1, TaskManagerRegistered(locations[int(offer.taskmanager)]))
            waiting.insert(-1, SlotsOffered(offer.taskmanager, offer.slots))
    free = [[slot for slot in range(count) if (n, slot) not in taken] for n, count in enumerate(slots)]
    return {
        scheduler.topology.place_of(subtask): (number := int(slot.location.taskmanager), free[number].index(slot.index))
        for subtask, slot in where.items()
    }


@st.composite
def clusters(draw):
    """How many slots each TaskManager has, and which of them another job has."""
    slots = draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    return slots, draw(st.sets(st.sampled_from([(n, slot) for n, count in enumerate(slots) for slot in range(count)])))


@given(graphs(may_run=True), clusters(), st.sampled_from(LoadBalanceMode))
def test_a_plan_is_what_a_cluster_does(graph, cluster, mode):
    slots, taken = cluster
    used = [sum(place_[0] == n for place_ in taken) for n in range(len(slots))]
    free = [count - others for count, others in zip(slots, used, strict=True)]
    assume(sum(free) >= required_slots(graph))
    placement = place(graph, free, mode, used=used)
    assert played(graph, slots, taken, mode) == {
        (vertex, subtask): place_
        for vertex in range(len(graph.vertices))
        for subtask, place_ in enumerate(
            zip(placement.taskmanagers_of(vertex).tolist(), placement.slots_of(vertex).tolist(), strict=True)
        )
    }


@given(graphs(co_location=False, may_run=True), clusters(), st.data())
def test_a_job_that_keeps_results_is_placed_in_mode_tasks_as_in_none(graph, cluster, data):
    """It waited for slots for all of its subtasks at once: for ever, where there were fewer."""
    assume(graph.datasets)
    slots, taken = cluster
    types = data.draw(st.lists(st.sampled_from(ResultPartitionType), min_size=len(graph.datasets), max_size=7 + 5))
    datasets = [replace(dataset, type=kind) for dataset, kind in zip(graph.datasets, types, strict=False)]
    assume(not all(dataset.type.must_be_pipelined for dataset in datasets))
    job = replace(graph, datasets=tuple(datasets))
    assert played(job, slots, taken, LoadBalanceMode.TASKS) == played(job, slots, taken, LoadBalanceMode.NONE)


def test_two_groups_are_balanced_over_all_slots():
    """Ten of twelve slots: whoever takes them by share first leaves the balancer nothing to choose from."""
    vertices = [JobVertex(f"v{n}", p, slot_sharing_group=n // 2) for n, p in enumerate((4, 2, 6, 3))]
    datasets = tuple(Dataset(f"d{n}", n, ResultPartitionType.PIPELINED_BOUNDED) for n in range(3))
    edges = tuple(JobEdge(n, n + 1, DistributionPattern.ALL_TO_ALL) for n in range(3))
    job = JobGraph("job", tuple(vertices), datasets, edges, (SlotSharingGroup("a"), SlotSharingGroup("b")))
    where = played(job, [3] * 4, set(), LoadBalanceMode.TASKS)
    assert [sum(number == n for number, _ in where.values()) for n in range(4)] == [4, 4, 4, 3]


@given(graphs(may_run=True), st.integers(1, 6), st.integers(1, 10))
def test_spread_slots_differ_by_one_at_most(graph, taskmanagers, slots):
    assume(taskmanagers * slots >= required_slots(graph))
    used = place(graph, [slots] * taskmanagers, LoadBalanceMode.SLOTS).slots_used
    assert used.max() - used.min() <= 1


offers = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([ANY_PROFILE, *PROFILES])), max_size=7).map(
    lambda given_: [
        PhysicalSlot(Location(f"tm{number}", f"h{number // 2}"), index, profile)
        for index, (number, profile) in enumerate(given_)
    ]
)
wishes = st.lists(
    st.tuples(st.sampled_from([UNKNOWN_PROFILE, *PROFILES]), st.integers(1, 5)), min_size=1, max_size=5
).map(lambda given_: [SlotRequest(group, profile, load) for group, (profile, load) in enumerate(given_)])


def is_feasible(requests, slots):
    """Whether each request can have a slot of its own, by trying everything."""
    return any(
        all(can_serve(slot.profile, request.profile) for slot, request in zip(chosen, requests, strict=True))
        for chosen in permutations(slots, len(requests))
    )


@given(wishes, offers, st.dictionaries(st.sampled_from(["tm0", "tm1"]), st.integers(0, 9)))
@settings(deadline=None)
def test_a_match_is_never_split_and_never_missed(requests, slots, loads):
    matches = match_balanced(requests, slots, loads)
    assert bool(matches) == is_feasible(requests, slots)
    if matches:
        assert sorted(match.request.group for match in matches) == [request.group for request in requests]
        assert len({match.slot for match in matches}) == len(matches)
        assert all(can_serve(match.slot.profile, match.request.profile) for match in matches)


@given(wishes, offers, st.dictionaries(st.sampled_from(["tm0", "tm1"]), st.integers(0, 9)))
def test_slots_that_are_alike_are_matched_as_any_others(requests, slots, loads):
    # One slot that serves nobody else, on a TaskManager nobody has, takes the general way.
    assume(len(requests) <= len(slots))
    alike = [PhysicalSlot(slot.location, slot.index) for slot in slots]
    useless = PhysicalSlot(Location("last"), 0, ResourceProfile("concrete", 9.0, 9))
    requests = [SlotRequest(request.group, PROFILES[0], request.load) for request in requests]
    assert match_balanced(requests, alike, loads) == match_balanced(requests, [*alike, useless], loads)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(1, 5))
def test_balanced_taskmanagers_differ_by_the_largest_slot_at_most(loads, taskmanagers):
    slots = [
        PhysicalSlot(Location(f"tm{number}"), index) for number in range(taskmanagers) for index in range(len(loads))
    ]
    requests = [SlotRequest(group, load=load) for group, load in enumerate(loads)]
    tasks = dict.fromkeys((f"tm{number}" for number in range(taskmanagers)), 0)
    for match in match_balanced(requests, slots):
        tasks[match.slot.location.taskmanager] += match.request.load
    assert max(tasks.values()) - min(tasks.values()) <= max(loads)


@given(
    offers,
    st.lists(st.integers(0, 3), max_size=5),
    st.sampled_from([UNKNOWN_PROFILE, *PROFILES]),
    st.sampled_from([LoadBalanceMode.NONE, LoadBalanceMode.SLOTS]),
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=4, max_size=4),
)
def test_a_slot_is_chosen_by_its_score(slots, near, profile, mode, used):
    assume(len({(slot.location, slot.index) for slot in slots}) == len(slots))
    preferred = tuple(Location(f"tm{number}", f"h{number // 2}") for number in near)
    free = FreeSlots(slots)
    utilisation = dict.fromkeys((f"tm{number}" for number in range(4)), 0.0)
    if mode is LoadBalanceMode.SLOTS:
        utilisation = {f"tm{number}": used[number] for number in range(4)}
    for taskmanager, load in utilisation.items():
        free.set_load(taskmanager, load)
    weight = 10 if mode is LoadBalanceMode.NONE else 20

    def score(slot):
        local = sum(location.taskmanager == slot.location.taskmanager for location in preferred)
        host_local = sum(location.host == slot.location.host for location in preferred)
        return weight * local + weight / 10 * host_local - utilisation[slot.location.taskmanager]

    fitting = [slot for slot in free if can_serve(slot.profile, profile)]
    expected = max(fitting, key=score, default=None)  # the first of the best
    assert free.choose(SlotRequest(0, profile, preferred=preferred), mode) == expected


@given(
    st.sampled_from(LoadBalanceMode),
    st.lists(st.tuples(st.sampled_from(["request", "offer", "release", "lose", "wait", "cancel"]), st.integers(0, 5))),
)
def test_a_pool_never_loses_or_doubles_anything(mode, steps):
    pool = SlotPool(mode)
    now_s, next_group, next_slot = 0.0, 0, 0
    held, waiting, exist = {}, set(), set()
    for step, number in steps:
        now_s += 0.01
        matches = []
        if step == "request":
            added = [SlotRequest(next_group + offset, load=1 + offset) for offset in range(number)]
            next_group += number
            waiting |= {request.group for request in added}
            matches = pool.request(added, now_s)
        elif step == "offer":
            added = [PhysicalSlot(Location(f"tm{number}"), next_slot + offset) for offset in range(number)]
            next_slot += number
            exist |= set(added)
            matches = pool.offer(added, now_s)
        elif step == "wait":
            now_s += 0.02
            matches = pool.advance(now_s)
        elif step == "cancel":
            pool.cancel([number], now_s)
            waiting.discard(number)
        elif held:
            slot = sorted(held, key=lambda slot: slot.index)[number % len(held)]
            group = held.pop(slot)
            if step == "release":
                matches = pool.release(slot, now_s)
            else:
                exist.remove(slot)
                assert [request.group for request in pool.lose([slot])] == [group]
        for match in matches:
            assert match.slot in exist
            assert match.slot not in held
            held[match.slot] = match.request.group
            waiting.remove(match.request.group)
        assert {request.group for request in pool.pending} == waiting
        assert pool.free == len(exist) - len(held)
        if mode is LoadBalanceMode.TASKS:
            assert not matches or not waiting  # all of them, or none
        else:
            assert not waiting or not pool.free
