"""One conversation over both carriers: which tasks are ready and done, and when a silent task ends the run."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from netstack_bench.places.conversation import Conversation, fraction_of
from netstack_bench.spec import RunSpec

TASKS = ("source", "sink")


def conversation() -> Conversation[str]:
    return Conversation(TASKS, ("sink",), ready_by_s=30.0, stalled_s=5.0)


def test_the_phases_of_a_run() -> None:
    talk = conversation()

    def state(now_ns: int) -> tuple[str, int, float]:
        progress = talk.state("netstack", now_ns, lambda records, elapsed_s: elapsed_s)
        return progress.phase, progress.records, progress.elapsed_s

    assert state(10**9) == ("starting", 0, 0.0)
    talk.on_message("sink", {"event": "ready"}, 1.0)
    assert (talk.is_ready, talk.waited_for(), talk.deadline_s) == (False, ["source"], 30.0)
    talk.on_message("source", {"event": "ready"}, 2.0)
    assert talk.is_ready
    talk.begin(10**9, 2.0)
    talk.on_message("sink", {"event": "progress", "records": 7}, 3.0)
    assert state(3 * 10**9) == ("running", 7, 2.0)
    talk.on_message("source", {"event": "stopped", "records": 9, "stopped_ns": 1}, 4.0)
    assert state(3 * 10**9)[:2] == ("draining", 7)
    for task in TASKS:
        assert not talk.is_done
        talk.on_message(task, {"event": "done", "records": 9}, 5.0)
    assert (talk.is_done, talk.records, talk.waited_for()) == (True, 9, [])


def test_a_summary_may_count_by_subtask() -> None:
    talk = conversation()
    talk.begin(1, 0.0)
    talk.on_message("sink", {"event": "progress", "records": 5}, 1.0)
    talk.on_message("sink", {"event": "done", "records": {"B.3": 4, "B.4": 2}}, 2.0)
    assert talk.records == 5


@given(st.lists(st.tuples(st.sampled_from(TASKS), st.integers(0, 3), st.floats(0, 4)), max_size=30))
def test_only_a_record_that_moves_extends_the_time(script: list[tuple[str, int, float]]) -> None:
    talk = conversation()
    talk.begin(1, 0.0)
    now_s, moved_s, counts = 0.0, 0.0, {}
    for task, records, passed_s in script:
        now_s += passed_s
        talk.on_message(task, {"event": "progress", "records": records}, now_s)
        if counts.get(task) != records:
            counts[task], moved_s = records, now_s
        assert talk.deadline_s == moved_s + 5.0


@pytest.mark.parametrize(
    ("settings", "fraction"), [({"records": 10}, 0.5), ({"seconds": 4.0}, 0.75), ({"seconds": 2.0}, 1.0), ({}, None)]
)
def test_the_finished_part(settings: dict[str, float], fraction: float | None) -> None:
    assert fraction_of(RunSpec(**settings), 10, 3.0, sources=2) == fraction  # type: ignore[arg-type]
