"""Leads two worker processes through one run with a common start time: for `run`, `isolate` and `channels`.

The messages are those of `netstack_bench.places.local.worker_io`. Workers may send `ready` several times: whenever both
have sent it, both receive the same start time. The producer's summary is passed on to the consumer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from netstack.base.scratch import scratch_folder

from .processes import ROLES, PhaseLimits, Workers

LEAD_NS: Final = 30_000_000
"""Time from the go to the start, so that both workers have read the message by then."""


@dataclass(frozen=True, slots=True)
class RunState:
    """Where a measurement is.

    `phase` is `starting`, `running` or `draining` (the producer is done); `fraction` (0 to 1) is None if unknown.
    """

    engine: str
    phase: str
    records: int
    elapsed_s: float
    fraction: float | None


OnProgress: TypeAlias = Callable[[RunState], None]
Summary: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Summaries:
    """The summaries of both sides, their stderr lines (`remarks`), and the first start time."""

    producer: Summary
    consumer: Summary
    remarks: tuple[str, ...]
    start_ns: int = 0


def lead(
    workers: Workers,
    scratch: Path,
    *,
    fraction: Callable[[int, float], float | None],
    steps_per_s: float | None = None,
    reads_input: bool = False,
    on_progress: OnProgress | None = None,
    **job: Any,
) -> Summaries:
    """Leads both started workers from the job to their summaries.

    `fraction` computes the finished part, 0 to 1, from records and seconds since the first start. Arrived records must
    grow at `steps_per_s`, or at the default rate. With `reads_input` they read a file before they are ready.
    `on_progress` is called a few times a second.

    Raises:
        MeasurementFailed: a worker died, sent nothing or stalled.
        NetstackError: a worker reported an error.
    """
    for role in ROLES:
        workers.send(role, "job", **job, scratch=str(scratch))
    workers.expect_setup(reads_input=reads_input)
    ready: set[str] = set()
    done: dict[str, Summary] = {}
    began_ns = records = 0
    while len(done) < len(ROLES):
        role, message = workers.receive()
        event = message.pop("event")
        if event == "address":
            workers.send(ROLES[1 - ROLES.index(role)], "address", address=message["address"])
        elif event == "ready":
            ready.add(role)
            if len(ready) == len(ROLES):
                ready.clear()
                start_ns = time.monotonic_ns() + LEAD_NS
                began_ns = began_ns or start_ns
                workers.expect_progress(steps_per_s)
                for each in ROLES:
                    workers.send(each, "go", start_ns=start_ns)
        elif event == "done":
            done[role] = message
            if role == "producer":
                workers.send("consumer", "producer_done", **message)
        elif role == "consumer":
            records = int(message["records"])
        if on_progress is not None:
            elapsed_s = max(0.0, (time.monotonic_ns() - began_ns) / 1e9) if began_ns else 0.0
            phase = "draining" if "producer" in done else "running" if began_ns else "starting"
            on_progress(RunState(workers.engine, phase, records, elapsed_s, fraction(records, elapsed_s)))
    return Summaries(done["producer"], done["consumer"], tuple(workers.last_words()), began_ns)


def run_pair(
    module: str,
    name: str,
    settings: Mapping[str, Any],
    *,
    deadlines: PhaseLimits,
    expected_s: float,
    on_progress: OnProgress | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Summaries:
    """Starts both workers of `module` (which calls `serve`), leads them through one run, and ends them.

    `name` is for messages, `expected_s` counts from the first go. Errors are those of `lead`.
    """
    with (
        scratch_folder() as scratch,
        Workers(name, deadlines, module=module, environment=environment) as workers,
    ):
        return lead(
            workers,
            Path(scratch),
            settings=dict(settings),
            fraction=lambda _, elapsed_s: min(1.0, elapsed_s / expected_s),
            on_progress=on_progress,
        )
