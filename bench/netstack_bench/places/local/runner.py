"""Runs one measurement: two worker processes, one start time, one document; optionally interleaved with peers.

A worker that dies, sends nothing or makes no progress ends the measurement with an error that quotes its last words.
Both workers are always killed and reaped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from netstack.base.scratch import scratch_folder

from ...arrivals import paced_window
from ...document import connection_warnings, document, pace_warnings, timeout_warnings, with_calls_per_gb
from ...emulation import emulation_cells
from ...endpoints import prepare
from ...engines import load_engine, peer_spec, uses_timeout
from ...histogram import Histogram
from ...host import busy_warnings, host_facts
from ...spec import DEFAULT_SECONDS, RunSpec
from ...stopping import kept_at_interrupt
from ...store import flatten
from ...sweep import median_result
from ..conversation import OnProgress, fraction_of, stalled_s
from .processes import PhaseLimits, Summaries, Workers, lead

if TYPE_CHECKING:
    from ...engines.flink import FlinkSession

OURS: Final = "netstack"
_COMPARED: Final = (
    "records_per_s",
    "payload_mb_per_s",
    "wire_mb_per_s",
    "latency_us",
    "cpu_s_per_gb",
)


def run_once(
    spec: RunSpec,
    *,
    engine: str = OURS,
    on_progress: OnProgress | None = None,
    deadlines: PhaseLimits | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Measures netstack or a peer once and returns the result as JSON values (METHOD.md describes each key).

    A run without a length lasts 3 s, or as long as the input's rows. `on_progress` is called a few times a second.
    `environment` has additional environment variables of both processes, such as NETSTACK_PURE.

    Raises:
        MeasurementFailed: a worker died, sent nothing or stalled.
        NetstackError: a worker reported an error: an input file, a setting, a missing package.
    """
    run = with_length(peer_spec(engine, spec))
    limits = deadlines or PhaseLimits()
    with scratch_folder() as scratch, Workers(engine, limits, environment=environment) as workers:
        prepare(run, Path(scratch))
        summaries = lead(
            workers,
            Path(scratch),
            spec=run.as_dict(),
            stalled_s=stalled_s(run, limits.stalled_s),
            reads_input=run.input_path is not None,
            fraction=partial(fraction_of, run),
            on_progress=on_progress,
        )
    return _result(run, engine, summaries)


def run_with_peers(
    spec: RunSpec,
    peers: Sequence[str],
    repeats: int,
    *,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Measures netstack and its peers in turn (A B A B ...), so that drift of the machine affects all alike.

    Returns netstack's medians (`netstack_bench.sweep.median_result`), with `peer` (the same of the peer, by name if
    there are several) and `ratio` (netstack's figure divided by the peer's; also within each peer's row). Ctrl-C keeps
    the turns that are complete; `repeats` is their number. Errors are those of `run_once`.
    """
    for peer in peers:
        peer_spec(peer, spec)  # raises if the peer does not support the settings
        if peer != "flink":
            load_engine(peer)  # raises if its package is missing
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in (OURS, *peers)}
    with contextlib.ExitStack() as stack:
        flink = stack.enter_context(_flink_session()) if "flink" in peers else None
        with kept_at_interrupt(lambda: bool(results[OURS])):
            for _ in range(repeats):
                turn: dict[str, dict[str, Any]] = {}
                for name in results:
                    if name == "flink" and flink is not None:
                        turn[name] = flink.run_once(spec, on_progress)
                    else:
                        turn[name] = run_once(spec, engine=name, on_progress=on_progress)
                for name, measured in turn.items():
                    results[name].append(measured)
    row = median_result(results[OURS])
    if flink is not None:
        cells = emulation_cells(flatten(run) for name in (OURS, "flink") for run in results[name])
        row["emulation"] = [cell.as_dict() for cell in cells]
    rows = {peer: median_result(results[peer]) for peer in peers}
    for peer_row in rows.values():
        peer_row["ratio"] = ratios(row, peer_row)
    if len(peers) == 1:
        row["peer"], row["ratio"] = rows[peers[0]], rows[peers[0]]["ratio"]
    else:
        row["peer"], row["ratio"] = rows, {peer: peer_row["ratio"] for peer, peer_row in rows.items()}
    return row


def _flink_session() -> FlinkSession:
    from ...engines.flink import FlinkSession

    return FlinkSession()


def with_length(spec: RunSpec) -> RunSpec:
    """The settings with the default length if none is given and there is no input file."""
    if spec.records is None and spec.seconds is None and spec.input_path is None:
        return RunSpec.from_dict({**spec.as_dict(), "seconds": DEFAULT_SECONDS})
    return spec


def ratios(row: dict[str, Any], peer: dict[str, Any]) -> dict[str, Any]:
    """Every compared figure of `row` divided by the peer's; None where either has none."""
    quotients: dict[str, Any] = {}
    for key in _COMPARED:
        if isinstance(row[key], dict):
            quotients[key] = {name: _ratio(value, peer[key].get(name)) for name, value in row[key].items()}
        else:
            quotients[key] = _ratio(row[key], peer[key])
    return quotients


def _result(spec: RunSpec, engine: str, summaries: Summaries) -> dict[str, Any]:
    producer, consumer, start_ns = summaries.producer, summaries.consumer, summaries.start_ns
    window, records = consumer["window"], consumer["records"]
    if spec.rate_per_s is not None:
        window = paced_window(spec.rate_per_s, records, start_ns, producer["stopped_ns"], consumer["last_ns"])
    seconds = window["seconds"]
    sent_s = (producer["stopped_ns"] - start_ns) / 1e9
    congestion_control = _either(producer, consumer, "congestion_control")
    metrics = {"producer": producer["facts"]["metrics"], "consumer": consumer["facts"]["metrics"]}
    timeline = _timeline(producer, consumer)
    return document(
        spec,
        engine=engine,
        records=records,
        seconds=seconds,
        records_per_s=window["records"] / seconds if seconds > 0 else 0.0,
        payload_bytes=consumer["payload_bytes"],
        wire_bytes=_either(producer, consumer, "wire_bytes"),
        latency=Histogram.from_dict(consumer["latency"]),
        cpu_s={"producer": producer["cpu_s"], "consumer": consumer["cpu_s"]},
        problems=consumer["problems"],
        warnings=[
            *pace_warnings(spec, window["steady"], producer["expected"]["records"], sent_s),
            *(timeout_warnings(spec, sent_s) if uses_timeout(engine) else ()),
            *connection_warnings(spec, congestion_control),
            *busy_warnings(timeline),
            *producer["facts"]["warnings"],
            *consumer["facts"]["warnings"],
            *summaries.remarks,
        ],
        netstack_build=consumer["netstack_build"],
        verified=consumer["verified"],
        memory_bytes={"producer": producer["memory_bytes"], "consumer": consumer["memory_bytes"]},
        buffers=_either(producer, consumer, "buffers"),
        credits=_either(consumer, producer, "credits"),
        congestion_control=congestion_control,
        average_buffer_fill=_either(producer, consumer, "average_buffer_fill"),
        debloated_buffer_bytes=_either(consumer, producer, "debloated_buffer_bytes"),
        backpressured_ms_per_s={
            kind: _metric(metrics["producer"], f"netstack_output_{kind}_backpressured_ms_per_second")
            for kind in ("soft", "hard")
        },
        idle_ms_per_s=_metric(metrics["consumer"], "netstack_input_idle_ms_per_second"),
        checkpoints=producer["facts"]["checkpoints"],
        metrics=metrics,
        timeline=timeline,
        costs=with_calls_per_gb(
            [*(producer["facts"]["costs"] or ()), *(consumer["facts"]["costs"] or ())], consumer["payload_bytes"]
        )
        or None,
    )


def _timeline(producer: dict[str, Any], consumer: dict[str, Any]) -> list[dict[str, Any]] | None:
    host = host_facts()["name"]
    samples = [
        {"host": host, "task": task, **sample}
        for task, summary in (("producer", producer), ("consumer", consumer))
        for sample in summary["facts"]["timeline"] or ()
    ]
    return sorted(samples, key=lambda sample: float(sample["t_s"])) or None


def _either(first: dict[str, Any], second: dict[str, Any], name: str) -> Any:
    value = first["facts"][name]
    return second["facts"][name] if value is None else value


def _metric(metrics: dict[str, float] | None, name: str) -> float | None:
    return None if metrics is None else metrics[name]


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None
