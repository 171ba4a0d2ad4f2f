"""Sharing a checkpoint out among the subtasks of the next run."""

from __future__ import annotations

import pytest

from netstack.base.errors import CheckpointError, ConfigError
from netstack.exchange.keygroups import canonical_key, key_group, operator_index
from netstack.exchange.record.framing import frame
from netstack.schedule.checkpoint.recovery import Exchange, RecoveredTask, TaskPlan, recover, split_records
from netstack.schedule.checkpoint.snapshot import TaskSnapshot


def framed(*records: bytes) -> bytes:
    return b"".join(map(frame, records))


def records(task: RecoveredTask, name: str = "in") -> list[bytes]:
    return [record for _, data in task.records[name] for record in split_records(data)]


def owner(key: object, parallelism: int, max_parallelism: int = 128) -> int:
    return operator_index(key_group(key, max_parallelism), parallelism, max_parallelism)


def test_records_cut_between_both_sides_are_whole_again() -> None:
    whole = framed(b"one", b"", b"three")
    snapshots = [
        TaskSnapshot("source", 0, 17, outputs={("words", 0): whole[9:]}),
        TaskSnapshot("sink", 0, "state", inputs={("words", 0): whole[:9]}),
    ]
    plans = [TaskPlan("source", 1), TaskPlan("sink", 1, (Exchange("in", ("words",)),))]
    assert recover(snapshots, plans) == {
        "source": [RecoveredTask("source", 0, [17], {})],
        "sink": [RecoveredTask("sink", 0, ["state"], {"in": [("words", whole)]})],
    }


def test_keyed_records_and_state_go_to_the_owner_of_their_key() -> None:
    keys = [b"%d" % number for number in range(40)]
    snapshots = [
        TaskSnapshot("sink", index, {key: index for key in keys if owner(key, 2) == index}) for index in range(2)
    ]
    snapshots.append(
        TaskSnapshot(
            "source",
            0,
            outputs={("w", index): framed(*[key for key in keys if owner(key, 2) == index]) for index in range(2)},
        )
    )
    plan = TaskPlan("sink", 3, (Exchange("in", ("w",), lambda record: record),), keyed_state=True, max_parallelism=128)
    recovered = recover(snapshots, [TaskPlan("source", 1), plan])["sink"]
    for index, task in enumerate(recovered):
        mine = [key for key in keys if owner(key, 3) == index]
        assert sorted(records(task)) == sorted(mine)
        (state,) = task.operator_states
        assert state == {key: owner(key, 2) for key in mine}


def test_other_records_and_states_go_by_index() -> None:
    snapshots = [TaskSnapshot("sink", index, f"state {index}") for index in range(5)]
    outputs = {("w", index): framed(b"%d" % index) for index in range(5)}
    snapshots.append(TaskSnapshot("source", 0, outputs=outputs))
    plan = TaskPlan("sink", 2, (Exchange("in", ("w",)),))
    even, odd = recover(snapshots, [TaskPlan("source", 1), plan])["sink"]
    assert even.operator_states == ["state 0", "state 2", "state 4"]
    assert records(even) == [b"0", b"2", b"4"]
    assert odd.operator_states == ["state 1", "state 3"]
    assert records(odd) == [b"1", b"3"]
    seven = recover(snapshots, [TaskPlan("source", 1), TaskPlan("sink", 7, plan.exchanges)])["sink"]
    assert seven[5:] == [RecoveredTask("sink", index, [], {"in": []}) for index in (5, 6)]


def test_several_exchanges_and_producers_keep_apart_and_in_order() -> None:
    names = tuple(f"w-{index}" for index in range(11))
    snapshots = [
        TaskSnapshot("source", index, outputs={(name, 0): framed(name.encode())}) for index, name in enumerate(names)
    ]
    snapshots.append(TaskSnapshot("other", 0, outputs={("x", 0): framed(b"x")}))
    snapshots.append(TaskSnapshot("sink", 0))
    plan = TaskPlan("sink", 1, (Exchange("words", names), Exchange("rest", ("x", "never used"))))
    (sink,) = recover(snapshots, [TaskPlan("source", 1), TaskPlan("other", 1), plan])["sink"]
    assert sink.records == {
        "words": [(name, framed(name.encode())) for name in names],
        "rest": [("x", framed(b"x"))],
    }


def test_a_new_task_starts_empty() -> None:
    plans = [TaskPlan("count", 1, keyed_state=True), TaskPlan("list", 1)]
    assert recover([], plans) == {"count": [RecoveredTask("count", 0, [{}])], "list": [RecoveredTask("list", 0)]}


def test_keyed_state_may_be_missing_and_must_be_a_dict() -> None:
    plan = TaskPlan("sink", 1, keyed_state=True)
    assert recover([TaskSnapshot("sink", 0, None)], [plan])["sink"][0].operator_states == [{}]
    with pytest.raises(CheckpointError, match="sink-0 is planned as keyed"):
        recover([TaskSnapshot("sink", 0, [1])], [plan])


def test_a_key_that_two_subtasks_hold() -> None:
    snapshots = [TaskSnapshot("sink", index, {"a": index}) for index in range(2)]
    with pytest.raises(CheckpointError, match=r"subtask 1 of sink .* key 'a'"):
        recover(snapshots, [TaskPlan("sink", 3, keyed_state=True)])


@pytest.mark.parametrize("cut", range(1, 12))
def test_bytes_that_are_not_whole_records(cut: int) -> None:
    whole = framed(b"one", b"four")  # 7 and 8 bytes
    if cut == 7:
        return
    snapshots = [
        TaskSnapshot("source", 0, outputs={("words", 3): whole[2:cut]}),
        TaskSnapshot("sink", 0, inputs={("words", 3): whole[: min(2, cut)]}),
    ]
    plans = [TaskPlan("source", 1), TaskPlan("sink", 1, (Exchange("in", ("words",)),))]
    with pytest.raises(CheckpointError, match=r"subpartition 3 of 'words': .* not whole"):
        recover(snapshots, plans)


def test_splitting() -> None:
    assert split_records(b"") == []
    assert split_records(framed(b"", b"a")) == [b"", b"a"]
    with pytest.raises(CheckpointError, match="record 1 begins at byte 5"):
        split_records(framed(b"a", b"four")[:-1])


def test_nothing_is_dropped_in_silence() -> None:
    source = TaskSnapshot("source", 0, outputs={("w", 0): framed(b"a")})
    sink = TaskSnapshot("sink", 0, inputs={("w", 0): framed(b"b"), ("empty", 0): b""})
    with pytest.raises(CheckpointError, match="task 'sink', which has no plan"):
        recover([source, sink], [TaskPlan("source", 1)])
    with pytest.raises(CheckpointError, match=r"2 records .* 'w', which is in no exchange"):
        recover([source, sink], [TaskPlan("source", 1), TaskPlan("sink", 1)])
    with pytest.raises(CheckpointError, match=r"sink-0 .* 'w'; .* give it to 'source'"):
        recover([source, sink], [TaskPlan("source", 1, (Exchange("in", ("w",)),)), TaskPlan("sink", 1)])
    with pytest.raises(CheckpointError, match=r"subtasks \[0, 2\] of task 'sink'"):
        recover([sink, TaskSnapshot("sink", 2)], [TaskPlan("sink", 1)])
    with pytest.raises(CheckpointError, match=r"subtasks \[0, 0\]"):
        recover([sink, sink], [TaskPlan("sink", 1)])
    twice = [source, TaskSnapshot("source", 1, outputs={("w", 0): b""})]
    with pytest.raises(CheckpointError, match="two snapshots contain subpartition 0 of 'w'"):
        recover(twice, [TaskPlan("source", 1)])


def test_plans_that_contradict_each_other() -> None:
    exchange = Exchange("in", ("w",))
    with pytest.raises(ConfigError, match="partition 'w' is in two exchanges"):
        recover([], [TaskPlan("a", 1, (exchange,)), TaskPlan("b", 1, (exchange,))])
    with pytest.raises(ConfigError, match="two plans for task 'a'"):
        recover([], [TaskPlan("a", 1), TaskPlan("a", 2)])
    for parallelism in (0, 200):
        with pytest.raises(ConfigError, match=r"subpartitions"):
            recover([], [TaskPlan("a", parallelism, max_parallelism=128)])


def test_an_old_state_with_several_nan_keeps_the_first_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    old = TaskSnapshot("sink", 0, {float("nan"): 1, float("nan"): 2, 1: 3})
    (task,) = recover([old], [TaskPlan("sink", 1, keyed_state=True)])["sink"]
    assert task.operator_states == [{canonical_key(float("nan")): 1, 1: 3}]
    assert caplog.messages == ["the state of sink has several values for NaN; the first one is used"]


def in_flight_to_two(*keys: bytes) -> list[TaskSnapshot]:
    """Records that are their own keys, in flight to two subtasks."""
    outputs = {("w", index): framed(*[key for key in keys if owner(key, 2) == index]) for index in range(2)}
    return [TaskSnapshot("source", 0, outputs=outputs), *(TaskSnapshot("sink", index) for index in range(2))]


KEYS = [b"%d" % number for number in range(40)]


def never(*_: object) -> int:
    raise AssertionError("a function of the user's was called")


@pytest.mark.parametrize("exchange", [Exchange("in", ("w",), key_of=never), Exchange("in", ("w",), channel_of=never)])
def test_with_unchanged_parallelism_nothing_moves_and_no_function_is_called(exchange: Exchange) -> None:
    """Key functions got lists where they had got tuples: the restart failed, again and again."""
    plans = [TaskPlan("source", 1), TaskPlan("sink", 2, (exchange,))]
    first, second = recover(in_flight_to_two(*KEYS), plans)["sink"]
    assert records(first) == [key for key in KEYS if owner(key, 2) == 0]
    assert records(second) == [key for key in KEYS if owner(key, 2) == 1]


def test_other_key_groups_move_records_as_they_move_state() -> None:
    exchange = Exchange("in", ("w",), lambda record: record, key_groups=128)
    plan = TaskPlan("sink", 2, (exchange,), max_parallelism=77)
    sinks = recover(in_flight_to_two(*KEYS), [TaskPlan("source", 1), plan])["sink"]
    for index, sink in enumerate(sinks):
        assert {*records(sink)} == {key for key in KEYS if owner(key, 2, 77) == index}


def test_a_function_that_fails_while_records_move_is_named_with_the_record() -> None:
    exchange = Exchange("in", ("w",), lambda record: record.user, function="jobs:user")
    with pytest.raises(CheckpointError, match=r"jobs:user fails for record 0 .* 'w': Attri"):
        recover(in_flight_to_two(*KEYS), [TaskPlan("source", 1), TaskPlan("sink", 3, (exchange,))])
    exchange = Exchange("in", ("w",), channel_of=lambda record, channels: channels, function="jobs:part")
    with pytest.raises(CheckpointError, match=r"jobs:part fails .*: it returned subtask 3 of 3"):
        recover(in_flight_to_two(*KEYS), [TaskPlan("source", 1), TaskPlan("sink", 3, (exchange,))])


def test_a_key_that_another_value_gave_is_refused_and_not_sent_elsewhere() -> None:
    exchange = Exchange("in", ("w",), lambda record: record + b"!", function="jobs:user")
    with pytest.raises(CheckpointError, match=r"jobs:user gives the key b'.*!' .* another subtask"):
        recover(in_flight_to_two(*KEYS), [TaskPlan("source", 1), TaskPlan("sink", 3, (exchange,))])


def test_a_list_in_a_key_is_the_tuple_that_it_was_before_the_format() -> None:
    keys = [(f"u{number}", (number,)) for number in range(20)]
    outputs = {
        ("w", index): framed(*[b"%d" % key[1][0] for key in keys if owner(key, 2) == index]) for index in range(2)
    }
    snapshots = [TaskSnapshot("source", 0, outputs=outputs), *(TaskSnapshot("sink", index) for index in range(2))]
    exchange = Exchange("in", ("w",), lambda record: [f"u{int(record)}", [int(record)]])
    sinks = recover(snapshots, [TaskPlan("source", 1), TaskPlan("sink", 5, (exchange,))])["sink"]
    for index, sink in enumerate(sinks):
        assert {*map(int, records(sink))} == {key[1][0] for key in keys if owner(key, 5) == index}
