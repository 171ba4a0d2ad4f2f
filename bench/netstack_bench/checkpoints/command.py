"""The command `netstack-bench checkpoints`: every mode at every pressure, one job each, one after the other.

The JobManager is in this process. The sources run in one TaskManager process, the sinks in another.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast, final

import click
import trio

from netstack.base.config import MIB
from netstack.base.scratch import scratch_folder
from netstack.base.text.limited_log import quieter
from netstack.cli.stopping import stopped_by
from netstack.cli.values import COUNT, LENGTH, SECONDS, ParsedList, parse_number
from netstack.cluster.jobmanager.job_master.checkpoints import CheckpointReport
from netstack.cluster.jobmanager.job_master.job_master import JobMaster
from netstack.cluster.jobmanager.job_record import JobRecord
from netstack.cluster.jobmanager.local import LocalCluster, open_local_cluster
from netstack.network.waiting.threads import background_tasks
from netstack.schedule.execution import ExecutionState
from netstack.schedule.graph.job_file import write_job
from netstack.schedule.slots.slot_sharing import FixedPlacement

from .. import console
from ..experiment import ResultFolder, output_flag
from ..flags import flag, flag_of, flags, gate_flags, json_flag, record_bytes_flag
from ..pacing import clock_ns
from ..places.conversation import MeasurementFailed, OnProgress, RunState
from ..stopping import kept_at_interrupt
from .figures import Completed, Point, Stretch, point
from .operators import SINK, SOURCE, TAKEN, job
from .page import build_page
from .spec import MODES, SINKS, WARM_UP_S, CheckpointsSpec, Mode
from .text import print_result

_DEFAULT: Final = CheckpointsSpec()


@click.command(short_help="Aligned, unaligned and timed checkpoints under backpressure, side by side.")
@flags(
    flag_of(
        _DEFAULT, "--seconds", SECONDS, "Time with checkpoints in each mode at each pressure; the same time without."
    ),
    flag_of(_DEFAULT, "--interval", LENGTH, "Interval between checkpoints."),
    flag_of(_DEFAULT, "--aligned-timeout", LENGTH, "Timed mode: age at which a checkpoint becomes unaligned."),
    flag("--modes", ParsedList("mode,...", str), "Modes to compare.", default=MODES),
    flag(
        "--pressure",
        ParsedList("number,...", parse_number),
        "Backpressure from 0: the sinks take (1 - pressure) of their full rate.",
        "pressures",
        default=tuple(f"{pressure:g}" for pressure in _DEFAULT.pressures),
    ),
    flag_of(_DEFAULT, "--channels", COUNT, "Source subtasks, each with a channel to both sinks."),
    record_bytes_flag(_DEFAULT.record_bytes),
    flag_of(_DEFAULT, "--keys", COUNT, "Number of keys in the state of the sinks."),
    gate_flags(_DEFAULT),
    output_flag("checkpoints"),
    json_flag,
)
@click.pass_obj
def checkpoints(app: Any, /, modes: tuple[str, ...], output: Path | None, as_json: bool, **settings: Any) -> int:
    """Takes checkpoints under backpressure in each mode: sources in one process, slow sinks with state in another.

    Aligned barriers wait behind the records that are queued in front of the sinks, so backpressure delays them.
    Unaligned barriers overtake the records, which become part of the checkpoint.

    Exit code 1 if a mode completed no checkpoint at some pressure.
    """
    spec = CheckpointsSpec(modes=cast("tuple[Mode, ...]", modes), **settings)
    folder = ResultFolder.open("checkpoints", output)
    errors = console.err()
    with console.RunBar(len(jobs(spec)), expected_s(spec), errors) as progress:
        figures, stopped = measure(spec, on_progress=progress)
    show = None if as_json else partial(print_result, spec, figures["modes"])
    is_written = folder.finish(spec, figures, build_page, app.arguments, show)
    console.print_warnings(figures, errors)
    if stopped:
        errors.print(f"stopped by {stopped_by()}: only earlier points are shown")
    none = any(not each["checkpoints"] for points in figures["modes"].values() for each in points)
    return 1 if none or not is_written else 0


PATIENCE_S: Final = 60.0
"""The time that a job may take beyond the expected one; aligned checkpoints are slow under pressure."""

SHARED_BYTES: Final = 8 * MIB
"""Memory of a TaskManager besides the job's: for the network that jobs share, unused here."""

_START_S: Final = 1.0
_END_S: Final = 0.3
_LOOK_S: Final = 0.01
_PROGRESS_S: Final = 0.25
_CLOSE_S: Final = 5.0

Samples = list[tuple[int, int]]
"""(time in ns, records taken until then), both rising."""

Span = tuple[bool, int, int]
"""(with checkpoints, start, end) in nanoseconds."""


def jobs(spec: CheckpointsSpec) -> list[tuple[float, Mode | None]]:
    """The jobs in order: pressure and mode; the first job measures the undisturbed rate of the sinks."""
    return [(0.0, None), *((pressure, mode) for pressure in spec.pressures for mode in spec.modes)]


def expected_s(spec: CheckpointsSpec) -> float:
    """The expected length of all jobs, if checkpoints are quick."""
    return _START_S + len(jobs(spec)) * _job_s(spec)


def measure(spec: CheckpointsSpec, *, on_progress: OnProgress | None = None) -> tuple[dict[str, Any], bool]:
    """Makes all measurements.

    Returns:
        `modes`, `undisturbed_records_per_s` and `warnings` of the command's document, and whether Ctrl-C left some
        points out.

    Raises:
        MeasurementFailed: a job failed, or did not end.
        NetstackError: a process could not be started.
    """
    modes: dict[str, list[Point]] = {mode: [] for mode in spec.modes}
    result: dict[str, Any] = {"modes": modes, "undisturbed_records_per_s": None, "warnings": []}
    with (
        kept_at_interrupt(lambda: any(modes.values())),
        scratch_folder() as scratch,
        quieter("netstack.jobmanager", logging.ERROR),
    ):
        trio.run(_measure, spec, Path(scratch), result, on_progress, restrict_keyboard_interrupt_to_checkpoints=True)
    return result, sum(map(len, modes.values())) < len(jobs(spec)) - 1


async def _measure(
    spec: CheckpointsSpec, scratch: Path, result: dict[str, Any], on_progress: OnProgress | None
) -> None:
    samples: Samples = []

    def printed(_taskmanager: str, line: str) -> None:
        if line.startswith(f"{TAKEN} "):
            _, at_ns, records = line.split()
            samples.append((int(at_ns), int(records)))

    async with open_local_cluster(
        slots=max(spec.channels, SINKS),
        memory_bytes=max(MIB, spec.network().memory_bytes) + SHARED_BYTES,
        is_restarting=False,
        slots_in="loop",
        on_printed=printed,
    ) as cluster:
        runner = Runner(spec, cluster, scratch, samples, on_progress)
        for pressure, mode in jobs(spec):
            full_per_s = result["undisturbed_records_per_s"]
            rate = None if full_per_s is None or not pressure else (1 - pressure) * full_per_s
            figures, problems = await runner.run(pressure, mode, rate)
            if mode is None:
                result["undisturbed_records_per_s"] = figures["records_per_s_without"]
            else:
                result["modes"][mode].append(figures)
            result["warnings"] += problems


@final
class Runner:
    """Runs one job after the other.

    The first TaskManager of `cluster` gets the sources, the second the sinks. `samples` grows as the sinks take
    records.
    """

    def __init__(
        self,
        spec: CheckpointsSpec,
        cluster: LocalCluster,
        scratch: Path,
        samples: Samples,
        on_progress: OnProgress | None,
    ) -> None:
        self._spec = spec
        self._cluster = cluster
        self._scratch = scratch
        self._samples = samples
        self._on_progress = on_progress

    async def run(self, pressure: float, mode: Mode | None, rate_per_s: float | None) -> tuple[Point, list[str]]:
        """Runs one job and returns its figures and warnings.

        Without a mode it takes no checkpoints. `rate_per_s` limits the sinks. Raises MeasurementFailed if the job
        fails.
        """
        self._samples.clear()
        name = f"{mode or 'undisturbed'}, pressure {pressure:g}"
        folder = self._scratch / f"{mode}-{pressure:g}"
        graph = write_job(job(self._spec, mode, rate_per_s=rate_per_s, folder=folder).stream_graph())
        patience_s = PATIENCE_S + 2 * _job_s(self._spec)
        async with background_tasks() as nursery:
            nursery.start_soon(self._report, name)
            with trio.move_on_after(patience_s):
                spans, reports = await self._stretches(name, graph, is_disturbed=mode is not None)
                return measured_point(name, pressure, self._samples, spans, reports)
        raise MeasurementFailed(f"{name}: no end after {patience_s:.0f} s{self._cluster.taskmanagers.last_words()}")

    async def _stretches(
        self, name: str, graph: dict[str, Any], *, is_disturbed: bool
    ) -> tuple[list[Span], list[CheckpointReport]]:
        spec, spans, reports = self._spec, list[Span](), list[CheckpointReport]()
        dispatcher = self._cluster.jobmanager.dispatcher
        first, second = (each.location.name for each in self._cluster.jobmanager.taskmanagers.all())
        placement = FixedPlacement({SOURCE: [first] * spec.channels, SINK: [second] * SINKS})
        record = dispatcher.records[await dispatcher.submit(graph, placement=placement)]
        try:
            master = await self._running(name, record)
            await trio.sleep(WARM_UP_S)
            for _ in range(spec.stretches):
                spans.append(await _without(spec))
                if is_disturbed:
                    spans.append(await _with(spec, master, reports))
            spans.append(await _without(spec))
            self._check(name, record)
        finally:
            if record.master is not None:
                record.master.cancel()
            with trio.move_on_after(_CLOSE_S, shield=True):
                await record.ended.wait()
        return spans, reports

    async def _running(self, name: str, record: JobRecord) -> JobMaster:
        while True:
            self._check(name, record)
            master = record.master
            if master is not None:
                scheduler = master.scheduler
                if scheduler.count(ExecutionState.RUNNING) == scheduler.topology.subtask_count:
                    return master
            await trio.sleep(_LOOK_S)

    def _check(self, name: str, record: JobRecord) -> None:
        for death in self._cluster.taskmanagers.deaths:
            raise MeasurementFailed(f"{name}: {death}")
        if record.end is not None:
            reason = record.end["reason"] or record.end["state"]
            raise MeasurementFailed(f"{name}: the job failed: {reason}{self._cluster.taskmanagers.last_words()}")

    async def _report(self, name: str) -> None:
        began_s = trio.current_time()
        while self._on_progress is not None:
            elapsed_s = trio.current_time() - began_s
            taken_records = self._samples[-1][1] - self._samples[0][1] if self._samples else 0
            phase = "running" if self._samples else "starting"
            part = min(1.0, elapsed_s / _job_s(self._spec))
            self._on_progress(RunState(name, phase, taken_records, elapsed_s, part))
            await trio.sleep(_PROGRESS_S)


def measured_point(
    name: str, pressure: float, samples: Samples, spans: Sequence[Span], reports: Sequence[CheckpointReport]
) -> tuple[Point, list[str]]:
    """The figures of one job, and a remark for each reason of aborted checkpoints."""
    stretches = [
        Stretch(on, round(taken(samples, end) - taken(samples, start)), (end - start) / 1e9) for on, start, end in spans
    ]
    completed = [_completed(report) for report in reports if report.is_complete]
    reasons = dict.fromkeys(report.reason for report in reports if not report.is_complete)
    problems = [f"{name}: a checkpoint was aborted: {reason}" for reason in reasons]
    return point(pressure, completed, len(reports) - len(completed), stretches), problems


def taken(samples: Sequence[tuple[int, int]], at_ns: int) -> float:
    """Records taken until a time, interpolated between samples; constant outside of them."""
    number = bisect.bisect_right(samples, at_ns, key=lambda sample: sample[0])
    if number == 0 or number == len(samples):
        return float(samples[min(number, len(samples) - 1)][1]) if samples else 0.0
    (before_ns, before), (after_ns, after) = samples[number - 1 : number + 1]
    return before + (after - before) * (at_ns - before_ns) / (after_ns - before_ns)


async def _without(spec: CheckpointsSpec) -> Span:
    began_ns = clock_ns()
    await trio.sleep(spec.stretch_s)
    return False, began_ns, clock_ns()


async def _with(spec: CheckpointsSpec, master: JobMaster, reports: list[CheckpointReport]) -> Span:
    due = began = trio.current_time()
    began_ns = clock_ns()
    while due < began + spec.stretch_s:
        await trio.sleep_until(due)
        reports.append(await master.checkpoint())
        due = max(due + spec.interval_s, trio.current_time())
    await trio.sleep_until(began + spec.stretch_s)
    return True, began_ns, clock_ns()


def _completed(report: CheckpointReport) -> Completed:
    sinks = [each for each in report.subtasks if each["task"] == SINK]
    return Completed(
        duration_s=report.duration_s,
        start_delay_s=max((each["start_delay_s"] for each in sinks), default=0.0),
        alignment_s=max((each["alignment_s"] for each in sinks), default=0.0),
        write_s=max((each["write_s"] for each in report.subtasks), default=0.0) + report.store_s,
        channel_state_bytes=sum(each["input_bytes"] + each["output_bytes"] for each in report.subtasks),
    )


def _job_s(spec: CheckpointsSpec) -> float:
    return WARM_UP_S + (2 * spec.stretches + 1) * spec.stretch_s + _END_S
