"""The hosts of a simulation, which start, die and restart with a JobManager or a TaskManager.

Takes: the network, settings. Gives: the real services; only threads, sockets and clocks are simulated.

Rules: a dead host sends no byte and writes no file. Code that still runs to finish has no effect.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar, final

import trio

from ...network.waiting.threads import no_threads
from .network import THIS_HOST, Network, Process

_Result = TypeVar("_Result")

GiveBirth = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens the service of a host."""

LogEvent = Callable[[str], None]


@final
class Disk:
    """The disk of a host, which replaces threads that write files.

    Attributes:
        room_bytes: maximum file size, as on a full disk; None: unlimited.
    """

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.room_bytes: int | None = None

    async def run(self, process: Process, function: Callable[[], _Result]) -> _Result:
        """Runs a blocking call of a process; virtual time passes if the disk is slow.

        Raises:
            OSError: the process is dead; the call has no effect.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.delay_s:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.delay_s)
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
        if not process.is_alive:
            raise OSError(errno.EIO, "the host is dead")
        if self.room_bytes is None:
            return function()
        with _full_at(self.room_bytes):
            return function()


@contextlib.contextmanager
def _full_at(room_bytes: int) -> Iterator[None]:
    """Makes the system refuse larger files of this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@final
class Host:
    """One host: `live` until cancelled.

    Attributes:
        service: the running service; None between two lives.
        process: its current life.
        births: number of lives so far.
    """

    def __init__(self, name: str, network: Network, give_birth: GiveBirth, log_event: LogEvent) -> None:
        self.name = name
        self.disk = Disk()
        self.service: Any = None
        self.process = Process(name)
        self.births = 0
        self._network = network
        self._give_birth = give_birth
        self._log_event = log_event
        self._scope = trio.CancelScope()
        self._reborn_s = 0.0

    @property
    def is_up(self) -> bool:
        """Whether its service runs, and is not being stopped: it takes requests."""
        return self.service is not None and self.process.is_alive and not self._scope.cancel_called

    @contextlib.contextmanager
    def asked(self) -> Iterator[Process]:
        """Makes calls within the block, and in tasks started there, happen on this host and its disk."""
        process = self.process
        before = THIS_HOST.set(process)
        try:
            with no_threads(partial(self.disk.run, process)):
                yield process
        finally:
            THIS_HOST.reset(before)

    async def live(self) -> None:
        """Runs life after life. Cancellation: the service is stopped in order."""
        while True:
            slowness = self.process.slowness
            self.process = process = Process(self.name)
            process.slowness = slowness
            THIS_HOST.set(process)
            try:
                with trio.CancelScope() as self._scope, no_threads(partial(self.disk.run, process)):
                    async with self._give_birth() as self.service:
                        self.births += 1
                        self._log_event(f"{self.name} is up")
                        await trio.sleep_forever()
            except BaseException as error:
                if isinstance(error, trio.Cancelled) or (
                    isinstance(error, BaseExceptionGroup) and error.split(trio.Cancelled)[1] is None
                ):
                    raise
                if process.is_alive:
                    self._network.died(process, silently=False)
                    self._log_event(f"{self.name} cannot start: {error!r}")
                    if not isinstance(error, Exception) or not is_of_the_system(error):
                        raise
                    self._reborn_s = trio.current_time() + 1.0
            finally:
                self.service = None
            await trio.sleep_until(self._reborn_s)

    def die(self, *, silently: bool, for_s: float) -> None:
        """Kills the host at once; its next life starts later."""
        if self.process.is_alive:
            self._network.died(self.process, silently=silently)
            self._reborn_s = trio.current_time() + for_s
            self._scope.cancel()

    def stop(self, *, for_s: float) -> None:
        """Stops the service in order, as SIGTERM does; the next life starts later."""
        if self.is_up:
            self._reborn_s = trio.current_time() + for_s
            self._scope.cancel()


def is_of_the_system(error: BaseException) -> bool:
    """Whether a service could not start because of its disk or address."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_of_the_system(each) for each in error.exceptions)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def files_in(folder: str) -> list[str]:
    """Every file under a folder, sorted."""
    return sorted(os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)
