"""Measures idle logical channels in two passes: time and CPU, then memory."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from ..experiment import with_facts
from ..pair import OnProgress, Summaries, run_pair
from ..processes import MeasurementFailed, PhaseLimits
from .spec import ChannelsSpec

PASSES: Final = 2

_WORKER: Final = "netstack.bench.channels.worker"
_OPEN_S: Final = 1.0
_TRACED_IDLE_S: Final = 0.1
_STALLED_S: Final = 60.0  # opening the maximum of channels takes several seconds while memory is traced


def expected_s(spec: ChannelsSpec) -> float:
    """Expected length of both passes."""
    return PASSES * 2 * _OPEN_S + spec.idle_seconds


def measure(
    spec: ChannelsSpec,
    *,
    on_progress: OnProgress | None = None,
    deadlines: PhaseLimits | None = None,
) -> dict[str, Any]:
    """Runs both passes and returns the document of the command (`bench/METHOD.md` describes each key).

    Memory is traced in a pass of its own, because that slows everything else down.

    Raises:
        MeasurementFailed: a worker died, sent nothing or stalled, or not all channels were open.
        NetstackError: a worker reported an error.
    """
    patience = deadlines or PhaseLimits(stalled_s=_STALLED_S + spec.idle_seconds)

    def run(spec: ChannelsSpec, *, traced: bool) -> Summaries:
        settings = {"spec": spec.as_dict(), "traced": traced}
        name = f"{spec.channels} channels"
        expected = _OPEN_S + spec.idle_seconds
        return run_pair(_WORKER, name, settings, deadlines=patience, expected_s=expected, on_progress=on_progress)

    timed = run(spec, traced=False)
    traced = run(dataclasses.replace(spec, idle_seconds=_TRACED_IDLE_S), traced=True)
    return document(spec, timed, traced)


def document(spec: ChannelsSpec, timed: Summaries, traced: Summaries) -> dict[str, Any]:
    """The document, from the summaries of both passes; raises MeasurementFailed if not all channels were open."""
    for passed in (timed, traced):
        connections, channels = passed.producer["connections"], passed.producer["open_channels"]
        if (connections, channels) != (1, spec.channels):
            raise MeasurementFailed(
                f"{spec.channels} channels should be open on one connection, but there were {channels} on {connections}"
            )
    problems = [f"delivery: {text}" for passed in (timed, traced) for text in passed.consumer["problems"]]
    figures = {
        "channels": spec.channels,
        "open_s": timed.consumer["open_s"],
        "bytes_per_idle_channel": {
            "producer": traced.producer["grown_bytes"] / spec.channels,
            "consumer": traced.consumer["grown_bytes"] / spec.channels,
        },
        "idle_cpu_ms_per_s": {
            "producer": timed.producer["idle_cpu_ms_per_s"],
            "consumer": timed.consumer["idle_cpu_ms_per_s"],
        },
        "delivered": not problems,
        "connections": 1,
        "warnings": [*problems, *timed.remarks, *traced.remarks],
    }
    return with_facts(spec, figures)
