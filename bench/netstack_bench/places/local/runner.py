"""Runs one measurement: two worker processes, one start time, one document; optionally interleaved with peers.

A worker that dies, sends nothing or makes no progress ends the measurement with an error that quotes its last words:
every wait has a deadline. Workers run in sessions of their own, so that Ctrl-C reaches only this process, which then
ends them; both are always killed and reaped.

Messages are JSON lines over pipes (`netstack_bench.places.local.worker_io`). Workers may send `ready` several times:
whenever both have sent it, both receive the same start time. The producer's summary is passed on to the consumer.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from netstack.base.errors import ConfigError, NetstackError
from netstack.base.own_packages import import_folders
from netstack.base.scratch import scratch_folder

from ...arrivals import paced_window
from ...compare import median_result
from ...document import connection_warnings, document, pace_warnings, timeout_warnings, with_calls_per_gb
from ...emulation import emulation_cells
from ...endpoints import prepare
from ...engines import load_engine, peer_spec, uses_timeout
from ...generator import MissingExtra
from ...histogram import Histogram
from ...host import busy_warnings, host_facts
from ...rows import InputError
from ...spec import DEFAULT_SECONDS, RunSpec
from ...stopping import kept_at_interrupt
from ...store import flatten
from ..conversation import Conversation, MeasurementFailed, OnProgress, fraction_of, stalled_s

if TYPE_CHECKING:
    from ...engines.flink import FlinkSession

ROLES: Final = ("producer", "consumer")
LEAD_NS: Final = 30_000_000
"""Time from the go to the start, so that both workers have read the message by then."""

Summary: TypeAlias = dict[str, Any]

_STDERR_LINES = 200
_QUOTED_LINES = 12
_GRACE_S = 0.5  # after one worker fails, time to wait for messages of the other
_TYPED: Final[dict[str, type[NetstackError]]] = {
    error.__name__: error for error in (ConfigError, InputError, MissingExtra)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseLimits:
    """Time limits of the phases of a measurement."""

    setup_s: float = 30.0  # from the start of the processes until both are ready
    input_s: float = 300.0  # the same with an input file to read and check
    silent_s: float = 10.0  # between heartbeats, which a worker sends four times a second
    stalled_s: float = 20.0  # without a sent or received record (longer for a slow rate)
    exit_s: float = 5.0  # from a worker's summary to its exit


class Process:
    """One process in a session of its own, and the last lines of its stderr (`words`)."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        paths = [*import_folders(), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )
        self.words: deque[str] = deque(maxlen=_STDERR_LINES)
        self._pending = b""
        self._word = b""

    def register(self, selector: selectors.BaseSelector) -> None:
        """Registers both outputs with a selector; the data is (process, whether it is stderr)."""
        for pipe, is_stderr in ((self.process.stdout, False), (self.process.stderr, True)):
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ, (self, is_stderr))

    def send(self, event: str, **fields: Any) -> None:
        """Writes a message to the process. If the process has died this does nothing; its output will show it."""
        pipe = self.process.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.write(json.dumps({"event": event, **fields}).encode() + b"\n")
            pipe.flush()

    def take_messages(self, chunk: bytes) -> list[dict[str, Any]]:
        """The messages that end in this piece of standard output."""
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def take_words(self, chunk: bytes) -> None:
        """Stores lines of stderr."""
        *lines, self._word = (self._word + chunk).split(b"\n")
        self.words.extend(line.decode(errors="replace") for line in lines)

    def quote(self) -> str:
        """The last lines of stderr, for an error message."""
        words = [*self.words, *filter(None, [self._word.decode(errors="replace")])]
        return "".join(f"\n    {line}" for line in words[-_QUOTED_LINES:])

    def how_it_ended(self, patience_s: float) -> str:
        """The exit in words, after the end of its output; waits this long for the exit."""
        try:
            code = self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return "closed its output but still runs"
        return f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"

    def end(self) -> None:
        """Kills and reaps it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class _Worker(Process):
    def __init__(self, role: str, engine: str, module: str, environment: Mapping[str, str]) -> None:
        super().__init__(role, module, ("--role", role, "--engine", engine), environment)
        self.last_message_at = math.inf  # no limit before the first message: it may still be importing
        self.done = False
        self.ended = False


class Workers:
    """Both workers of one measurement: `module` started with the role and the engine as arguments."""

    def __init__(
        self,
        engine: str,
        limits: PhaseLimits,
        *,
        module: str = "netstack_bench.places.local.worker",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.engine = engine
        self.module = module
        self.environment = environment
        self.limits = limits
        self._workers: dict[str, _Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._inbox: deque[tuple[str, dict[str, Any]]] = deque()

    def __enter__(self) -> Workers:
        try:
            for role in ROLES:
                worker = self._workers[role] = _Worker(role, self.engine, self.module, self.environment)
                worker.register(self._selector)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._let_exit()
        finally:
            self._end()

    def send(self, role: str, event: str, **fields: Any) -> None:
        """Writes a message to one worker; if the worker has died, `receive` reports it."""
        self._workers[role].send(event, **fields)

    def receive(self, conversation: Conversation[str]) -> tuple[str, dict[str, Any]]:
        """The next message of either worker, after `conversation` has handled it.

        Raises:
            MeasurementFailed: a worker died, sent nothing in time, or no records move.
            NetstackError: a worker reported this error.
        """
        while not self._inbox:
            self._read(0.1)
            self._check(conversation)
        role, message = self._inbox.popleft()
        if message["event"] == "error":
            raise self._failure([(role, message)])
        conversation.on_message(role, message, time.monotonic())
        self._workers[role].done = role in conversation.done
        return role, message

    def last_words(self) -> list[str]:
        """The stderr lines of the workers in a successful run, usually warnings."""
        return [f"{worker.name}: {line}" for worker in self._workers.values() for line in list(worker.words)[-5:]]

    def _read(self, wait_s: float) -> None:
        for key, _ in self._selector.select(wait_s):
            worker, is_stderr = key.data
            chunk = os.read(key.fd, 1 << 16)
            if not chunk:
                self._selector.unregister(key.fileobj)
                worker.ended = worker.ended or not is_stderr
            elif is_stderr:
                worker.take_words(chunk)
            else:
                worker.last_message_at = time.monotonic()
                self._inbox.extend((worker.name, message) for message in worker.take_messages(chunk))

    def _check(self, conversation: Conversation[str]) -> None:
        if self._inbox:
            return
        now = time.monotonic()
        waiting = [worker for worker in self._workers.values() if not worker.done]
        if any(worker.ended for worker in waiting):
            raise self._failure([])
        for worker in waiting:
            if now - worker.last_message_at > self.limits.silent_s:
                self._fail([worker], f"sent nothing for {self.limits.silent_s:g} s")
        if now > conversation.deadline_s:
            if not conversation.start_ns:
                self._fail(waiting, "did not become ready in time")
            counts = ", ".join(f"{role} {conversation.counts.get(role, 0)}" for role in ROLES)
            self._fail(waiting, f"made no progress for {conversation.stalled_s:g} s (records: {counts})")

    def _failure(self, errors: list[tuple[str, dict[str, Any]]]) -> NetstackError:
        """The best explanation of a failure, after a moment for messages of the other worker.

        When one worker fails the other soon does too, so both are quoted, unless there is an error that the user can
        correct.
        """
        until = time.monotonic() + _GRACE_S
        while time.monotonic() < until and self._selector.get_map():
            self._read(0.05)
        errors += [(role, message) for role, message in self._inbox if message["event"] == "error"]
        for _, message in errors:
            if message["kind"] in _TYPED:
                return _TYPED[message["kind"]](message["text"])
        parts = [f"the {role} raised {message['kind']}: {message['text']}" for role, message in errors]
        reported = {role for role, _ in errors}
        for worker in self._workers.values():
            if worker.ended and not worker.done and worker.name not in reported:
                parts.append(f"the {worker.name} {worker.how_it_ended(_GRACE_S)}{worker.quote()}")
        return MeasurementFailed(f"measuring {self.engine} failed: {'; '.join(parts)}")

    def _fail(self, workers: list[_Worker], what: str) -> NoReturn:
        names = " and the ".join(worker.name for worker in workers)
        quotes = "".join(worker.quote() for worker in workers)
        raise MeasurementFailed(f"measuring {self.engine} failed: the {names} {what}; both were ended{quotes}")

    def _let_exit(self) -> None:
        until = time.monotonic() + self.limits.exit_s
        while self._selector.get_map() and time.monotonic() < until:
            self._read(0.05)
        for worker in self._workers.values():
            try:
                worker.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.words.append(f"did not exit within {self.limits.exit_s:g} s and was killed")

    def _end(self) -> None:
        for worker in self._workers.values():
            worker.process.kill()
        for worker in self._workers.values():
            worker.end()
        self._selector.close()


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
    stalled_s: float | None = None,
    reads_input: bool = False,
    on_progress: OnProgress | None = None,
    **job: Any,
) -> Summaries:
    """Leads both started workers from the job to their summaries.

    `fraction` computes the finished part, 0 to 1, from records and seconds since the first start. Some record must move
    each `stalled_s`, or each default time. With `reads_input` they read a file before they are ready. `on_progress` is
    called a few times a second.

    Raises:
        MeasurementFailed: a worker died, sent nothing or stalled.
        NetstackError: a worker reported an error.
    """
    for role in ROLES:
        workers.send(role, "job", **job, scratch=str(scratch))
    limits = workers.limits
    conversation = Conversation(
        ROLES,
        ("consumer",),
        ready_by_s=time.monotonic() + (limits.input_s if reads_input else limits.setup_s),
        stalled_s=stalled_s or limits.stalled_s,
    )
    done: dict[str, Summary] = {}
    while not conversation.is_done:
        role, message = workers.receive(conversation)
        event = message.pop("event")
        if event == "address":
            workers.send(ROLES[1 - ROLES.index(role)], "address", address=message["address"])
        elif conversation.is_ready:
            start_ns = time.monotonic_ns() + LEAD_NS
            conversation.begin(start_ns, time.monotonic())
            for each in ROLES:
                workers.send(each, "go", start_ns=start_ns)
        elif event == "done":
            done[role] = message
            if role == "producer":
                workers.send("consumer", "finish", **message)
        if on_progress is not None:
            on_progress(conversation.state(workers.engine, time.monotonic_ns(), fraction))
    return Summaries(done["producer"], done["consumer"], tuple(workers.last_words()), conversation.start_ns)


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

    Returns netstack's medians (`netstack_bench.compare.median_result`), with `peer` (the same of the peer, by name if
    there are several) and `ratio` (netstack's figure divided by the peer's; also within each peer's row). Ctrl-C keeps
    the turns that are complete; `repeats` is their number. Errors are those of `run_once`.
    """
    for peer in peers:
        asked = peer_spec(peer, spec)  # raises if the peer does not support the settings
        if peer == "flink":
            spec = replace(spec, gates=asked.gates)
        else:
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
