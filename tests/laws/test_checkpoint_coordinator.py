"""Every checkpoint ends once, and completes exactly when all have acknowledged, whatever comes in between."""

from __future__ import annotations

from hypothesis import given, strategies as st

from netstack.schedule.checkpoint.coordinator import CheckpointCoordinator
from netstack.schedule.checkpoint.instructions import (
    Abort,
    CheckpointSettings,
    Complete,
    FailJob,
    Instruction,
    JobTask,
    StoreFinal,
    Subtask,
    Trigger,
)
from netstack.schedule.checkpoint.snapshot import TaskFile

JOB = [JobTask("source", 2), JobTask("map", 2, ("source",)), JobTask("sink", 1, ("map",))]
SUBTASKS = [(task.name, subtask) for task in JOB for subtask in range(task.parallelism)]
INPUTS = {task.name: task.inputs for task in JOB}
steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["wait", "tick"] * 2,
                *["acknowledge", "acknowledge all", "stored"] * 3,
                *[
                    "decline",
                    "not stored",
                    "request",
                    "savepoint",
                    "savepoint and stop",
                    "end",
                    "await",
                    "fail",
                    "resume",
                    "resume",
                    "stop",
                ],
            ]
        ),
        st.integers(0, 1 << 16),
    ),
    max_size=80,
)


class Job:
    """Plays the job, and checks each instruction against a model as simple as can be."""

    def __init__(self, made: CheckpointSettings) -> None:
        self.settings = made
        self.now_s = 0.0
        self.coordinator = CheckpointCoordinator(JOB, made, first_id=5, now_s=0.0)
        self.missing: dict[int, set[Subtask]] = {}  # pending: who has not acknowledged
        self.storing: set[int] = set()
        self.triggered_s: dict[int, float] = {}
        self.completed: list[int] = []
        self.aborted: list[int] = []
        self.ended: list[Subtask] = []
        self.waiting: list[Subtask] = []
        self.confirms: dict[int, list[Subtask]] = {}
        self.set_aside: set[int] = set()  # savepoints that the job goes on behind
        self.is_over = False
        self.is_paused = False

    def carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Trigger(barrier, subtasks, is_savepoint, stops):
                    self.on_trigger(barrier.checkpoint_id, set(subtasks))
                    if is_savepoint and not stops:
                        self.set_aside.add(barrier.checkpoint_id)
                case StoreFinal(checkpoint_id, subtasks):
                    assert set(subtasks) <= set(self.ended) & self.missing[checkpoint_id]
                case Complete(checkpoint_id, _, files, _, job_goes_on):
                    assert not self.missing.pop(checkpoint_id)
                    assert job_goes_on == (checkpoint_id in self.set_aside)
                    self.storing.add(checkpoint_id)
                    assert [(file.task, file.subtask) for file in files] == sorted(SUBTASKS)
                case Abort(checkpoint_id, _, _, subtasks):
                    assert self.missing.pop(checkpoint_id, None) or checkpoint_id in self.storing
                    self.storing.discard(checkpoint_id)
                    self.aborted.append(checkpoint_id)
                    assert set(subtasks) == set(SUBTASKS) - set(self.ended)
                case FailJob():
                    assert not self.is_over
                    assert not self.is_paused
                    self.is_paused = True

    def on_trigger(self, checkpoint_id: int, subtasks: set[Subtask]) -> None:
        running = set(SUBTASKS) - set(self.ended)
        reachable = {subtask[0] for subtask in running if subtask not in self.waiting}
        without_producers = {subtask for subtask in running if not reachable & set(INPUTS[subtask[0]])}
        without_producers |= set(self.waiting)
        if checkpoint_id in self.missing:  # its producers have ended since
            assert subtasks <= without_producers & self.missing[checkpoint_id]
            return
        assert subtasks == without_producers
        assert not self.is_over
        assert not self.is_paused
        assert checkpoint_id == 5 + len(self.triggered_s)
        self.missing[checkpoint_id] = set(SUBTASKS)
        self.triggered_s[checkpoint_id] = self.now_s
        self.confirms[checkpoint_id] = list(self.waiting)
        assert len(self.missing) + len(self.storing) <= self.settings.max_concurrent

    def known(self, number: int) -> int:
        """Any id that was ever used, or the next one; rather a pending one."""
        pending = [*self.missing] * 4
        choices = [*pending, *self.triggered_s, 5 + len(self.triggered_s)]
        return choices[number % len(choices)]

    def acknowledge(self, checkpoint_id: int, subtask: Subtask) -> None:
        is_late = subtask not in self.missing.get(checkpoint_id, ())
        instructions = self.coordinator.acknowledged(checkpoint_id, TaskFile(*subtask, 1, 2), self.now_s)
        if is_late:
            assert not instructions
        else:
            self.missing[checkpoint_id].remove(subtask)
            self.carry_out(instructions)

    def step(self, name: str, number: int) -> None:
        made, subtask = self.coordinator, SUBTASKS[number % len(SUBTASKS)]
        match name:
            case "wait":
                self.now_s += number % 40 / 4
            case "tick":
                self.tick()
            case "acknowledge":
                self.acknowledge(self.known(number // 8), subtask)
            case "acknowledge all":
                if self.missing:
                    checkpoint_id = [*self.missing][number % len(self.missing)]
                    for waiting in sorted(self.missing[checkpoint_id]):
                        self.acknowledge(checkpoint_id, waiting)
            case "decline":
                self.carry_out(made.declined(self.known(number // 8), *subtask, "why", self.now_s))
            case "stored" if self.storing:
                checkpoint_id = sorted(self.storing)[number % len(self.storing)]
                self.storing.remove(checkpoint_id)
                self.completed.append(checkpoint_id)
                left = [*self.missing]
                if checkpoint_id not in self.set_aside:
                    left = [other for other in left if other > checkpoint_id]
                    self.waiting = [each for each in self.waiting if each not in self.confirms[checkpoint_id]]
                self.carry_out(made.completed(checkpoint_id, self.now_s))
                assert [*self.missing] == left
            case "not stored" if self.storing:
                checkpoint_id = sorted(self.storing)[number % len(self.storing)]
                self.carry_out(made.not_stored(checkpoint_id, "why", self.now_s))
            case "request" | "savepoint" | "savepoint and stop" if not self.is_over:
                stops = name == "savepoint and stop"
                self.carry_out(made.request(self.now_s, savepoint=name != "request", stops=stops))
            case "end" if len(self.ended) < len(SUBTASKS):
                # From the sources on, as tasks do.
                first = next(
                    task for task in JOB if any((task.name, i) not in self.ended for i in range(task.parallelism))
                )
                left = [(first.name, i) for i in range(first.parallelism) if (first.name, i) not in self.ended]
                self.ended.append(left[number % len(left)])
                self.waiting = [each for each in self.waiting if each not in self.ended]
                self.carry_out(made.task_ended(*self.ended[-1], self.now_s))
            case "await" if subtask not in self.ended and subtask not in self.waiting:
                self.waiting.append(subtask)
                self.carry_out(made.task_waits(*subtask, self.now_s))
            case "fail":
                self.is_paused = True
                self.carry_out(made.pause("why", self.now_s))
                assert not self.missing
            case "resume":
                again = [ended for ended in self.ended if number >> self.ended.index(ended) & 1]
                again += [waits for waits in self.waiting if number >> 8 & 1]
                again = again if self.is_paused else []
                self.waiting = [waits for waits in self.waiting if waits not in again]
                self.ended = [ended for ended in self.ended if ended not in again]
                self.is_paused = False
                self.carry_out(made.resume(again, self.now_s))
            case "stop":
                if not number % 4:
                    self.stop()

    def tick(self) -> None:
        due = self.coordinator.next_deadline()
        instructions = self.coordinator.tick(self.now_s)
        assert bool(instructions) == (due is not None and due <= self.now_s), (
            "the deadline says when a tick does something"
        )
        self.carry_out(instructions)
        late = [other for other in self.missing if self.triggered_s[other] + self.settings.timeout_s <= self.now_s]
        assert not late

    def stop(self) -> None:
        self.is_over = True
        self.carry_out(self.coordinator.stop(self.now_s))
        assert not self.missing

    def check(self) -> None:
        deadline = self.coordinator.next_deadline()
        if self.missing:
            assert deadline is not None
        elif self.is_over or self.is_paused:
            assert deadline is None
        elif self.waiting and not self.storing and set(SUBTASKS) == {*self.ended, *self.waiting}:
            assert deadline is not None, "nothing else can end those that wait"
        assert {*self.coordinator.waiting_subtasks} == {*self.waiting}


@given(
    steps,
    st.integers(1, 3),
    st.sampled_from([None, 2.0, 5.0]),
    st.sampled_from([0.0, 3.0]),
    st.sampled_from([None, 0, 2]),
)
def test_every_checkpoint_ends_once_and_completes_exactly_when_all_acknowledged(
    script: list[tuple[str, int]],
    max_concurrent: int,
    interval_s: float | None,
    min_pause_s: float,
    tolerable_failures: int | None,
) -> None:
    job = Job(
        CheckpointSettings(
            interval_s=interval_s,
            min_pause_s=min_pause_s,
            timeout_s=8.0,
            tolerable_failures=tolerable_failures,
            max_concurrent=max_concurrent,
        )
    )
    for name, number in script:
        job.step(name, number)
        job.check()
    job.stop()
    for checkpoint_id in sorted(job.storing):
        job.step("stored", 0)
        assert checkpoint_id in job.completed
    assert sorted(job.completed + job.aborted) == [*job.triggered_s]
