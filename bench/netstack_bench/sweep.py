"""Makes the runs of a grid one after the other, stores every row, and writes the report.

A stored run is not repeated unless it failed; the new row then replaces the old one. A failed run does not stop the
sweep, unless no other run could succeed: `PlaceUnusable`, or too many equal failures in a row. Ctrl-C stops it. All
measured rows are always stored and reported.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, final, runtime_checkable

from netstack.base.errors import NetstackError
from netstack.cli.stopping import unwrapped_interrupt

from .decision.experiment import Budget, Experiment
from .decision.goal import Answer, Goal
from .emulation import emulation_cells, undecided_points
from .grid import Grid, PlannedRun
from .histogram import Histogram
from .interval import looks_after
from .places.conversation import MeasurementFailed
from .report import Sweep, build_combined_report
from .report.answers import decide
from .report.points import Analysis
from .spec import RunOnce, RunSpec
from .store import Row, Store, StoreError, arrow_table, flatten, read_sweep, require_pyarrow, write_file

REPORT: Final = "report.html"
COMPARISON: Final = "comparison.html"


_TOGETHER: Final = 6  # runs, where several can be made at once
_TOGETHER_S: Final = 6.0  # their length
_ALIKE: Final = 5  # equal failures in a row: their settings are not the cause


class PlaceUnusable(MeasurementFailed):
    """No run is possible where the sweep is measured: every other one would fail alike."""


@runtime_checkable
class Announced(Protocol):
    """A `RunOnce` that makes several runs at once, if it knows them."""

    def announce(self, specs: Sequence[RunSpec], /) -> None:
        """Names the runs that come next."""


class Progress(Protocol):
    """Receives the progress of a sweep."""

    def begin(self, run: PlannedRun) -> None:
        """A run starts."""

    def end(self, run: PlannedRun, row: Row) -> None:
        """A run ended, successfully or not."""


class Bar(Progress, Protocol):
    """Progress of runs and of preparations."""

    def prepare(self, what: str, expected_s: float) -> None:
        """A preparation or follow-up of runs starts."""

    def prepared(self) -> None:
        """It has ended."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The outcome of a sweep.

    `report` is None without rows. `hopeless` is why the missing runs were not tried; empty when all were. `missing`
    runs of the grid were not made: after an interrupt, a failure that all would share, or `out_of_time`.
    """

    folder: Path
    report: Path | None
    rows: list[Row]
    planned: int
    skipped: int
    made: int
    interrupted: bool
    hopeless: str = ""
    out_of_time: bool = False
    missing: int = 0

    @property
    def failed(self) -> int:
        """The number of stored runs that failed."""
        return sum(not succeeded(row) for row in self.rows)

    def _answer(self) -> dict[str, Any] | None:
        return next((each.as_dict() for each in decide(Analysis(self.rows), Goal()).values()), None)

    def as_dict(self, findings: Sequence[str]) -> dict[str, Any]:
        """The document of `sweep --json`."""
        return {
            "folder": str(self.folder),
            "report": None if self.report is None else str(self.report),
            "runs": len(self.rows),
            "made": self.made,
            "skipped": self.skipped,
            "failed": self.failed,
            "interrupted": self.interrupted,
            "hopeless": self.hopeless or None,
            "missing": self.missing,
            "answer": self._answer(),
            "findings": list(findings),
            "emulation": [cell.as_dict() for cell in emulation_cells(self.rows)],
            "rows": self.rows,
        }


def pending(grid: Grid, store: Store) -> list[PlannedRun]:
    """The runs of the grid that are not stored yet, in order."""
    finished = _finished(store)
    return [run for run in grid.plan() if run.key not in finished]


def undecided_runs(grid: Grid, store: Store, most_repeats: int) -> list[PlannedRun]:
    """The missing runs of the next look at points whose comparison with Flink is undecided."""
    if most_repeats <= grid.repeats:
        return []
    points, finished = undecided_points(store.rows(), grid.points), _finished(store)
    for before, look in itertools.pairwise(looks_after(grid.repeats, most_repeats)):
        passes = (grid.one_pass(repeat, points.__contains__) for repeat in range(before, look))
        if runs := [run for some in passes for run in some if run.key not in finished]:
            return runs
    return []


def make_runs(
    grid: Grid,
    store: Store,
    run_once: RunOnce,
    *,
    command: str = "",
    progress: Progress | None = None,
    budget: Budget | None = None,
    most_repeats: int = 0,
) -> SweepResult:
    """Makes every missing run and writes the results; with a budget also the passes that the answer needs.

    With `most_repeats`, points whose comparison with Flink is undecided are measured so many times. Netstack and system
    errors of `run_once` become the row's error. `command` is stored in `sweep.json`.

    Raises:
        StoreError: the folder cannot be written; stored rows are intact.
        ConfigError: pyarrow is missing.
    """
    require_pyarrow()
    planned = grid.plan()
    todo = pending(grid, store)
    skipped = len(planned) - len(todo)
    todo = todo or undecided_runs(grid, store, most_repeats)
    if todo:
        facts = {"started_at": utc_text(), "command": command, "grid": grid.as_dict()}
        store.write_sweep({**facts, "order": [[run.spec.run_id, run.repeat] for run in planned]})
    maker = _Maker(store, run_once, progress)
    together = maker.together(planned[0].spec)
    interrupted, hopeless, out_of_time = False, "", False
    try:
        with unwrapped_interrupt():
            if budget is None:
                while todo:
                    for some in _batches(todo, together):
                        maker(some)
                    todo = [run for run in undecided_runs(grid, store, most_repeats) if run.key not in maker.tried]
            else:
                experiment = Experiment(
                    grid, lambda: open_answer(store), maker, budget, finished=_finished(store), together=together
                )
                experiment.run()
                out_of_time = experiment.is_out_of_time
    except _HopelessError as error:
        hopeless = str(error)
    except KeyboardInterrupt:
        interrupted = True
    missing = len(pending(grid, store))
    if not missing:
        hopeless = ""
    rows, report = store.rows(), None
    if rows:
        store.write_parquet()
        report = write_combined_report(store.folder / REPORT, {store.folder: rows})
    of_grid = {(run.spec.run_id, run.repeat) for run in planned}
    planned_count = len(planned) + sum((row["run_id"], row["repeat"]) not in of_grid for row in rows)
    return SweepResult(
        store.folder, report, rows, planned_count, skipped, maker.made, interrupted, hopeless, out_of_time, missing
    )


class _HopelessError(Exception):
    """No other run would succeed."""


@final
class _Maker:
    """Makes runs and stores their rows. Raises `_HopelessError` when no other run would succeed."""

    def __init__(self, store: Store, run_once: RunOnce, progress: Progress | None) -> None:
        self._store = store
        self._run_once = run_once
        self._progress = progress
        self._failure, self._alike = "", 0
        self.tried: set[tuple[str, int]] = set()
        maker: object = run_once
        self._announced = maker if isinstance(maker, Announced) else None
        self._together = 1 if self._announced is None else _TOGETHER
        self.made = 0

    def together(self, spec: RunSpec) -> int:
        """How many runs of this length to make at once: Ctrl-C loses those that are not finished."""
        length_s = _TOGETHER_S if spec.seconds is None else spec.seconds
        return max(1, min(self._together, int(_TOGETHER_S / length_s)))

    def __call__(self, runs: Sequence[PlannedRun]) -> None:
        if self._announced is not None:
            self._announced.announce([run.spec for run in runs])
        for run in runs:
            if self._progress is not None:
                self._progress.begin(run)
            self.tried.add(run.key)
            row, is_hopeless, latencies = _measure(run, self._run_once, utc_text())
            self._keep(run, row, latencies)
            failure = str(row["error"] or "")
            self._alike = self._alike + 1 if failure and failure == self._failure else 1
            self._failure = failure
            if is_hopeless or (failure and self._alike == _ALIKE):
                raise _HopelessError(failure)

    def _keep(self, run: PlannedRun, row: Row, latencies: dict[str, Any] | None) -> None:
        if latencies:
            name = f"{run.spec.run_id}-{run.repeat}"
            self._store.write_histogram(name, Histogram.from_dict(latencies).hgrm())
        self._store.append(row)
        self.made += 1
        if self._progress is not None:
            self._progress.end(run, row)


def _batches(runs: Sequence[PlannedRun], count: int) -> Iterator[Sequence[PlannedRun]]:
    return (runs[start : start + count] for start in range(0, len(runs), count))


def open_answer(store: Store) -> Answer | None:
    """The answer whose question is open; None where there is none, or all are decided."""
    decisions = decide(Analysis(store.rows()), Goal()).values()
    return next((each for decision in decisions if (each := decision.contested) is not None), None)


def _finished(store: Store) -> set[tuple[str, int]]:
    return {(str(row.get("run_id")), int(row.get("repeat") or 0)) for row in store.rows() if succeeded(row)}


def check_stored(store: Store) -> None:
    """Builds the report of the rows that are stored already, so that a row that is none fails before a measurement."""
    rows = store.rows()
    if rows:
        arrow_table(rows)
        build_combined_report([Sweep(str(store.folder), rows, read_sweep(store.folder))])


def write_combined_report(path: Path, sweeps: Mapping[Path, Sequence[Row]]) -> Path:
    """Writes one page of several results folders, whose order decides their letters.

    Raises:
        StoreError: it could not be written.
    """
    page = build_combined_report([Sweep(str(folder), rows, read_sweep(folder)) for folder, rows in sweeps.items()])
    content = page.encode(errors="backslashreplace")  # names of files need not be UTF-8
    return write_file(path.parent, path.name, lambda aside: aside.write_bytes(content))


def _measure(run: PlannedRun, run_once: RunOnce, started_at: str) -> tuple[Row, bool, dict[str, Any] | None]:
    head: Row = {
        "run_id": run.spec.run_id,
        "repeat": run.repeat,
        "order": run.order,
        "kind": run.kind,
        "started_at": started_at,
        "error": None,
    }
    try:
        document = dict(run_once(run.spec))
    except StoreError:
        raise
    except (NetstackError, OSError, ExceptionGroup) as error:
        failure = expected_failure(error)
        facts = {"engine_kind": run.spec.ENGINE_KIND, "settings": run.spec.as_dict()}
        row = {**head, **flatten(facts), "error": describe(failure), "delivered": False}
        return row, isinstance(failure, PlaceUnusable), None
    latencies = document.pop("latency_histogram", None)  # stored in a file of its own
    row = {**head, **{name: _finite(value) for name, value in flatten(document).items()}}
    if row.get("delivered") is not True:
        row["error"] = _undelivered(row.get("warnings") or ())
    elif row.get("records") == 0:
        row["error"] = "no record was sent during the run: the machine was stalled; measure again"
    return row, False, latencies


def succeeded(row: Mapping[str, Any]) -> bool:
    """Whether a row's run ended without error and delivered everything."""
    return not row.get("error") and row.get("delivered") is True


def expected_failure(error: BaseException) -> BaseException:
    """The first failure inside nested groups, if all are errors of netstack or of the system.

    Raises:
        BaseException: `error` itself, if the group contains a programming error.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    if error.split((NetstackError, OSError))[1] is not None:
        raise error
    return expected_failure(error.exceptions[0])


def describe(error: BaseException) -> str:
    """One line with the kind and text of an error."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _undelivered(warnings: Sequence[str]) -> str:
    problems = [text.removeprefix("delivery: ") for text in warnings if text.startswith("delivery: ")]
    if not problems:
        return "not delivered: count, order or checksum differ between the two ends"
    return f"not delivered: {problems[0]}" + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def utc_text() -> str:
    """The current time as ISO 8601 with seconds, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
