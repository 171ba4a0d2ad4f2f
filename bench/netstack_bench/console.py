"""Terminal output: comparisons, warnings, and progress bars with the remaining time.

Bars are drawn only if standard error is a terminal, so that logs contain no control characters.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, ProgressColumn, Task, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from netstack.base.units import format_count, format_latency, three_digits
from netstack.cli.json_document import print_document

from .compare import Comparison, Difference
from .decision.experiment import Budget
from .grid import PlannedRun, expected_seconds
from .places import conversation
from .store import Row

_LINE_S = 10.0  # between two lines of progress without a terminal
_LEAST_PART = 0.03  # of the work; earlier estimates of the rest are useless
_MANY_REASONS = 3
_MANY_FIGURES = 24  # more are listed only where they differ


def out() -> Console:
    """Standard output; lines are not wrapped at 80 columns in a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


def err() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False)


class _Bar:
    _bar: Progress

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._bar.disable:  # older versions of rich print a line end for a bar that was never shown
            self._bar.stop()

    @staticmethod
    def _drawn(console: Console, *columns: ProgressColumn) -> Progress:
        is_hidden = not console.is_terminal
        return Progress(*columns, console=console, disable=is_hidden, transient=True, redirect_stdout=False)


class SweepBar(_Bar):
    """The progress of a sweep: a bar on a terminal, else a line every ten seconds.

    It moves with the clock, corrected by how long earlier runs took; with a budget by what is left of it.
    """

    def __init__(self, runs: Sequence[PlannedRun], console: Console, budget: Budget | None = None) -> None:
        self._budget = budget
        self._ended = threading.Event()
        self._what = ""
        self._thread: threading.Thread | None = None
        self._opened_s = time.monotonic()
        self._left_s = expected_seconds(runs)
        self._total_s = self._left_s
        self._count = len(runs)
        self._done = 0
        self._expected_s = 0.0
        self._spent_s = 0.0
        self._began: float | None = None
        self._run_s = 0.0
        self._failed = 0
        self._bar = self._drawn(
            console,
            TextColumn("[bold]{task.fields[place]}"),
            _LiveBar(self.part),
            _LiveText(self.time_left),
            TextColumn("{task.description}"),
        )
        self._task = self._bar.add_task("", total=1.0, place=f"0/{self._count}")

    def __enter__(self) -> Self:
        """Starts the bar, or the lines."""
        super().__enter__()
        if self._bar.disable and self._count:
            self._thread = threading.Thread(target=self._print_lines, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends them."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        super().__exit__(*exc_info)

    def _print_lines(self) -> None:
        while not self._ended.wait(_LINE_S):
            count = f"{self._done} of {self._count} runs" if self._done < self._count else f"{self._done} runs"
            self._bar.console.print(f"{count}, {self.time_left()}: {escape(self._what)}", soft_wrap=True)

    def prepare(self, what: str, expected_s: float) -> None:
        """Starts a preparation that takes about this long."""
        self._what = what
        self._began, self._run_s = time.monotonic(), expected_s
        self._left_s += expected_s
        self._total_s += expected_s
        self._bar.update(self._task, description=escape(what))

    def prepared(self) -> None:
        """Ends the preparation."""
        self._left_s -= self._run_s
        self._began = None

    def begin(self, run: PlannedRun) -> None:
        """A run starts."""
        self._what = str(run)
        if self._done == self._count:  # beyond the first pass
            self._count += 1
            self._left_s += run.expected_s
        self._began, self._run_s = time.monotonic(), run.expected_s
        self._bar.update(self._task, description=escape(str(run)), place=f"{self._done + 1}/{self._count}")

    def end(self, run: PlannedRun, row: Row) -> None:
        """A run ended; a failure is printed at once."""
        self._spent_s += self._elapsed_s()
        self._expected_s += run.expected_s
        self._began = None
        self._left_s -= run.expected_s
        self._done += 1
        if row.get("error"):
            self._failed += 1
            self._bar.console.print(f"[red]failed:[/] {escape(str(run))}: {escape(str(row['error']))}", soft_wrap=True)

    def left_s(self) -> float:
        """Estimated seconds to the end, corrected by the lengths of the runs so far; with a budget at most."""
        if self._budget is not None and self._budget.covers_first_pass:
            return max(0.0, self._budget.ends_s - time.monotonic())
        slower = self._spent_s / self._expected_s if self._expected_s else 1.0
        running = min(self._elapsed_s(), self._run_s * slower)
        return max(0.0, self._left_s * slower - running)

    def part(self) -> float:
        """The finished part, 0 to 1."""
        if self._budget is not None and self._budget.covers_first_pass:
            return 1.0 - self.left_s() / max(1.0, self._budget.ends_s - self._opened_s)
        slower = self._spent_s / self._expected_s if self._expected_s else 1.0
        whole = self._total_s * slower
        return 1.0 - self.left_s() / whole if whole else 1.0

    def time_left(self) -> str:
        """The remaining time as text."""
        most = "at most " if self._budget is not None else ""
        return f"{most}{clock(self.left_s())} left"

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began if self._began is not None else 0.0


class RunBar(_Bar):
    """The progress bar of `run`; it is called with each `netstack_bench.places.conversation.RunState`.

    `expected_s` is the length of all measurements; None if only their records are known.
    """

    def __init__(self, runs: int, expected_s: float | None, console: Console) -> None:
        self._runs = runs
        self._expected_s = expected_s
        self._began = time.monotonic()
        self._started = 0
        self._phase = ""
        self._fraction = 0.0
        live = _LiveBar(self.part), _LiveText(self.time_left)
        self._bar = self._drawn(console, TextColumn("{task.description}"), *live)
        self._task = self._bar.add_task("starting", total=1.0)

    def __call__(self, state: conversation.RunState) -> None:
        """Updates the bar."""
        if state.phase == "starting" and self._phase != "starting":
            self._started += 1
        self._phase, self._fraction = state.phase, state.fraction or 0.0
        place = f" {self._started}/{self._runs}" if self._runs > 1 else ""
        text = state.phase if state.phase == "starting" else f"{format_count(state.records)} records"
        self._bar.update(self._task, description=escape(f"{state.engine}{place}: {text}"))

    def part(self) -> float:
        """The finished part, 0 to 1: by time if the length is known, else by records."""
        if self._expected_s:
            return min((time.monotonic() - self._began) / self._expected_s, 1.0)
        return (max(self._started - 1, 0) + self._fraction) / self._runs

    def time_left(self) -> str:
        """The remaining time as text."""
        elapsed_s = time.monotonic() - self._began
        part = self.part()
        if self._expected_s:
            return f"{clock(max(self._expected_s - elapsed_s, 0))} left"
        return f"{clock(elapsed_s * (1 - part) / part)} left" if part > _LEAST_PART else ""


class _LiveBar(ProgressColumn):
    def __init__(self, part: Callable[[], float]) -> None:
        super().__init__()
        self._part = part

    def render(self, task: Task) -> ProgressBar:
        return ProgressBar(total=1.0, completed=self._part(), width=32)


class _LiveText(ProgressColumn):
    def __init__(self, text: Callable[[], str]) -> None:
        super().__init__()
        self._text = text

    def render(self, task: Task) -> Text:
        return Text(self._text(), style="progress.remaining")


def clock(seconds: float) -> str:
    """`42 s`, `3:07`, `1:02:30`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def about(seconds: float) -> str:
    """A duration in words for the line before a sweep: `1 minute`, `40 seconds`."""
    if seconds < 50:
        return f"{max(round(seconds), 1)} seconds"
    minutes = max(round(seconds / 60), 1)
    return "1 minute" if minutes == 1 else f"{minutes} minutes"


def table(left: Sequence[str], right: Sequence[str], *, title: str | None = None) -> Table:
    """An empty table without lines: text columns, then figure columns."""
    made = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for number, head in enumerate((*left, *right)):
        made.add_column(head, justify="left" if number < len(left) else "right")
    return made


def finish(result: Mapping[str, Any], as_json: bool, show: Callable[[Mapping[str, Any], Console], None]) -> int:
    """Prints the result of an experiment, as JSON or with `show`, and its warnings; returns the exit code.

    `stopped` in the result says what ended it early.
    """
    if as_json:
        print_json(result)
    else:
        show(result, out())
    print_warnings(result, err())
    if stopped := result.get("stopped"):
        err().print(f"stopped by {stopped}: the results until then are shown")
    return 0 if result.get("delivered", True) else 1


def print_json(document: Mapping[str, Any]) -> None:
    """Prints the JSON document of a command; NaN becomes null."""
    print_document(document, indent=2, numbers_in_line=True)


def print_warnings(result: Mapping[str, Any], console: Console) -> None:
    """Prints the warnings of a run."""
    for warning in result.get("warnings") or ():
        console.print(f"[yellow]warning:[/] {escape(str(warning))}", soft_wrap=True)


def print_failures(rows: Sequence[Row], console: Console) -> None:
    """Prints why runs failed, each reason once, and on which hosts."""
    failed = [row for row in rows if row.get("error") or row.get("delivered") is not True]
    reasons = Counter(
        (str(row.get("error") or "not delivered"), ", ".join(map(str, row.get("settings_hosts") or ())))
        for row in failed
    )
    for (reason, hosts), count in reasons.most_common(_MANY_REASONS):
        of = f"all {len(rows)}" if count == len(rows) else f"{count} of {len(rows)}"
        where = f" on {escape(hosts)}" if hosts else ""
        console.print(f"[red]{of} runs failed[/]{where}: {escape(reason)}", soft_wrap=True)
    if len(reasons) > _MANY_REASONS:
        console.print(f"and {len(reasons) - _MANY_REASONS} other reasons; the report lists all", soft_wrap=True)


def print_comparison(comparison: Comparison, console: Console, *, everything: bool = False) -> None:
    """Prints the differing figures (all if they are few, or on request), a summary for each metric, and remarks."""
    listed = comparison.differences
    if not everything and len(listed) > _MANY_FIGURES:
        listed = tuple(difference for difference in listed if difference.verdict != "same")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("point", "metric"):
        table.add_column(head, overflow="fold")
    for head in ("A", "B", "change", "which is"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    styles = {"better": "green", "worse": "red", "same": "dim"}
    for difference in listed:
        table.add_row(
            escape(difference.point),
            difference.metric,
            _metric(difference, difference.a.median),
            _metric(difference, difference.b.median),
            f"{difference.change:+.1%}",
            difference.range_text(),
            difference.verdict,
            style=styles[difference.verdict],
        )
    if listed:
        console.print(table)
        console.print()
    if len(listed) < len(comparison.differences):
        console.print(
            f"{len(comparison.differences) - len(listed)} figures within the noise are not listed; --all does\n"
        )
    for line in (*comparison.summary(), *comparison.remarks):
        console.print(escape(line), soft_wrap=True)


def _metric(difference: Difference, value: float) -> str:
    if difference.metric.startswith("latency"):
        return format_latency(value)
    return format_count(value) if difference.metric == "records_per_s" else three_digits(value)
