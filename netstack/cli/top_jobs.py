"""The JobManager views of `netstack top`: jobs, tasks and TaskManagers.

Takes: samples of `ClusterSnapshots.snapshot` with their times. Gives: a frozen view, and lines for a terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, final

from rich.text import Text

from ..base.units import format_count
from .job_output import ENDED, state_text

_NOT_YET: Final = "not connected yet"
_WINDOW_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class VertexView:
    """One vertex of a job. Rates are None in the first sample, percentages while no task has reported them.

    Attributes:
        busy_percent: busy time of its tasks, on average.
        idle_percent: idle time of its tasks, on average.
        backpressured_percent: back-pressured time of its tasks, on average.
    """

    name: str
    tasks: dict[str, int]
    in_records_per_s: float | None
    out_records_per_s: float | None
    busy_percent: float | None
    idle_percent: float | None
    backpressured_percent: float | None


@dataclass(frozen=True, slots=True)
class MasterView:
    """One job.

    Attributes:
        waits_for: description of the slots that are missing; empty if none.
        bottleneck: description of the bottleneck; empty while it is unknown.
        vertices: vertices of the job; none if it has ended.
    """

    job_id: str
    name: str
    state: str
    restarts: int
    checkpoints: int
    waits_for: str
    bottleneck: str
    vertices: tuple[VertexView, ...]


@dataclass(frozen=True, slots=True)
class HostView:
    """One TaskManager of a JobManager.

    Attributes:
        gone: why it was lost; empty if it is registered.
    """

    name: str
    hostname: str
    slots: int
    used_slots: int
    gone: str


@dataclass(frozen=True, slots=True)
class JobManagerView:
    """One JobManager.

    Attributes:
        gone: why it cannot be reached; empty if it can. The other fields then have the values of the last sample.
        jobs: its jobs, the newest first; of the ended ones only the last few.
        taskmanagers: its TaskManagers in the order of registration.
    """

    address: str
    gone: str
    jobs: tuple[MasterView, ...]
    taskmanagers: tuple[HostView, ...]


ENDED_SHOWN: Final = 5


@final
class JobManagerHistory:
    """The samples of one JobManager.

    Attributes:
        has_answered: whether there was ever a sample.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._problem = _NOT_YET
        self.has_answered = False
        self._samples: list[tuple[float, Mapping[str, Any]]] = []

    def add(self, document: Mapping[str, Any], now_s: float) -> None:
        """Adds a sample."""
        if self._problem:
            self._samples.clear()  # the time without samples has no rates
        self._problem = ""
        self.has_answered = True
        self._samples.append((now_s, document))
        while len(self._samples) > 2 and self._samples[0][0] < now_s - _WINDOW_S:
            del self._samples[0]

    @property
    def is_known(self) -> bool:
        """Whether there are two samples, and so rates, or the connection failed."""
        return self._problem not in ("", _NOT_YET) or len(self._samples) > 1

    def lost(self, why: str) -> None:
        """Marks the JobManager as unreachable."""
        self._problem = why or "lost"

    def view(self, now_s: float) -> JobManagerView:
        """The view of the last sample."""
        if not self._samples:
            return JobManagerView(self._address, self._problem, (), ())
        (before_s, before), (last_s, last) = self._samples[0], self._samples[-1]
        then = {job["job_id"]: job for job in before["jobs"]}
        ended = [job["job_id"] for job in last["jobs"] if job["state"] in ENDED]
        left_out = set(ended[:-ENDED_SHOWN])
        jobs = [
            _job(job, then.get(job["job_id"]), last_s - before_s)
            for job in reversed(last["jobs"])
            if job["job_id"] not in left_out
        ]
        hosts = [
            HostView(each["name"], each["host"], each["slots"], each["slots"] - each["free_slots"], each["gone"])
            for each in last["taskmanagers"]
        ]
        return JobManagerView(self._address, self._problem, tuple(jobs), tuple(hosts))


def _job(job: Mapping[str, Any], before: Mapping[str, Any] | None, passed_s: float) -> MasterView:
    vertices = [] if job["state"] in ENDED else job["vertices"]
    then = {each["name"]: each for each in (before or job)["vertices"]}
    return MasterView(
        job["job_id"],
        job["name"],
        job["state"],
        job["restarts"],
        job["checkpoints_completed"],
        job["waits_for"] or job["reason"],
        job["bottleneck"]["text"] if vertices and job.get("bottleneck") else "",
        tuple(_vertex(each, then.get(each["name"]), passed_s) for each in vertices),
    )


def _vertex(vertex: Mapping[str, Any], before: Mapping[str, Any] | None, passed_s: float) -> VertexView:
    def rate(name: str) -> float | None:
        if before is None or passed_s <= 0:
            return None
        return max(0, int(vertex[name]) - int(before[name])) / passed_s  # counters begin at 0 after a restart

    known = [each for each in vertex["subtasks"] if each.get("busy") is not None]

    def share(name: str) -> float | None:
        return sum(each[name] for each in known) / len(known) / 10 if known else None

    return VertexView(
        vertex["name"],
        dict(Counter(vertex.get("left_out", {})) + Counter(each["state"] for each in vertex["subtasks"])),
        rate("records_in"),
        rate("records_out"),
        share("busy"),
        share("idle"),
        share("backpressured"),
    )


def jobmanager_document(views: Sequence[JobManagerView]) -> list[dict[str, Any]]:
    """The views of all JobManagers as plain data."""
    return [asdict(view) for view in views]


_NAME: Final = 20
_TITLES: Final = f"    {'task':{_NAME}} {'subtasks':16} {'in/s':>8} {'out/s':>8} {'busy':>5} {'idle':>5} {'waits':>5}"


def jobmanager_lines(view: JobManagerView) -> list[Text]:
    """Renders a JobManager as lines, which are truncated at the width of the terminal."""
    name = Text.assemble(("JobManager ", ""), (view.address, "bold"))
    if view.gone:
        return [line_of(name, ("  lost, reconnecting", "bold red")), Text(f"  {view.gone}", style="red"), Text("")]
    free = sum(each.slots - each.used_slots for each in view.taskmanagers if not each.gone)
    jobs = "1 job" if len(view.jobs) == 1 else f"{len(view.jobs)} jobs"
    lines = [line_of(name, f"  {jobs}, {free} of {_slots(view)} slots free")]
    for job in view.jobs:
        head = f"  {job.job_id}  restarts {job.restarts}  checkpoints {job.checkpoints}"
        why = f"  {job.waits_for}" if job.waits_for else ""
        lines.append(line_of("  ", (job.name, "cyan"), "  ", state_text(job.state), head, (why, "yellow")))
        if job.vertices:
            lines.append(line_of((_TITLES, "dim")))
        lines += [_vertex_line(vertex) for vertex in job.vertices]
        if job.bottleneck:
            lines.append(line_of(f"    bottleneck: {job.bottleneck}"))
    if view.taskmanagers:
        lines.append(line_of((f"    {'TaskManager':{_NAME}} {'host':22} slots in use", "dim")))
    for each in view.taskmanagers:
        end = (f"  lost: {each.gone}", "red") if each.gone else ("", "")
        lines.append(line_of(f"    {each.name:{_NAME}} {each.hostname:22} {each.used_slots} of {each.slots}", end))
    return [*lines, Text("")]


def _slots(view: JobManagerView) -> int:
    return sum(each.slots for each in view.taskmanagers if not each.gone)


def _vertex_line(vertex: VertexView) -> Text:
    states = ", ".join(f"{count} {state}" for state, count in vertex.tasks.items())
    rates = [_rate(each) for each in (vertex.in_records_per_s, vertex.out_records_per_s)]
    shares = [_percent(each) for each in (vertex.busy_percent, vertex.idle_percent, vertex.backpressured_percent)]
    style = "red" if "failed" in vertex.tasks else ""
    return line_of(
        f"    {vertex.name:{_NAME}.{_NAME}} ",
        (f"{states:16}", style),
        f" {rates[0]:>8} {rates[1]:>8} {shares[0]:>5} {shares[1]:>5} ",
        (f"{shares[2]:>5}", "magenta"),
    )


def _rate(per_s: float | None) -> str:
    return "..." if per_s is None else format_count(round(per_s))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0f} %"


def line_of(*parts: str | Text | tuple[str, str]) -> Text:
    """One line of text, truncated at the width of the terminal."""
    line = Text.assemble(*parts)
    line.no_wrap = True
    line.overflow = "ellipsis"
    return line
