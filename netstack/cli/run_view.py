"""A live view of one job on a terminal: tasks by state, records per second, checkpoints.

Takes: documents of a job, and the time. Gives: a view on standard error; nothing if that is no terminal. The last view
of a job that has finished stays on the screen.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ..cluster.jobmanager.client import Document
from .job_output import state_text, vertices_table

_WINDOW_S: Final = 3.0


@final
class RunView:
    """A live view of one job; a context manager.

    Args:
        console: console to write to; standard error if not given.
    """

    def __init__(self, name: str, console: Console | None = None) -> None:
        self._name = name
        self._console = console or Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._began_s: float | None = None
        self._counts: deque[tuple[float, dict[str, tuple[int, int]]]] = deque()
        if self._console.is_terminal:
            self._live = Live(Text(f"{name}: starting"), console=self._console, transient=True, auto_refresh=False)

    def __enter__(self) -> RunView:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def is_shown(self) -> bool:
        """Whether the console is a terminal."""
        return self._live is not None

    def print(self, line: str) -> None:
        """Prints a line above the view."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, job: Document, now_s: float) -> None:
        """Redraws the view from the job's document."""
        if self._live is not None:
            self._live.transient = job["state"] != "finished"
            self._live.update(self.rendered(job, now_s), refresh=True)

    def rendered(self, job: Document, now_s: float) -> RenderableType:
        """Renders a job's document, with rates over the last three seconds."""
        self._began_s = now_s if self._began_s is None else self._began_s
        counts = {each["name"]: (each["records_in"], each["records_out"]) for each in job["vertices"]}
        self._counts.append((now_s, counts))
        while len(self._counts) > 2 and self._counts[0][0] < now_s - _WINDOW_S:
            self._counts.popleft()
        head = Text.assemble(
            (self._name, "bold"),
            "  ",
            state_text(job["state"]),
            f"  {now_s - self._began_s:.0f} s",
            f"  checkpoints {job['checkpoints_completed']}" if job["checkpoints_completed"] else "",
            (f"  restarts {job['restarts']}", "yellow") if job["restarts"] else "",
        )
        lines: list[RenderableType] = [head]
        if job["waits_for"]:
            lines.append(Text(f"waits for {job['waits_for']}", style="yellow"))
        lines.append(vertices_table(job["vertices"], self._rates(now_s, counts), places=False))
        return Group(*lines)

    def _rates(self, now_s: float, counts: dict[str, tuple[int, int]]) -> dict[str, tuple[float, float]]:
        before_s, before = self._counts[0]
        if now_s <= before_s:
            return {}
        rates = {}
        for name, (came, went) in counts.items():
            came_before, went_before = before.get(name, (0, 0))
            # After a restart the counters begin at 0.
            rates[name] = (
                max(0, came - came_before) / (now_s - before_s),
                max(0, went - went_before) / (now_s - before_s),
            )
        return rates
