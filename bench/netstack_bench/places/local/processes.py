"""The two worker processes of a measurement: start, messages, deadlines, cleanup.

Every wait has a deadline. Workers run in sessions of their own, so that Ctrl-C reaches only this process, which then
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Final

from netstack.base.errors import ConfigError, NetstackError
from netstack.base.own_packages import import_folders

from ...generator import MissingExtra
from ...inputs import InputError

ROLES: Final = ("producer", "consumer")

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
        self.records = 0
        self.done = False
        self.ended = False


class Workers:
    """Both workers of one measurement: `module` started with the role and the engine as arguments."""

    def __init__(
        self,
        engine: str,
        deadlines: PhaseLimits,
        *,
        module: str = "netstack_bench.places.local.worker",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.engine = engine
        self.module = module
        self.environment = environment
        self._deadlines = deadlines
        self._workers: dict[str, _Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._inbox: deque[tuple[str, dict[str, Any]]] = deque()
        self._setup_until: float | None = None
        self._stalled_s = deadlines.stalled_s
        self._moved_at = time.monotonic()

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

    def expect_setup(self, *, reads_input: bool) -> None:
        """From now on the setup limit applies."""
        limit_s = self._deadlines.input_s if reads_input else self._deadlines.setup_s
        self._setup_until = time.monotonic() + limit_s

    def expect_progress(self, rate_per_s: float | None) -> None:
        """From now on the limit for progress applies."""
        self._setup_until = None
        self._moved_at = time.monotonic()
        if rate_per_s is not None:
            self._stalled_s = max(self._deadlines.stalled_s, 3 / rate_per_s)

    def send(self, role: str, event: str, **fields: Any) -> None:
        """Writes a message to one worker; if the worker has died, `receive` reports it."""
        self._workers[role].send(event, **fields)

    def receive(self) -> tuple[str, dict[str, Any]]:
        """The next message of either worker.

        Raises:
            MeasurementFailed: a worker died, sent nothing in time, or no records move.
            NetstackError: a worker reported this error.
        """
        while not self._inbox:
            self._read(0.1)
            self._check()
        role, message = self._inbox.popleft()
        worker = self._workers[role]
        if message["event"] == "error":
            raise self._failure([(role, message)])
        if message["event"] != "progress" or message["records"] != worker.records:
            self._moved_at = time.monotonic()
        worker.records = message.get("records", worker.records)
        worker.done = worker.done or message["event"] == "done"
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

    def _check(self) -> None:
        if self._inbox:
            return
        now = time.monotonic()
        waiting = [worker for worker in self._workers.values() if not worker.done]
        if any(worker.ended for worker in waiting):
            raise self._failure([])
        for worker in waiting:
            if now - worker.last_message_at > self._deadlines.silent_s:
                self._fail([worker], f"sent nothing for {self._deadlines.silent_s:g} s")
        if self._setup_until is not None:
            if now > self._setup_until:
                self._fail(waiting, "did not become ready in time")
        elif now - self._moved_at > self._stalled_s:
            counts = ", ".join(f"{worker.name} {worker.records}" for worker in self._workers.values())
            self._fail(waiting, f"made no progress for {self._stalled_s:g} s (records: {counts})")

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

    def _fail(self, workers: list[_Worker], what: str) -> None:
        names = " and the ".join(worker.name for worker in workers)
        quotes = "".join(worker.quote() for worker in workers)
        raise MeasurementFailed(f"measuring {self.engine} failed: the {names} {what}; both were ended{quotes}")

    def _let_exit(self) -> None:
        until = time.monotonic() + self._deadlines.exit_s
        while self._selector.get_map() and time.monotonic() < until:
            self._read(0.05)
        for worker in self._workers.values():
            try:
                worker.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.words.append(f"did not exit within {self._deadlines.exit_s:g} s and was killed")

    def _end(self) -> None:
        for worker in self._workers.values():
            worker.process.kill()
        for worker in self._workers.values():
            worker.end()
        self._selector.close()
