"""A worker process of a measurement: runs the producer or the consumer of an engine and reports to the runner.

Messages are JSON lines on stdin and stdout (`netstack_bench.places.local.worker_io`); errors go to stderr.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import functools
import gc
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from netstack.base import build
from netstack.base.errors import NetstackError
from netstack.cluster.taskmanager.memory import keep_freed_memory

from ...arrivals import Int64s, warm_ns
from ...engines import load_engine
from ...host import peak_memory_bytes
from ...spec import RunSpec
from .worker_io import ConsumerIo, Facts, Link, ProducerIo

FAILED = 1
"""Exit code after a typed error, which was also sent to the runner."""


def main(arguments: list[str] | None = None) -> int:
    """Runs one role of one measurement; returns the exit code."""
    options = arguments_of(__doc__, arguments)
    return reporting(functools.partial(_measure, options.role, options.engine))


def arguments_of(description: str | None, arguments: list[str] | None = None) -> argparse.Namespace:
    """The arguments of every worker: `role` and `engine`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--role", choices=("producer", "consumer"), required=True)
    parser.add_argument("--engine", required=True)
    return parser.parse_args(arguments)


def reporting(work: Callable[[Link], None]) -> int:
    """Runs a worker's side of the conversation and sends a typed error to the runner; returns the exit code."""
    # Output of an engine or a library must not mix with the messages.
    write_fd = os.dup(1)
    os.dup2(2, 1)
    link = Link(0, write_fd)
    link.before_go = _settle_memory
    try:
        work(link)
    except NetstackError as error:
        return _failed(link, error)
    except BaseExceptionGroup as group:
        typed = _first_typed(group)
        if typed is None:
            raise
        return _failed(link, typed)
    return 0


def _settle_memory() -> None:
    gc.collect()
    gc.freeze()
    keep_freed_memory()


def _measure(role: str, engine_name: str, link: Link) -> None:
    job = link.wait("job")
    engine = load_engine(engine_name)
    spec, scratch = RunSpec.from_dict(job["spec"]), Path(job["scratch"])
    if role == "producer":
        produced = ProducerIo(spec, link, scratch)
        facts = _run(engine.produce, spec, produced)
        link.send("done", **_producer_summary(produced, facts))
    else:
        consumed = ConsumerIo(spec, link, scratch)
        facts = _run(engine.consume, spec, consumed)
        link.send("done", **_consumer_summary(consumed, facts, link))


def _run(function: Any, spec: RunSpec, io: ProducerIo | ConsumerIo) -> Facts:
    if inspect.iscoroutinefunction(function):
        import trio

        facts = trio.run(function, spec, io)
    else:
        facts = function(spec, io)
    assert isinstance(facts, Facts)
    return facts


def _producer_summary(io: ProducerIo, facts: Facts) -> dict[str, Any]:
    cpu_s = io.cpu_s()
    return {
        "cpu_s": cpu_s,
        "memory_bytes": peak_memory_bytes(),
        "records": io.sent_records,
        "stopped_ns": io.stopped_ns,
        "expected": io.source.expected(io.sent_records),
        "samples": [_packed(values) for values in io.samples()],
        "facts": dataclasses.asdict(facts),
    }


def _consumer_summary(io: ConsumerIo, facts: Facts, link: Link) -> dict[str, Any]:
    cpu_s = io.cpu_s()
    verifier = io.verifier
    verifier.finish()
    sent = link.wait("finish")
    arrivals = verifier.arrivals
    stopped_ns, warmup_s = int(sent["stopped_ns"]), io.spec.warmup_s
    indexes, times = map(_unpacked, sent["samples"])
    latency = verifier.latencies(indexes, times, warm_ns(io.start_ns, stopped_ns, warmup_s))
    expected, arrived = sent["expected"], verifier.received_records
    counted = [] if expected["records"] == arrived else [f"{expected['records']} records were sent, {arrived} arrived"]
    return {
        "cpu_s": cpu_s,
        "memory_bytes": peak_memory_bytes(),
        "netstack_build": build.kind,
        "records": arrived,
        "payload_bytes": verifier.payload_bytes,
        "window": dataclasses.asdict(arrivals.window(io.start_ns, stopped_ns, warmup_s)),
        "last_ns": arrivals.last_ns,
        "latency": latency.to_dict(),
        "verified": verifier.verified if facts.verified else "count",
        "problems": verifier.problems(expected) if facts.verified else counted,
        "facts": dataclasses.asdict(facts),
    }


def _failed(link: Link, error: BaseException) -> int:
    link.send("error", kind=type(error).__name__, text=str(error))
    return FAILED


def _first_typed(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    error: BaseException | None = group.subgroup(NetstackError)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _packed(values: Int64s) -> str:
    return base64.b64encode(values.astype("<i8").tobytes()).decode()


def _unpacked(text: str) -> Int64s:
    return np.frombuffer(base64.b64decode(text), dtype="<i8").astype(np.int64)


if __name__ == "__main__":
    sys.exit(main())
