"""Processes that come and go during one measurement: started, talked to, killed on purpose, and gone afterwards.

Takes: a worker module and what each process is called. Gives: their messages, deaths among them, in the order in which
they came.

Rules: one thread; no call waits longer than it is told. Which death is expected is the caller's to know. The processes
run in sessions of their own, so that Ctrl-C reaches only this one, which then ends them. They end by themselves when
their standard input does. Leaving the `with` block kills and reaps all of them, always.
"""

from __future__ import annotations

import os
import selectors
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from .processes import Process

DIED: Final = "died"
"""The last message of every process; `how` says how it ended."""

Message = tuple[str, dict[str, Any]]

_EXIT_S: Final = 5.0  # from closing its output to its end


class Children:
    """The processes of one measurement, by name.

    Args:
        module: what each of them runs.
        environment: what is set for them besides what is set here.
    """

    def __init__(self, module: str, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        self._module = module
        self._environment = environment
        self._children: dict[str, Process] = {}
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
        child = self._children[name] = Process(name, self._module, arguments, self._environment)
        child.register(self._selector)

    def send(self, name: str, event: str, **fields: Any) -> None:
        """Writes a message to one of them; one that cannot take it has died, which `receive` tells."""
        child = self._children.get(name)
        if child is not None:
            child.send(event, **fields)

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
            child: Process = key.data[0]
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
                self._inbox.extend((child.name, message) for message in child.take_messages(chunk))

    def _bury(self, child: Process) -> None:
        """Its standard output has ended, so it is over; the rest of what it wrote to stderr is still to be had."""
        how = child.how_it_ended(_EXIT_S)
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
