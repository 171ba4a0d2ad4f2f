"""Processes that come and go during one measurement: started, talked to, killed on purpose, and gone afterwards.

Takes: a worker module and what each process is called. Gives: their messages, deaths among them, in the order in which
they came.

Rules: one thread; no call waits longer than it is told. Which death is expected is the caller's to know. The processes
run in sessions of their own, so that Ctrl-C reaches only this one, which then ends them. They end by themselves when
their standard input does. Leaving the `with` block kills and reaps all of them, always.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

DIED: Final = "died"
"""The last message of every process; `how` says how it ended."""

Message = tuple[str, dict[str, Any]]

_STDERR_LINES: Final = 200
_QUOTED_LINES: Final = 12
_EXIT_S: Final = 5.0  # from closing its output to its end


class _Child:
    """One process and what came from it so far."""

    def __init__(self, name: str, module: str, arguments: tuple[str, ...], environment: Mapping[str, str]) -> None:
        root = str(Path(__file__).resolve().parent.parent)
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )
        self.pending = b""
        self.words: deque[str] = deque(maxlen=_STDERR_LINES)
        self.word = b""

    def take_words(self, chunk: bytes) -> None:
        """Keeps lines of stderr."""
        *lines, self.word = (self.word + chunk).split(b"\n")
        self.words.extend(line.decode(errors="replace") for line in lines)

    def quote(self) -> str:
        """Its last words, for an error message."""
        words = [*self.words, *filter(None, [self.word.decode(errors="replace")])]
        return "".join(f"\n    {line}" for line in words[-_QUOTED_LINES:])

    def end(self) -> None:
        """Kills and reaps it, whatever it does."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Children:
    """The processes of one measurement, by name.

    Args:
        module: what each of them runs.
        environment: what is set for them besides what is set here.
    """

    def __init__(self, module: str, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        self._module = module
        self._environment = environment
        self._children: dict[str, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._inbox: deque[Message] = deque()

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for child in self._children.values():
            child.process.kill()  # all of them before waiting for any
        for child in self._children.values():
            child.end()
        self._selector.close()

    @property
    def names(self) -> list[str]:
        """Of those that run, in the order in which they were started."""
        return [*self._children]

    def pid(self, name: str) -> int:
        """The process id of one that runs."""
        return self._children[name].process.pid

    def start(self, name: str, *arguments: str) -> None:
        """Starts a process; the name is free again when it has died."""
        child = self._children[name] = _Child(name, self._module, arguments, self._environment)
        assert child.process.stdout is not None
        assert child.process.stderr is not None
        self._selector.register(child.process.stdout, selectors.EVENT_READ, (child, False))
        self._selector.register(child.process.stderr, selectors.EVENT_READ, (child, True))

    def send(self, name: str, event: str, **fields: Any) -> None:
        """Writes a message to one of them; one that cannot take it has died, which `receive` tells."""
        child = self._children.get(name)
        if child is not None and child.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                child.process.stdin.write(json.dumps({"event": event, **fields}).encode() + b"\n")
                child.process.stdin.flush()

    def receive(self, wait_s: float) -> Message | None:
        """The next message of any of them; None when none came so long."""
        if not self._inbox:
            self._read(wait_s)
        return self._inbox.popleft() if self._inbox else None

    def kill(self, name: str) -> None:
        """SIGKILL, now. What it had said before is heard all the same, then that it died."""
        self._children[name].process.kill()

    def quotes(self) -> str:
        """The last words of all that run."""
        told = [f"\n  {child.name}:{words}" for child in self._children.values() if (words := child.quote())]
        return "".join(told)

    def _read(self, wait_s: float) -> None:
        for key, _ in self._selector.select(wait_s):
            child: _Child = key.data[0]
            is_stderr: bool = key.data[1]
            if self._children.get(child.name) is not child:
                continue  # buried a moment ago, by its other pipe
            chunk = os.read(key.fd, 1 << 16)
            if not chunk:
                self._selector.unregister(key.fileobj)
                if not is_stderr:
                    self._bury(child)
            elif is_stderr:
                child.take_words(chunk)
            else:
                *lines, child.pending = (child.pending + chunk).split(b"\n")
                self._inbox.extend((child.name, json.loads(line)) for line in lines)

    def _bury(self, child: _Child) -> None:
        """Its standard output has ended, so it is over; the rest of what it wrote to stderr is still to be had."""
        how = _how_it_ended(child.process)
        child.process.kill()
        stderr = child.process.stderr
        assert stderr is not None
        if stderr in [key.fileobj for key in self._selector.get_map().values()]:
            self._selector.unregister(stderr)
            while chunk := os.read(stderr.fileno(), 1 << 16):
                child.take_words(chunk)
        self._inbox.append((child.name, {"event": DIED, "how": f"{how}{child.quote()}"}))
        child.end()
        del self._children[child.name]


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(_EXIT_S)
    except subprocess.TimeoutExpired:
        return "closed its output and went on running"
    return f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
