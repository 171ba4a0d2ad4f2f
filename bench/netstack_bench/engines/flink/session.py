"""One warm JVM that runs one cell after the other, and the word count of `goals`.

Takes: `FlinkSpec`s, folders of text. Gives: the document of each run, the counts of words.

Rules: the JVM is in a session of its own, so that Ctrl-C reaches only this process, which then ends it; it ends by
itself when its standard input ends. Its files are in a folder that is removed with it. It is warmed up before the first
cell that counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from netstack.base.scratch import scratch_folder

from ...places.conversation import RunState
from ...places.local.processes import MeasurementFailed
from ...spec import DEFAULT_SECONDS, RunSpec
from .document import document_of
from .jar import java_command
from .spec import FlinkSpec

WARM_UP: Final = (
    RunSpec(seconds=2),
    RunSpec(record_bytes=1024, seconds=1.5),
    RunSpec(rate_per_s=1000, seconds=1, buffer_timeout_s=0.01),
)
"""Cells that run first, so that the JVM has compiled its hot code before a cell counts."""

WARM_UP_S: Final = 9.0
"""About how long starting and warming up takes."""

_WORD_COUNT_WARM_UPS: Final = 3
_SETUP_S: Final = 150.0
_LOOK_S: Final = 0.25
_QUOTED_LINES: Final = 12


class FlinkSession:
    """A JVM with a Flink, for the length of a `with` block.

    Raises:
        MissingExtra: Java, Flink's jars or a compiler for ours is missing; on entry.
    """

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        self._scratch = contextlib.ExitStack()
        self._pending = b""
        self._is_warm = self._has_counted = False

    def __enter__(self) -> Self:
        """Starts the JVM."""
        try:
            scratch = self._scratch.enter_context(scratch_folder())
            self._process = subprocess.Popen(
                [*java_command(scratch=scratch), "netstack.peer.Peer"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                start_new_session=True,
            )
        except BaseException:
            self._words.close()
            self._scratch.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends the JVM and waits until it is gone."""
        process = self._process
        assert process is not None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        process.wait()
        self._words.close()
        self._scratch.close()

    def run_once(self, spec: RunSpec, on_progress: Callable[[RunState], None] | None = None) -> dict[str, Any]:
        """Runs one cell.

        Raises:
            MeasurementFailed: the JVM died or fell silent, or the job failed.
            ConfigError: Flink has no such setting.
        """
        if not self._is_warm:
            for each in WARM_UP:
                self._ask_cell(FlinkSpec.of(each), None)
            self._is_warm = True
        asked = FlinkSpec.of(spec)
        if asked.seconds is None and asked.records is None:
            asked = FlinkSpec(**{**asked.as_dict(), "seconds": DEFAULT_SECONDS})
        return document_of(asked, self._ask_cell(asked, on_progress))

    def count_words(self, folder: Path, parallelism: int) -> tuple[dict[str, int], float]:
        """Counts the words of all files in a folder; before its first report the JVM counts them three times.

        Returns:
            The counts, and the seconds from the job's submission to its end.

        Raises:
            MeasurementFailed: the JVM died or fell silent, or the job failed.
        """
        line = {"count_words": str(folder), "parallelism": parallelism}
        for _ in range(0 if self._has_counted else _WORD_COUNT_WARM_UPS):
            self._ask(line, _SETUP_S, None)
        self._has_counted = True
        answer = self._ask(line, _SETUP_S, None)
        return answer["counts"], answer["seconds"]

    def _ask_cell(self, spec: FlinkSpec, on_progress: Callable[[RunState], None] | None) -> dict[str, Any]:
        def report(elapsed_s: float) -> None:
            if on_progress is not None:
                part = min(1.0, elapsed_s / (spec.START_S + spec.seconds)) if spec.seconds else None
                on_progress(RunState("flink", "running", 0, elapsed_s, part))

        return self._ask(spec.line(), _SETUP_S + 3 * (spec.seconds or 60), report)

    def _ask(self, line: Mapping[str, Any], limit_s: float, report: Callable[[float], None] | None) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(line).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            raise MeasurementFailed(f"Flink's JVM has ended{self._quote()}") from None
        answer: dict[str, Any] = json.loads(self._line(limit_s, report))
        if "error" in answer:
            raise MeasurementFailed(f"Flink: {answer['error']}{self._quote()}")
        return answer

    def _line(self, limit_s: float, report: Callable[[float], None] | None) -> bytes:
        """The next line of its standard output."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        began = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                elapsed_s = time.monotonic() - began
                if elapsed_s > limit_s:
                    raise MeasurementFailed(f"Flink sent nothing for {limit_s:.0f} s{self._quote()}")
                if report is not None:
                    report(elapsed_s)
                if selector.select(_LOOK_S):
                    chunk = os.read(process.stdout.fileno(), 1 << 16)
                    if not chunk:
                        raise MeasurementFailed(f"Flink's JVM has ended{self._quote()}")
                    self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _quote(self) -> str:
        """The last lines of its standard error, for an error message."""
        self._words.seek(0)
        words = self._words.read().decode(errors="replace").splitlines()
        return "".join(f"\n    {line}" for line in words[-_QUOTED_LINES:])
