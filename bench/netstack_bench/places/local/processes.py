"""The two worker processes of a measurement, and how they are led through one run: `run`, `isolate` and `channels`.

Messages are JSON lines over pipes (`netstack_bench.places.local.worker_io`). Workers may send `ready` several times:
whenever both have sent it, both receive the same start time. The producer's summary is passed on to the consumer. Every
wait has a deadline. Workers run in sessions of their own, so that Ctrl-C reaches only this process, which then
ends them. Leaving the `with` block always kills and reaps both.
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
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, NoReturn, TypeAlias

from netstack.base.errors import ConfigError, NetstackError
from netstack.base.own_packages import import_folders
from netstack.base.scratch import scratch_folder

from ...generator import MissingExtra
from ...rows import InputError
from ..conversation import Conversation, OnProgress

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


class MeasurementFailed(NetstackError):
    """A worker died, sent nothing or made no progress; the message names it and quotes its last words."""


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
