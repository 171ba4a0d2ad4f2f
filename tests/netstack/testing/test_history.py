"""The checker of histories: five planted mutants of netstack, each caught with its witness; what is sound passes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from netstack.cluster.task.input import TaskInput
from netstack.cluster.task.output import TaskOutput
from netstack.schedule.checkpoint.storage import CheckpointStorage
from netstack.testing.simulate.cluster import simulate
from netstack.testing.simulate.history import (
    APPLIED,
    BEGUN,
    COMMITTED,
    COMPLETE,
    FINISHED,
    RESTORED,
    SENT,
    SINK,
    SNAPSHOT,
    SOURCE,
    Event,
    check,
)
from netstack.testing.simulate.recorded_job import Source
from netstack.testing.simulate.scenario import CHECKED, KILL, Fault, Scenario

QUIET = Scenario(
    seed=1,
    taskmanagers=2,
    slots=1,
    movement=CHECKED,
    mode="aligned",
    interval_s=0.3,
    stages=(),
    parallelism=(2, 2),
    records=60,
    keys=1,
    pace_s=0.2,
    batch=3,
    segment_bytes=1024,
    own_network=False,
    debloats=False,
    restart="fixed_delay",
)
ONE_KILL = replace(QUIET, faults=(Fault(at_s=2.0, kind=KILL, host="tm-0", for_s=0.4),))


def polls(mutant: Callable[[TaskInput, Callable[[], Any]], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    poll = TaskInput.poll
    monkeypatch.setattr(TaskInput, "poll", lambda self: mutant(self, functools.partial(poll, self)))


@pytest.mark.parametrize("scenario", [QUIET, ONE_KILL, replace(ONE_KILL, mode="unaligned")])
def test_what_is_sound_passes(scenario: Scenario) -> None:
    outcome = simulate(scenario)
    assert not outcome.failure, outcome.failure


def test_mutant_a_lost_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def mutant(self: TaskInput, poll: Callable[[], Any]) -> Any:
        records = poll()
        if records and len(done) < 10:
            done.append(1)
            if len(done) == 10:
                self.processed(len(records))
                return []
        return records

    polls(mutant, monkeypatch)
    failure = simulate(QUIET).failure
    assert "lost: record" in failure or "overtaken: record" in failure
    assert "is in the result 0 times" in failure or "is not in the snapshot" in failure


def test_mutant_a_repeated_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    before: list[list[Any]] = []

    def mutant(self: TaskInput, poll: Callable[[], Any]) -> Any:
        records = poll()
        if records:
            done.append(1)
            if len(done) == 10:
                records[:] = [*records, *before[-1]]
                self._count = len(records)
            before.append([*records])
        return records

    polls(mutant, monkeypatch)
    failure = simulate(QUIET).failure
    assert "times" in failure or "disorder" in failure or "overtaken: record" in failure


def test_mutant_a_state_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is whole and the result is right; but a checkpoint that operators had been told of is undone."""
    newest = CheckpointStorage.read

    def read(self: CheckpointStorage, checkpoint_id: int) -> Any:
        return newest(self, checkpoint_id - 1)

    monkeypatch.setattr(CheckpointStorage, "read", read)
    monkeypatch.setattr("netstack.testing.simulate.client._SETTLED_S", 0.1)
    failure = simulate(ONE_KILL).failure
    assert "state too old" in failure
    assert "was complete" in failure


def test_mutant_a_barrier_that_overtakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of one buffer wait until three barriers of two channels have passed them: one checkpoint at least."""
    held: list[Any] = []
    done: list[int] = []

    def mutant(self: TaskInput, poll: Callable[[], Any]) -> Any:
        records = poll()
        if records:
            done.append(1)
            if len(done) == 10:
                held[:] = [self, records]
                self.processed(len(records))
                return []
        elif records == [] and held and held[0] is self and len(held) < 5:
            held.append("a barrier has passed")
        elif len(held) == 5 and held[0] is self:
            records = held[1]
            held.clear()
            self._count, self._done = len(records), 0
        return records

    polls(mutant, monkeypatch)
    monkeypatch.setattr(TaskOutput, "mark", lambda *_: None)  # a marker brings no records either
    failure = simulate(QUIET).failure
    assert "overtaken: record" in failure
    assert "not in the snapshot" in failure


def test_mutant_a_stale_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source goes on under the name of the attempt before it, as if its consumer had found the old partition."""
    lives: dict[int, str] = {}
    read = Source.read

    async def stale(self: Source) -> Any:
        records = await read(self)
        before = lives.setdefault(self._subtask, self._life)
        if records and before != self._life and self._next > 30:
            return [[split, number, before] for split, number, _ in records]
        return records

    monkeypatch.setattr(Source, "read", stale)
    failure = simulate(ONE_KILL).failure
    assert "stale: sink" in failure


# ---------------------------------------------------------------------------------------------------- histories by hand


def history(*told: tuple[str, str, dict[str, Any]]) -> list[Event]:
    return [
        Event(float(at_s), what, SOURCE if life.startswith("a") else SINK, 0, life, **values)
        for at_s, (life, what, values) in enumerate(told)
    ]


def sent(number: int, life: str = "a0") -> tuple[str, str, dict[str, Any]]:
    return life, SENT, {"split": 0, "number": number, "of_life": life}


def applied(number: int, life: str = "b0", of_life: str = "a0") -> tuple[str, str, dict[str, Any]]:
    return life, APPLIED, {"split": 0, "number": number, "of_life": of_life}


BEGINNING = (("a0", BEGUN, {}), ("b0", BEGUN, {}))


def committed(number: int, token: str, *, by: str = "b0") -> tuple[str, str, dict[str, Any]]:
    return by, COMMITTED, {"split": 0, "number": number, "token": token}


def test_the_lineage_goes_back_over_restores() -> None:
    """Record 1 was counted twice, but one of the counts was undone."""
    reported = history(
        *BEGINNING,
        sent(0),
        applied(0),
        ("a0", SNAPSHOT, {"token": "a:1", "number": 1}),
        ("b0", SNAPSHOT, {"token": "b:1"}),
        ("a0", COMPLETE, {"number": 1}),
        ("b0", COMPLETE, {"number": 1}),
        sent(1),
        applied(1),
        ("a1", BEGUN, {}),
        ("a1", RESTORED, {"token": "a:1", "number": 1}),
        ("b1", BEGUN, {}),
        ("b1", RESTORED, {"token": "b:1"}),
        sent(1, "a1"),
        applied(1, "b1", "a1"),
        ("b1", FINISHED, {}),
        committed(0, "b0"),
        committed(0, "b0", by="b1"),
        committed(1, "b1"),
    )
    assert check(reported, {0: 2}, {0: "b1"}, aligned=True) == []
    lost, missing = check(reported, {0: 3}, {0: "b1"}, aligned=True)
    assert (lost.kind, lost.witness) == ("lost", ())
    assert (missing.kind, missing.text) == ("committed", "record 2 of split 0 was committed 0 times")
    (twice,) = check([*reported, *history(committed(1, "b0"))], {0: 2}, {0: "b1"}, aligned=True)
    assert (twice.kind, twice.text) == ("committed", "record 1 of split 0 was committed 2 times")


def test_a_witness_is_the_few_events_that_show_it() -> None:
    reported = history(
        *BEGINNING,
        *(sent(n) for n in range(50)),
        *(applied(n) for n in (*range(50), 7)),
        ("b0", FINISHED, {}),
        *(committed(n, "b0") for n in range(50)),
    )
    actual = {anomaly.kind: anomaly for anomaly in check(reported, {0: 50}, {0: "b0"}, aligned=True)}
    assert actual.keys() == {"repeated", "disorder"}
    assert [str(event).split(") ")[1] for event in actual["repeated"].witness] == [
        "begun",
        "begun",
        "sent record 7 of split 0 (made by a0)",
        *["applied record 7 of split 0 (made by a0)"] * 2,
    ]
    assert str(actual["repeated"]).startswith("repeated: record 7 of split 0")


def test_a_result_of_an_attempt_that_has_not_finished_counts_for_nothing() -> None:
    (actual,) = check(history(*BEGINNING), {0: 0}, {0: "b0"}, aligned=True)
    assert actual.kind == "unfinished"


def test_a_completion_that_arrives_behind_the_next_snapshot_blames_no_barrier() -> None:
    """The sink hears of each checkpoint after its snapshot of the next one, whose barrier another host sent."""
    reported = [*BEGINNING]
    for checkpoint in range(3):
        reported += [
            sent(checkpoint),
            applied(checkpoint),
            ("a0", SNAPSHOT, {"token": f"a:{checkpoint}", "number": checkpoint + 1}),
            ("b0", SNAPSHOT, {"token": f"b:{checkpoint}"}),
            *((("b0", COMPLETE, {"number": checkpoint - 1}),) if checkpoint else ()),
            ("a0", COMPLETE, {"number": checkpoint}),
        ]
    reported += [("b0", FINISHED, {}), *(committed(number, "b0") for number in range(3))]
    assert check(history(*reported), {0: 3}, {0: "b0"}, aligned=True) == []
