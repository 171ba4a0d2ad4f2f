"""Speculative execution: a slow task gets another attempt on another TaskManager; the first that finishes wins.

Rules:
- One attempt of each subtask is current: it alone has a state in `executions`. The others are its rivals. Only subtasks
  whose inputs and outputs are all blocking have rivals: their inputs can be read twice, and their outputs are not
  visible before they are complete.
- A rival that finishes becomes the current attempt, finished; the previous one becomes a rival and is canceled. Its
  slot is free when it has stopped. If it had finished too, what it wrote is released.
- If a current attempt fails while a rival is deployed, the rival takes its place, and the job has no failure. A failed
  or lost rival is no failure either. Both do not hold if the attempt names a lost partition: then failover restarts the
  producer.
- Code that restarts or cancels subtasks calls `cancel` here first: their rivals are canceled with them.
- As in Flink's ExecutionTimeBasedSlowTaskDetector, a task is slow if it has taken `baseline_multiplier` times the
  median of the finished ones, once `baseline_ratio` of the subtasks have finished and it has run for
  `baseline_lower_bound_s`. Where the input sizes are known, seconds per byte are compared.
- All TaskManagers of a slow task's host are blocked, if the job knows more than one host; repeatedly slow ones for
  longer. At most half of the TaskManagers are blocked, so new tasks always find one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from .deployer import Deployer, WorkKind
from .events import TasksReported
from .execution import ExecutionInput, ExecutionState
from .graph.settings import SpeculationSettings
from .instructions import BlockTaskManagers, Cancel, Deploy
from .scheduler_settings import SpeculationStatistics
from .slots.slots import Location, PhysicalSlot
from .structures import FlagArray, IndexArray, index_array


@final
class Blocklist:
    """The blocked TaskManagers of one job."""

    def __init__(self, duration_s: float) -> None:
        self._duration_s = duration_s
        self._hosts: dict[str, str] = {}
        self._until_s: dict[str, float] = {}

    def add(self, location: Location) -> None:
        """Adds a TaskManager."""
        self._hosts[location.taskmanager] = location.host

    def remove(self, taskmanager: str) -> None:
        """Removes a lost TaskManager."""
        self._hosts.pop(taskmanager, None)
        self._until_s.pop(taskmanager, None)

    def block(self, taskmanagers: Iterable[str], now_s: float) -> None:
        """Blocks TaskManagers with slow tasks, the first ones first."""
        for name in taskmanagers:
            slow = self._on_same_host(name)
            if len(self._until_s.keys() | slow) <= len(self._hosts) // 2:
                self._until_s.update(dict.fromkeys(slow, now_s + self._duration_s))

    def expire(self, now_s: float) -> None:
        """Unblocks TaskManagers whose time is over, or that would make more than half."""
        self._until_s = {name: until_s for name, until_s in self._until_s.items() if until_s > now_s}
        while len(self._until_s) > len(self._hosts) // 2:
            del self._until_s[min(self._until_s, key=self._until_s.__getitem__)]

    @property
    def blocked(self) -> dict[str, float]:
        """The blocked TaskManagers, and until when."""
        return dict(self._until_s)

    def _on_same_host(self, taskmanager: str) -> set[str]:
        """The TaskManagers on the same host, itself included."""
        host = self._hosts.get(taskmanager)
        if not host or len(set(self._hosts.values())) == 1:
            return {taskmanager}
        return {name for name, where in self._hosts.items() if where == host}


Seconds = npt.NDArray[np.float64]


def slow(
    running_s: Seconds,
    finished_s: Seconds,
    parallelism: int,
    settings: SpeculationSettings,
    running_bytes: Seconds | None = None,
    finished_bytes: Seconds | None = None,
) -> FlagArray:
    """Whether each running attempt is slow.

    Args:
        running_s: seconds that each has been running.
        finished_s: seconds that each finished one took.
        parallelism: of the vertex.
        settings: the thresholds.
        running_bytes: bytes that each running one reads; None: unknown.
        finished_bytes: bytes that each finished one read; None: unknown.
    """
    is_long: FlagArray = running_s >= settings.baseline_lower_bound_s
    if finished_s.size < round(parallelism * settings.baseline_ratio):
        return np.zeros(running_s.size, np.bool_)
    if not finished_s.size:
        return is_long  # a ratio of 0: only the lower bound counts
    if running_bytes is not None and finished_bytes is not None:
        running_s = running_s / np.maximum(running_bytes, 1)
        finished_s = finished_s / np.maximum(finished_bytes, 1)
    is_slow: FlagArray = is_long & (running_s >= settings.baseline_multiplier * np.median(finished_s))
    return is_slow


_PROGRESS: Final = {ExecutionInput.INITIALIZE: ExecutionState.INITIALIZING, ExecutionInput.RUN: ExecutionState.RUNNING}
_DEPLOYED: Final = (ExecutionState.RUNNING, ExecutionState.INITIALIZING, ExecutionState.DEPLOYING)
"""The most advanced state first."""


@final
@dataclass(slots=True)
class Rival:
    """An attempt that is not its subtask's current one.

    Attributes:
        state: SCHEDULED while it waits for a slot; CANCELING when another attempt has won.
        slot: None before it has one.
        has_share: whether its slot is the logical slot of the subtask: it was the current attempt.
    """

    subtask: int
    attempt: int
    state: ExecutionState = ExecutionState.SCHEDULED
    slot: PhysicalSlot | None = None
    deployed_s: float = 0.0
    has_share: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """Subtask and attempt."""
        return self.subtask, self.attempt


@final
class Speculation:
    """The rivals of one job.

    Args:
        deployer: the failure-free part of the scheduler.
        settings: when a task is slow; None switches speculation off.
    """

    def __init__(self, deployer: Deployer, settings: SpeculationSettings | None) -> None:
        self._deployer = deployer
        self._settings = settings
        self._rivals: dict[int, list[Rival]] = {}
        self._blocklist = Blocklist(0.0 if settings is None else settings.block_slow_node_duration_s)
        self._reported: tuple[str, ...] = ()
        self._checked_s = -np.inf
        self._known_slow: set[tuple[int, int]] = set()
        self._events: list[tuple[int, str]] = []
        self._started = self._won = self._failed = 0

    # ------------------------------------------------------------------------------------------------ statistics

    def rivals_of(self, subtask: int) -> tuple[Rival, ...]:
        """The attempts of a subtask beside the current one."""
        return tuple(self._rivals.get(subtask, ()))

    def statistics(self) -> SpeculationStatistics | None:
        """A snapshot; None if speculation is off."""
        if self._settings is None:
            return None
        return SpeculationStatistics(
            len(self._known_slow), self._started, self._won, self._failed, self._blocklist.blocked
        )

    def drain_events(self) -> list[tuple[int, str]]:
        """What happened since the last call: (subtask, text)."""
        events, self._events = self._events, []
        return events

    # ------------------------------------------------------------------------------------------------ slow tasks

    def next_deadline_s(self) -> float | None:
        """When to call `check_slow_tasks` again."""
        if self._settings is None or not (self._reported or self._deployer.executions.count(*_DEPLOYED)):
            return None
        return float(max(self._checked_s + self._settings.check_interval_s, 0.0))

    def check_slow_tasks(self) -> None:
        """Looks for slow tasks, if it is time: requests slots for further attempts, and blocks TaskManagers."""
        settings, deployer = self._settings, self._deployer
        if settings is None or deployer.now_s < self._checked_s + settings.check_interval_s:
            return
        self._checked_s = deployer.now_s
        self._blocklist.expire(deployer.now_s)
        is_slow = sorted(self._slow(settings), key=lambda each: each[0], reverse=True)
        self._known_slow.update((subtask, attempt) for _, subtask, attempt, _ in is_slow)
        self._blocklist.block((slot.location.taskmanager for _, _, _, slot in is_slow), deployer.now_s)
        for subtask in dict.fromkeys(subtask for _, subtask, _, _ in is_slow):
            self._add_rivals(subtask, settings)
        self._report_blocked()

    def _slow(self, settings: SpeculationSettings) -> Iterator[tuple[float, int, int, PhysicalSlot]]:
        """The slow attempts, each with its running time, subtask, number and slot."""
        deployer, topology = self._deployer, self._deployer.topology
        for vertex in topology.initialised:
            if not self._may_be_repeated(vertex):
                continue
            subtasks = index_array(topology.subtasks_of(vertex))
            states = deployer.executions.states[subtasks]
            is_running = np.isin(states, [state.code for state in _DEPLOYED])
            if not is_running.any():
                continue
            is_finished = states == ExecutionState.FINISHED.code
            explanation = deployer.explanation(vertex)
            read = None if explanation is None else np.array(explanation.bytes_per_subtask, np.float64)
            if read is not None and read.size != subtasks.size:
                read = None
            running = subtasks[is_running]
            slots = deployer.allocation.slots_of(running)
            attempts = [
                (subtask, int(deployer.executions.attempts[subtask]), slot)
                for subtask, slot in zip(running.tolist(), slots, strict=True)
            ]
            since_s = deployer.deployed_s.view[running].tolist()
            for subtask in running.tolist():
                for rival in self._rivals.get(subtask, ()):
                    if rival.slot is not None and rival.state in _DEPLOYED:
                        attempts.append((subtask, rival.attempt, rival.slot))
                        since_s.append(rival.deployed_s)
            numbers = np.array([subtask for subtask, _, _ in attempts]) - int(subtasks[0])
            took_s = deployer.now_s - np.array(since_s)
            flags = slow(
                took_s,
                deployer.took_s.view[subtasks[is_finished]],
                subtasks.size,
                settings,
                None if read is None else read[numbers],
                None if read is None else read[is_finished],
            )
            for position in np.flatnonzero(flags).tolist():
                yield float(took_s[position]), *attempts[position]

    def _may_be_repeated(self, vertex: int) -> bool:
        """Whether two attempts of a subtask may run at the same time."""
        job = self._deployer.topology.job
        inputs = [job.datasets[edge.dataset].type for edge in job.inputs_of(vertex)]
        outputs = [job.datasets[dataset].type for dataset in job.outputs_of(vertex)]
        return job.vertices[vertex].supports_concurrent_attempts and all(each.is_blocking for each in inputs + outputs)

    def _add_rivals(self, subtask: int, settings: SpeculationSettings) -> None:
        deployer = self._deployer
        others = [rival for rival in self.rivals_of(subtask) if rival.state is not ExecutionState.CANCELING]
        vertex, _ = deployer.topology.place_of(subtask)
        here = deployer.allocation.slots_of(index_array([subtask]))[0].location.taskmanager
        avoided = {here, *(rival.slot.location.taskmanager for rival in others if rival.slot is not None)}
        for _ in range(settings.max_concurrent_executions - 1 - len(others)):
            rival = Rival(subtask, deployer.executions.take_attempt(subtask))
            self._rivals.setdefault(subtask, []).append(rival)
            deployer.allocation.request_spare(rival.key, deployer.topology.job.vertices[vertex].profile, avoided)
            waited_s = deployer.now_s - float(deployer.deployed_s.view[subtask])
            self._events.append((subtask, f"is slow: on {here} for {waited_s:.1f} s; starting another attempt"))

    # ---------------------------------------------------------------------------------------------- TaskManagers

    def add_taskmanager(self, location: Location) -> None:
        """Adds a TaskManager."""
        self._blocklist.add(location)

    def lose_taskmanager(self, taskmanager: str, spare: list[tuple[int, int]]) -> None:
        """Removes a lost TaskManager, and the attempts that had these spare slots."""
        self._blocklist.remove(taskmanager)
        names = {*spare}
        for rivals in [*self._rivals.values()]:
            for rival in [*rivals]:
                is_there = rival.slot is not None and rival.slot.location.taskmanager == taskmanager
                if rival.key in names or is_there:
                    if rival.state is not ExecutionState.CANCELING:
                        self._failed += 1
                    self._ended(rival)

    def _report_blocked(self) -> None:
        """Blocks TaskManagers; while only rivals wait for slots, also those that none of them may use."""
        allocation = self._deployer.allocation
        blocked = self._blocklist.blocked
        allocation.block(blocked)
        useless = () if allocation.is_waited_for else allocation.avoided_by_spare()
        names = tuple(sorted({*blocked, *useless}))
        if names != self._reported:
            self._reported = names
            self._deployer.out.append(BlockTaskManagers(names))

    # -------------------------------------------------------------------------------------------------- attempts

    def on_report(self, event: TasksReported, subtask: int, attempt: int) -> bool:
        """Handles a report about an attempt that is not current; returns False if it is no rival."""
        rival = self._find(subtask, attempt)
        if rival is None or rival.slot is None:
            return False
        is_canceled = rival.state is ExecutionState.CANCELING
        if event.what in _PROGRESS:
            if not is_canceled:
                rival.state = _PROGRESS[event.what]
        elif event.what is ExecutionInput.FINISH and is_canceled:
            self._deployer.drop_written(subtask, attempt, rival.slot)
            self._ended(rival)
        elif event.what is ExecutionInput.FINISH:
            self._win(rival, event.produced_bytes)
        else:
            self._failed += not is_canceled
            self._ended(rival)
        return True

    def on_failed(self, subtask: int, attempt: int, cause: str) -> bool:
        """Handles the failure of an attempt that is not current; returns False if it is no rival."""
        rival = self._find(subtask, attempt)
        if rival is None or rival.slot is None:
            return False
        if rival.state is not ExecutionState.CANCELING:
            self._failed += 1
            self._events.append((subtask, f"another attempt failed: {cause}"))
        self._ended(rival)
        return True

    def on_finished(self, subtasks: IndexArray) -> None:
        """Cancels the rivals of subtasks whose current attempts have finished."""
        self.cancel(subtasks)

    def cancel(self, subtasks: IndexArray) -> None:
        """Cancels the rivals of these subtasks."""
        if not self._rivals:
            return
        for subtask in subtasks.tolist():
            for rival in self.rivals_of(subtask):
                if rival.slot is None:
                    self._ended(rival)
                elif rival.state is not ExecutionState.CANCELING:
                    self._cancel(rival, rival.slot)

    def take_over(self, subtask: int, cause: str) -> bool:
        """Replaces a failed current attempt by a deployed rival; returns False if there is none."""
        able = [rival for rival in self.rivals_of(subtask) if rival.state in _DEPLOYED]
        if not able:
            return False
        rival = min(able, key=lambda each: _DEPLOYED.index(each.state))
        deployer = self._deployer
        assert rival.slot is not None
        self._forget(rival)
        deployer.executions.replace(subtask, rival.attempt, rival.state)
        deployer.deployed_s.view[subtask] = rival.deployed_s
        deployer.allocation.adopt(rival.key, deployer.now_s)
        deployer.place(subtask, rival.slot)
        self._won += 1
        self._events.append((subtask, f"failed and continues as attempt {rival.attempt}: {cause}"))
        return True

    def deploy(self) -> None:
        """Deploys the rivals that got a slot."""
        for (subtask, attempt), slot in self._deployer.allocation.take_spare():
            rival = self._find(subtask, attempt)
            if rival is None or rival.slot is not None:
                continue
            rival.slot, rival.state, rival.deployed_s = slot, ExecutionState.DEPLOYING, self._deployer.now_s
            self._started += 1
            self._deployer.deployed += 1
            self._deployer.out.append(Deploy(*_as_arrays(rival, slot), is_speculative=True))
            self._events.append((subtask, f"attempt {attempt} was sent to {slot.location.taskmanager}"))

    # --------------------------------------------------------------------------------------------------- private

    def _win(self, rival: Rival, produced_bytes: Mapping[int, npt.NDArray[np.int64]]) -> None:
        """Makes a rival that finished first the current attempt."""
        deployer, subtask = self._deployer, rival.subtask
        number = index_array([subtask])
        assert rival.slot is not None
        (slot,) = deployer.allocation.slots_of(number)
        before = Rival(
            subtask,
            int(deployer.executions.attempts[subtask]),
            deployer.executions.state(subtask),
            slot,
            float(deployer.deployed_s.view[subtask]),
            has_share=deployer.allocation.disown(subtask) is None,
        )
        self._forget(rival)
        deployer.executions.replace(subtask, rival.attempt, rival.state)
        deployer.deployed_s.view[subtask] = rival.deployed_s
        deployer.place(subtask, rival.slot)
        deployer.executions.apply(number, ExecutionInput.FINISH)
        deployer.record_sizes(produced_bytes, number)
        deployer.ended(number, keeps_slot=before.has_share)
        deployer.allocation.release_spare(rival.key, deployer.now_s)
        self.cancel(number)
        self._rivals.setdefault(subtask, []).append(before)
        self._cancel(before, slot)
        self._won += 1
        self._events.append((subtask, f"attempt {rival.attempt} finished before attempt {before.attempt}"))

    def _cancel(self, rival: Rival, slot: PhysicalSlot) -> None:
        rival.state = ExecutionState.CANCELING
        self._deployer.out.append(Cancel(*_as_arrays(rival, slot)))

    def _ended(self, rival: Rival) -> None:
        self._forget(rival)
        if rival.has_share:
            self._deployer.work.add(WorkKind.RELEASE, index_array([rival.subtask]))
        else:
            self._deployer.allocation.release_spare(rival.key, self._deployer.now_s)

    def _forget(self, rival: Rival) -> None:
        rivals = self._rivals[rival.subtask]
        rivals.remove(rival)
        if not rivals:
            del self._rivals[rival.subtask]

    def _find(self, subtask: int, attempt: int) -> Rival | None:
        return next((rival for rival in self._rivals.get(subtask, ()) if rival.attempt == attempt), None)


def _as_arrays(rival: Rival, slot: PhysicalSlot) -> tuple[Any, Any, tuple[PhysicalSlot, ...]]:
    return index_array([rival.subtask]), np.array([rival.attempt], np.uint32), (slot,)
