"""What runs in the process of one slot: a TaskManager of one slot that its supervisor drives over a socket.

Takes: settings of the whole TaskManager, and the descriptors that `slot_processes` hands over. Gives: an exit code.

The process belongs to user code as much as to netstack: whatever that does to it (exits, crashes, eats memory, never
returns) the supervisor notices from outside. Two things help it to: a clock in shared memory that the event loop sets
(`HEARTBEAT_S`), and the Python stack, which a signal handler in C writes into a pipe also while the interpreter is held
(`STACK_SIGNAL`).

A process that user code forks off is its own, until it returns from the operator, or raises, as `sys.exit` does: it
would go on as a second process of the same slot. So it ends then, by whatever would send or receive and by its event
loop before that turns, and touches nothing that others share before.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import math
import mmap
import os
import random
import resource
import socket
import sys
import time
from functools import partial
from typing import Any, Final, NoReturn

import trio

from ..config import MIB
from ..control.build import own_build
from ..control.codec import Attempt
from ..control.link import TASKMANAGER, ControlLink, full_build
from ..errors import ConfigError, NetstackError
from ..runtime.causes import root_cause
from ..task.reports import RunnableTask
from ..transports._sockets import SocketStream
from ..transports.shm.stream import ShmStream
from .config import TaskManagerConfig
from .job_scope import OnMade
from .memory import short_collections
from .runner import open_taskmanager
from .service import TaskManager
from .slot_settings import HEARTBEAT, HEARTBEAT_S, PORT_TAKEN, STACK_SIGNAL, SlotSettings

_TEXT: Final = (
    b"a process that an operator has forked (%d) came back to netstack, and ends; end it with os._exit, or start it by"
    b" subprocess or multiprocessing's spawn\n"
)
_STREAMS: Final[tuple[Any, ...]] = (SocketStream, ShmStream)


def end_forked_children() -> None:
    """From now on, for the rest of this process, its children end as soon as they come back."""

    def in_child() -> None:
        for stream in _STREAMS:
            stream.try_send = stream.try_receive_into = _end
        if trio.lowlevel.in_trio_run():  # not in a thread of user code's own, which has no loop to come back to
            trio.lowlevel.add_instrument(_EndOfStep())

    os.register_at_fork(after_in_child=in_child)


class _EndOfStep(trio.abc.Instrument):
    """Ends the process when the task that forked it waits, or has ended."""

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        _end()


def _end(*_: Any) -> NoReturn:
    os.write(2, _TEXT % os.getpid())
    os._exit(1)


LEAST_PROCESS_BYTES: Final = 64 * MIB


def slot_main(settings: SlotSettings, request: dict[str, Any], descriptors: list[int]) -> int:
    """All of a slot process.

    Args:
        settings: see there.
        request: `slot`, `url` (where it serves data), `metrics` (where it serves metrics, or None) and `prefix` (of the
            files of its partitions).
        descriptors: of the supervisor's socket, of the pipe for stacks, of the shared memory.

    Returns:
        The exit code.
    """
    control, stacks, shared = descriptors
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    random.seed()
    logging.getLogger("netstack").setLevel(logging.WARNING)  # the supervisor tells what comes and goes
    clock = mmap.mmap(shared, mmap.PAGESIZE)
    os.close(shared)
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=False)
    faulthandler.enable(file=stacks, all_threads=False)
    _tell_exits(stacks)
    end_forked_children()
    if settings.process_memory_bytes is not None:
        limit_memory(settings.process_memory_bytes)
    if "" not in sys.path:
        sys.path.append("")  # jobs' modules are also found where it was started, as they are by who submits
    config = settings.slot_config(request["slot"], request["url"], request["prefix"])
    os.set_blocking(stacks, False)
    link, on_made = socket.socket(fileno=control), partial(_tell_code, stacks)
    try:
        trio.run(_serve, config, request["metrics"], link, clock, on_made)
    except BaseException as error:
        root = root_cause(error)
        if isinstance(root, OSError) and root.errno == PORT_TAKEN and request["url"] in str(root):
            return PORT_TAKEN
        raise
    return 0


def _tell_exits(stacks: int) -> None:
    """Has user code that calls `os._exit` leave its stack, as a crash does."""
    process = os.getpid()
    leave = os._exit

    def exit_with_stack(status: int) -> NoReturn:
        if os.getpid() == process:
            faulthandler.dump_traceback(file=stacks, all_threads=False)
        leave(status)

    os._exit = exit_with_stack


def _tell_code(stacks: int, job_id: str, attempt: Attempt, task: RunnableTask) -> None:
    """Tells the supervisor which code belongs to a task, in a line that is there before any of it runs."""
    line = json.dumps({"job_id": job_id, "attempt": attempt, "task": task.name, "rows": task.code()})
    with contextlib.suppress(BlockingIOError):  # the supervisor is behind: it will not know this task's operators
        os.write(stacks, f"\n{line}\n".encode())


async def _serve(
    config: TaskManagerConfig, metrics: str | None, control: socket.socket, clock: mmap.mmap, on_made: OnMade
) -> None:
    stream = SocketStream(control, "the supervisor")
    link = ControlLink(stream, heartbeat_timeout_s=math.inf)
    with short_collections():
        async with (
            open_taskmanager(config, metrics_address=metrics, on_made=on_made) as manager,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_beat, clock)
            nursery.start_soon(link.run)
            with contextlib.suppress(NetstackError):  # the supervisor has ended, and this process with it
                await _serve_supervisor(manager, link)
            nursery.cancel_scope.cancel()


async def _serve_supervisor(manager: TaskManager, link: ControlLink) -> None:
    # No sign of life is asked for: a slot that computes gives none, and its supervisor looks at the clock.
    facts = {**manager.facts(), "metrics": manager.metrics_address, "heartbeat_timeout_s": None}
    await link.greet(full_build(own_build()), f"slot {manager.config.in_slot}", TASKMANAGER, facts)
    await manager.serve_driver(link)


async def _beat(clock: mmap.mmap) -> None:
    while True:
        HEARTBEAT.pack_into(clock, 0, time.monotonic_ns())
        await trio.sleep(HEARTBEAT_S)


def limit_memory(limit_bytes: int) -> None:
    """From now on whoever wants to hold more data in this process than that gets a MemoryError.

    Raises:
        ConfigError: it is less than a process needs, or more than it may have.
    """
    check_process_memory(limit_bytes)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def check_process_memory(limit_bytes: int) -> None:
    """Refuses a limit that cannot be set.

    Raises:
        ConfigError: it is less than a process needs, or more than it may have.
    """
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY and limit_bytes > most:
        raise ConfigError(f"--process-memory {limit_bytes}: the system allows this process {most} bytes")
    if limit_bytes < LEAST_PROCESS_BYTES:
        raise ConfigError(f"--process-memory {limit_bytes}: the least is {LEAST_PROCESS_BYTES}, which a process needs")
