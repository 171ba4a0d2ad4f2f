"""The hosts of a simulation: each lives, dies and is born again with a JobManager or a TaskManager in it.

Takes: the network, settings. Gives: the real services, opened as anywhere else; only threads, sockets and clocks are
played.

Rules: whoever dies does nothing any more: not a byte leaves it, not a file is written by it. What it still runs to come
to its end has no effect.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, TypeVar, final

import trio

from netstack.runtime.threads import no_threads

from .network import THIS_HOST, Network, Process

_Result = TypeVar("_Result")

GiveBirth = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens the service of a host."""

Tell = Callable[[str], None]

_LONGEST_END_S: Final = 120.0


@final
class Disk:
    """What a host has instead of threads that write files.

    Attributes:
        delay_s: of everything.
        room_bytes: a file may grow to so many bytes, as if the disk was full then; None: there is room.
    """

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.room_bytes: int | None = None

    async def run(self, process: Process, function: Callable[[], _Result]) -> _Result:
        """Runs something that blocks, for a process; its clock goes on meanwhile if the disk is slow.

        Raises:
            OSError: the process is dead: whatever it wanted to do does not happen.
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
    """The system itself refuses what goes beyond: no file of this process may become larger."""
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
        name: of it.
        disk: of it.
        service: what runs there; None between two lives.
        process: the life it has now.
        births: how many there were.
    """

    def __init__(self, name: str, network: Network, give_birth: GiveBirth, tell: Tell) -> None:
        self.name = name
        self.disk = Disk()
        self.service: Any = None
        self.process = Process(name)
        self.births = 0
        self._network = network
        self._give_birth = give_birth
        self._tell = tell
        self._scope = trio.CancelScope()
        self._reborn_s = 0.0

    @property
    def is_up(self) -> bool:
        """Whether its service runs, and is not being stopped: it takes requests."""
        return self.service is not None and self.process.is_alive and not self._scope.cancel_called

    @contextlib.contextmanager
    def asked(self) -> Iterator[Process]:
        """Within the block, and in tasks begun there, what is asked from outside happens at this host, on its disk."""
        process = self.process
        before = THIS_HOST.set(process)
        try:
            with no_threads(partial(self.disk.run, process)):
                yield process
        finally:
            THIS_HOST.reset(before)

    async def live(self) -> None:
        """Life after life. Cancellation: the service is closed as a service is that is stopped."""
        while True:
            slowness = self.process.slowness
            self.process = process = Process(self.name)
            process.slowness = slowness
            THIS_HOST.set(process)
            try:
                with trio.CancelScope() as self._scope, no_threads(partial(self.disk.run, process)):
                    async with self._give_birth() as self.service:
                        self.births += 1
                        self._tell(f"{self.name} is up")
                        await trio.sleep_forever()
            except BaseException as error:
                if isinstance(error, trio.Cancelled) or (
                    isinstance(error, BaseExceptionGroup) and error.split(trio.Cancelled)[1] is None
                ):
                    raise
                if process.is_alive:
                    self._network.died(process, silently=False)
                    self._tell(f"{self.name} cannot live: {error!r}")
                    if not isinstance(error, Exception) or not is_of_the_system(error):
                        raise
                    self._reborn_s = trio.current_time() + 1.0
            finally:
                self.service = None
            await trio.sleep_until(self._reborn_s)

    def die(self, *, silently: bool, for_s: float) -> None:
        """Ends its life in the middle of whatever it does; the next one begins later."""
        if self.process.is_alive:
            self._network.died(self.process, silently=silently)
            self._reborn_s = trio.current_time() + for_s
            self._scope.cancel()

    def stop(self, *, for_s: float) -> None:
        """Ends its service in order, as SIGTERM does; the next one begins later."""
        if self.is_up:
            self._reborn_s = trio.current_time() + for_s
            self._scope.cancel()


def is_of_the_system(error: BaseException) -> bool:
    """Whether a service could not live for want of disk or address."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_of_the_system(each) for each in error.exceptions)
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError):
            return True
        found = found.__cause__ or found.__context__
    return False


def files_in(folder: str) -> list[str]:
    """Every file under a folder, sorted."""
    return sorted(os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)
