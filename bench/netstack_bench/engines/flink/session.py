"""One warm JVM that runs one cell after the other, and the word count of `goals`.

Takes: `FlinkSpec`s, folders of text. Gives: the document of each run, with Flink's metrics under our names where they
mean the same; the counts of words.

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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from netstack.base.errors import ConfigError
from netstack.base.host import congestion_control
from netstack.base.scratch import scratch_folder
from netstack.exchange.wire.flink_layout import BUFFER

from ...arrivals import paced_window
from ...checkpoints.figures import Completed, times
from ...document import document, pace_warnings, timeout_warnings
from ...histogram import Histogram
from ...places.conversation import MeasurementFailed, RunState
from ...rows import RowSource
from ...spec import DEFAULT_SECONDS, MIN_RECORD_BYTES, RunSpec
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
        self._process: subprocess.Popen[bytes] | None = None
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        self._scratch = contextlib.ExitStack()
        self._folder = ""
        self._pending = b""
        self._is_warm = self._has_counted = False

    def __enter__(self) -> Self:
        """Starts the JVM."""
        try:
            scratch = self._folder = self._scratch.enter_context(scratch_folder())
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
            ConfigError: Flink has no such setting, or the rows of `--input` cannot be read or are too short.
        """
        if not self._is_warm:
            for each in WARM_UP:
                self._ask_cell(FlinkSpec.of(each), None, {})
            self._is_warm = True
        asked = FlinkSpec.of(spec)
        source = None if asked.input_path is None else RowSource.of(asked)
        if asked.seconds is None and asked.records is None and source is not None:
            asked = FlinkSpec(**{**asked.as_dict(), "records": source.rows})
        if asked.seconds is None and asked.records is None:
            asked = FlinkSpec(**{**asked.as_dict(), "seconds": DEFAULT_SECONDS})
        if source is None:
            return document_of(asked, self._ask_cell(asked, on_progress, {}))
        check_rows(source)
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix="rows-") as file:
            file.write(pairs_of(source))
            file.flush()
            answer = self._ask_cell(asked, on_progress, {"rows_file": file.name})
        return document_of(asked, answer, source.payload_bytes(answer["received"]))

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

    def _ask_cell(
        self, spec: FlinkSpec, on_progress: Callable[[RunState], None] | None, more: Mapping[str, Any]
    ) -> dict[str, Any]:
        def report(elapsed_s: float) -> None:
            if on_progress is not None:
                part = min(1.0, elapsed_s / (spec.START_S + spec.seconds)) if spec.seconds else None
                on_progress(RunState("flink", "running", 0, elapsed_s, part))

        return self._ask({**spec.line(), **more}, _SETUP_S + 3 * (spec.seconds or 60), report)

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


SOURCE: Final = "cell-source"
SINK: Final = "cell-sink"
_EVENTS_A_CHANNEL: Final = 2  # EndOfData and EndOfPartition, which Flink counts as buffers

_MEANS: Final = {
    SOURCE: {
        "outPoolUsage": "netstack_output_pool_usage_ratio",
        "outputQueueLength": "netstack_output_queue_buffers",
        "outputQueueSize": "netstack_output_queue_bytes",
    },
    SINK: {
        "inPoolUsage": "netstack_input_pool_usage_ratio",
        "inputExclusiveBuffersUsage": "netstack_input_exclusive_usage_ratio",
        "inputFloatingBuffersUsage": "netstack_input_floating_usage_ratio",
        "inputQueueLength": "netstack_input_queue_buffers",
        "inputQueueSize": "netstack_input_queue_bytes",
        "debloatedBufferSize": "netstack_input_debloated_buffer_bytes",
    },
}
"""Gauges, on average over the run; those of sinks that are no sizes of queues are averages over the sinks too."""

_SUMS: Final = ("inputQueueLength", "inputQueueSize")
_TIMES: Final = {
    SOURCE: {
        "softBackPressuredTimeMsPerSecond": "netstack_output_soft_backpressured_ms_per_second",
        "hardBackPressuredTimeMsPerSecond": "netstack_output_hard_backpressured_ms_per_second",
    },
    SINK: {
        "accumulateIdleTimeMs": "netstack_input_idle_ms_per_second",
        "accumulateBusyTimeMs": "netstack_input_busy_ms_per_second",
    },
}
_COUNTS: Final = {
    SOURCE: {
        "numBuffersOut": "netstack_output_buffers_total",
        "numBytesOut": "netstack_output_bytes_total",
    },
    SINK: {
        "numBuffersInRemote": "netstack_input_remote_buffers_total",
        "numBuffersInLocal": "netstack_input_local_buffers_total",
        "numBytesInRemote": "netstack_input_remote_bytes_total",
        "numBytesInLocal": "netstack_input_local_bytes_total",
    },
}


def check_rows(source: RowSource) -> None:
    """Raises ConfigError if a row is too short for a record of Flink's, which begins with its index."""
    shortest = min(source.sizes)
    if shortest < MIN_RECORD_BYTES:
        raise ConfigError(
            f"--input with --peer flink: a row has {shortest} bytes, and the peer's records begin with an index of"
            f" {MIN_RECORD_BYTES}; give longer rows, or leave --peer flink out"
        )


def pairs_of(source: RowSource) -> bytes:
    """Size and sink of every row, as `Rows.java` reads them; -1 if records go to one sink after the other."""
    pairs = np.full((source.rows, 2), -1, dtype="<i4")
    pairs[:, 0] = source.sizes
    if source.lanes is not None:
        pairs[:, 1] = source.lanes
    return pairs.tobytes()


def document_of(spec: FlinkSpec, answer: Mapping[str, Any], payload_bytes: int | None = None) -> dict[str, Any]:
    """The document of one run.

    Args:
        spec: what was asked.
        payload_bytes: of all records that arrived; None: all have the size of the settings.
        answer: times in nanoseconds of CLOCK_MONOTONIC, counts, latencies in our buckets, and each side's metrics.
    """
    records, seconds = _window(spec, answer)
    latency = Histogram.from_dict(answer["latency"]) if answer["latency"]["counts"] else Histogram()
    metrics = metrics_of(spec.channels, answer["sides"])
    producer, consumer = metrics["producer"], metrics["consumer"]
    buffers = producer.get("netstack_output_buffers_total")
    problems = [*answer["problems"]]
    if answer["sent"] != answer["received"]:
        problems.append(f"{answer['sent']} records were sent, {answer['received']} arrived")
    sent_s = (answer["stopped_ns"] - answer["start_ns"]) / 1e9
    return document(
        spec,
        engine="flink",
        records=answer["received"],
        seconds=seconds,
        records_per_s=records / seconds if seconds > 0 else 0.0,
        payload_bytes=answer["received"] * spec.record_bytes if payload_bytes is None else payload_bytes,
        wire_bytes=_wire_bytes(consumer),
        latency=latency,
        cpu_s={"producer": None, "consumer": None, "total": answer["cpu_s"]},
        problems=problems,
        warnings=[*pace_warnings(spec, True, answer["sent"], sent_s), *timeout_warnings(spec, sent_s)],
        engine_kind=spec.ENGINE_KIND,
        verified="count",
        memory_bytes={},
        buffers=None if buffers is None else round(buffers),
        credits=None,
        congestion_control=congestion_control(),
        records_per_buffer=_records_per_buffer(answer),
        average_buffer_fill=(
            producer["netstack_output_bytes_total"] / buffers / spec.segment_size_bytes if buffers else None
        ),
        debloated_buffer_bytes=_whole(answer["sides"][SINK]["after"].get("debloatedBufferSize"), spec.channels),
        backpressured_ms_per_s={
            kind: producer.get(f"netstack_output_{kind}_backpressured_ms_per_second") for kind in ("soft", "hard")
        },
        idle_ms_per_s=consumer["netstack_input_idle_ms_per_second"],
        checkpoints=_checkpoints(spec, answer["checkpoints"]),
        metrics=metrics,
        timeline=None,
        costs=None,
    )


def _wire_bytes(consumer: Mapping[str, float]) -> int:
    """The bytes of all buffers with their headers; Flink's metric counts the bytes in them."""
    buffers = consumer["netstack_input_remote_buffers_total"]
    return round(consumer["netstack_input_remote_bytes_total"] + buffers * BUFFER.size)


def metrics_of(sinks: int, sides: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Flink's metrics of both sides, named as ours."""
    by_role: dict[str, dict[str, float]] = {"producer": {}, "consumer": {}}
    elapsed_s = sides["seconds"]
    for side, role in ((SOURCE, "producer"), (SINK, "consumer")):
        samples, metrics = sides[side], by_role[role]
        for flinks, ours in _MEANS[side].items():
            if flinks in samples["mean"]:
                parts = 1 if side == SOURCE or flinks in _SUMS else sinks
                metrics[ours] = samples["mean"][flinks] / parts
        for flinks, ours in _TIMES[side].items():
            if flinks in samples["after"]:
                spent_ms = samples["after"][flinks] - samples["before"].get(flinks, 0.0)
                a_second = spent_ms / elapsed_s / (1 if side == SOURCE else sinks)
                metrics[ours] = min(max(a_second, 0.0), 1000.0)  # Flink corrects its times afterwards
        for flinks, ours in _COUNTS[side].items():
            if flinks in samples["final"]:
                metrics[ours] = samples["final"][flinks]
    producer, consumer = by_role["producer"], by_role["consumer"]
    producer["netstack_output_backpressured_ms_per_second"] = sum(
        producer.get(f"netstack_output_{kind}_backpressured_ms_per_second", 0.0) for kind in ("soft", "hard")
    )
    buffers = consumer["netstack_input_remote_buffers_total"] - _EVENTS_A_CHANNEL * sinks
    consumer["netstack_input_remote_buffers_total"] = max(0.0, buffers)
    return by_role


def _checkpoints(spec: FlinkSpec, checkpoints: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures that `netstack_bench.cell_checkpoints` has of ours; Flink counts in whole milliseconds."""
    if spec.checkpoints == "none":
        return {}
    seen = [
        Completed(
            duration_s=each["duration_ms"] / 1e3,
            start_delay_s=each["start_delay_ms"] / 1e3,
            alignment_s=each["alignment_ms"] / 1e3,
            write_s=each["write_ms"] / 1e3,
            channel_state_bytes=each["channel_state_bytes"],
        )
        for each in checkpoints
        if each["complete"]
    ]
    return {"complete": len(seen), "aborted": len(checkpoints) - len(seen), **times(seen)}


def _window(spec: FlinkSpec, answer: Mapping[str, Any]) -> tuple[int, float]:
    """Records and seconds: of a paced run all of it, else from the warm-up to the source's stop."""
    start_ns, stopped_ns, received = answer["start_ns"], answer["stopped_ns"], answer["received"]
    if spec.rate_per_s is not None:
        window = paced_window(spec.rate_per_s, received, start_ns, stopped_ns, answer["last_ns"])
        return window["records"], window["seconds"]
    from_ns = start_ns + spec.effective_warmup_s * 1e9
    inside: Sequence[Sequence[int]] = [each for each in answer["arrivals"] if from_ns <= each[0] <= stopped_ns]
    if len(inside) < 2:
        return received, (answer["last_ns"] - start_ns) / 1e9
    return inside[-1][1] - inside[0][1], (inside[-1][0] - inside[0][0]) / 1e9


def _records_per_buffer(answer: Mapping[str, Any]) -> float | None:
    """While the source emitted: its end sends what is left in parts."""
    buffers = answer["sides"][SINK]["after"].get("numBuffersInRemote")
    received = answer["arrivals"][-1][1] if answer["arrivals"] else 0
    return received / buffers if buffers and received else None


def _whole(total: float | None, parts: int) -> int | None:
    return None if total is None else round(total / parts)
