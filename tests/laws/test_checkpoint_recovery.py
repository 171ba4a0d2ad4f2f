"""After a restart with any parallelism every record and key is at its owner, once and in order."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from hypothesis import given, strategies as st
from record_streams import streams_of

from netstack.exchange.keygroups import key_group, operator_index
from netstack.schedule.checkpoint.recovery import Exchange, TaskPlan, recover, split_records
from netstack.schedule.checkpoint.snapshot import TaskSnapshot


@dataclass(frozen=True)
class Cut:
    """A checkpoint of producers and keyed or unkeyed consumers, with records in flight."""

    producers: int
    old: int
    new: int
    max_parallelism: int
    is_keyed: bool
    sent: list[tuple[int, int, int]]  # producer, key, consumer of a record that has no key
    at: list[float]


def owner(key: int, parallelism: int, max_parallelism: int) -> int:
    return operator_index(key_group(key, max_parallelism), parallelism, max_parallelism)


cuts = st.builds(
    Cut,
    producers=st.integers(1, 3),
    old=st.integers(1, 6),
    new=st.integers(1, 6),
    max_parallelism=st.sampled_from([6, 128]),
    is_keyed=st.booleans(),
    sent=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 5)), max_size=40),
    at=st.lists(st.floats(0, 1), min_size=18, max_size=18),
)


@given(cuts, st.data())
def test_every_record_and_every_key_once_at_its_owner_in_order(cut: Cut, data: st.DataObject) -> None:
    # What travels: producer, number of the record, key. Who gets it now, by the rule.
    sent: dict[tuple[str, int], list[bytes]] = {}
    for number, (producer, key, consumer) in enumerate(cut.sent):
        producer %= cut.producers
        subpartition = owner(key, cut.old, cut.max_parallelism) if cut.is_keyed else consumer % cut.old
        sent.setdefault((f"w-{producer}", subpartition), []).append(b"%d %d %d" % (producer, number, key))
    inputs: list[dict[tuple[str, int], bytes]] = [{} for _ in range(cut.old)]
    outputs: list[dict[tuple[str, int], bytes]] = [{} for _ in range(cut.producers)]
    for (partition, subpartition), records in sent.items():
        whole = data.draw(streams_of(records))
        at = round(cut.at[int(partition[2:]) * 6 + subpartition] * len(whole))
        inputs[subpartition][partition, subpartition] = whole[:at]
        outputs[int(partition[2:])][partition, subpartition] = whole[at:]
    held = {key: key * 2 for key in range(50)}
    states = [
        {key: value for key, value in held.items() if owner(key, cut.old, cut.max_parallelism) == index}
        for index in range(cut.old)
    ]
    snapshots = [TaskSnapshot("source", index, index, {}, outputs[index]) for index in range(cut.producers)]
    snapshots += [TaskSnapshot("sink", index, states[index], inputs[index]) for index in range(cut.old)]
    plan = TaskPlan(
        "sink",
        cut.new,
        (
            Exchange(
                "words",
                tuple(f"w-{producer}" for producer in range(cut.producers)),
                (lambda record: int(record.split()[2])) if cut.is_keyed else None,
                key_groups=cut.max_parallelism,
            ),
        ),
        keyed_state=cut.is_keyed,
        max_parallelism=cut.max_parallelism,
    )
    random.Random(len(cut.sent)).shuffle(snapshots)
    recovered = recover(snapshots, [plan, TaskPlan("source", 1)])
    assert recovered["source"][0].operator_states == [*range(cut.producers)]
    sinks = recovered["sink"]
    assert [sink.subtask for sink in sinks] == [*range(cut.new)]
    received = [[record for _, part in sink.records["words"] for record in split_records(part)] for sink in sinks]
    everything = Counter(record for records in received for record in records)
    assert everything == Counter(record for records in sent.values() for record in records)
    for (partition, subpartition), records in sent.items():
        for sink in sinks:
            mine = set(records)
            got = [record for record in received[sink.subtask] if record in mine]
            if cut.is_keyed:
                expected = [
                    record
                    for record in records
                    if owner(int(record.split()[2]), cut.new, cut.max_parallelism) == sink.subtask
                ]
            else:
                expected = records if subpartition % cut.new == sink.subtask else []
            assert got == expected, (partition, subpartition)
            if cut.new == cut.old:
                assert got == (records if sink.subtask == subpartition else [])
    for sink in sinks:
        if cut.is_keyed:
            mine_now = {k: v for k, v in held.items() if owner(k, cut.new, cut.max_parallelism) == sink.subtask}
            assert sink.operator_states == [mine_now]
        else:
            assert sink.operator_states == states[sink.subtask :: cut.new]
