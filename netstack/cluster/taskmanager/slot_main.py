"""The main function of a slot process: a TaskManager with one slot, controlled by its supervisor over a socket.

Takes: settings of the whole TaskManager, and the descriptors from `slot_pool`. Gives: an exit code.

User code may do anything to the process (exit, crash, use memory, never return); the supervisor detects it from
outside. Two means support this: a clock in shared memory that the event loop updates (`HEARTBEAT_S`), and the Python
stack, which a signal handler in C writes into a pipe even while the interpreter is blocked (`STACK_SIGNAL`).

A process that user code forks is independent until it returns from the operator or raises, for example by `sys.exit`:
then it would continue as a second process of the same slot. So it ends when it first sends, receives or returns to the
event loop, before it touches shared state.
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

from ...base.causes import root_cause
from ...base.config import MIB
from ...base.errors import ConfigError, NetstackError
from ...base.transport import ByteStream, transport_for
from ..control.build import own_build
from ..control.codec import Attempt
from ..control.link import TASKMANAGER, ControlLink, full_build
from ..task.reports import RunnableTask
from .config import TaskManagerConfig
from .memory import short_collections
from .runner import open_taskmanager
from .service import TaskManager
from .slot_settings import HEARTBEAT, HEARTBEAT_S, METRICS_TAKEN, PORT_TAKEN, STACK_SIGNAL, SlotSettings
from .tasks import OnMade

_TEXT: Final = (
    b"a process that an operator forked (%d) returned to netstack and is ended; end it with os._exit, or start it with"
    b" subprocess or multiprocessing's spawn\n"
)


def end_forked_children() -> None:
    """Makes forked children of this process end as soon as they return to netstack."""

    def in_child() -> None:
        streams: list[Any] = ByteStream.__subclasses__()  # of every transport that was loaded
        for stream in streams:
            stream.try_send = stream.try_receive_into = _end
        if trio.lowlevel.in_trio_run():  # threads of user code have no event loop
            trio.lowlevel.add_instrument(_EndOfStep())

    os.register_at_fork(after_in_child=in_child)


class _EndOfStep(trio.abc.Instrument):
    """Ends a forked process when its task waits or ends."""

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        _end()


def _end(*_: Any) -> NoReturn:
    os.write(2, _TEXT % os.getpid())
    os._exit(1)


LEAST_PROCESS_BYTES: Final = 64 * MIB


def slot_main(settings: SlotSettings, request: dict[str, Any], descriptors: list[int]) -> int:
    """Runs a slot process.

    Args:
        settings: settings of the slots.
        request: `slot`, `url` (data address), `metrics` (metrics address or None) and `prefix` (of its partition
            files).
        descriptors: the supervisor's socket, the pipe for stacks, the shared memory.

    Returns:
        The exit code.
    """
    control, stacks, shared = descriptors
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    random.seed()
    logging.getLogger("netstack").setLevel(logging.WARNING)  # the supervisor logs routine events
    clock = mmap.mmap(shared, mmap.PAGESIZE)
    os.close(shared)
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=False)
    faulthandler.enable(file=stacks, all_threads=False)
    _tell_exits(stacks)
    end_forked_children()
    if settings.process_memory_bytes is not None:
        limit_memory(settings.process_memory_bytes)
    if "" not in sys.path:
        sys.path.append("")  # modules in the working directory can be imported, as at the client
    config = settings.slot_config(request["slot"], request["url"], request["prefix"])
    os.set_blocking(stacks, False)
    link, on_made = socket.socket(fileno=control), partial(_tell_code, stacks)
    try:
        trio.run(_serve, config, request["metrics"], link, clock, on_made)
    except BaseException as error:
        root = root_cause(error)
        if isinstance(root, OSError) and root.errno == PORT_TAKEN:
            if request["url"] in str(root):
                return PORT_TAKEN
            if request["metrics"] is not None:
                return METRICS_TAKEN
        raise
    return 0


def _tell_exits(stacks: int) -> None:
    """Makes `os._exit` in user code write its stack, as a crash does."""
    process = os.getpid()
    leave = os._exit

    def exit_with_stack(status: int) -> NoReturn:
        if os.getpid() == process:
            faulthandler.dump_traceback(file=stacks, all_threads=False)
        leave(status)

    os._exit = exit_with_stack


def _tell_code(stacks: int, job_id: str, attempt: Attempt, task: RunnableTask) -> None:
    """Sends the code locations of a task to the supervisor, before the task runs."""
    line = json.dumps({"job_id": job_id, "attempt": attempt, "task": task.name, "rows": task.code()})
    with contextlib.suppress(BlockingIOError):  # the pipe is full: stacks will lack this task's operators
        os.write(stacks, f"\n{line}\n".encode())


async def _serve(
    config: TaskManagerConfig, metrics: str | None, control: socket.socket, clock: mmap.mmap, on_made: OnMade
) -> None:
    stream = transport_for("unix://").stream_of(control, "the supervisor")
    link = ControlLink(stream, heartbeat_timeout_s=math.inf)
    with short_collections():
        async with (
            open_taskmanager(config, metrics_address=metrics, on_made=on_made) as manager,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_beat, clock)
            nursery.start_soon(link.run)
            with contextlib.suppress(NetstackError):  # the supervisor has ended, so this process ends
                await _serve_supervisor(manager, link)
            nursery.cancel_scope.cancel()


async def _serve_supervisor(manager: TaskManager, link: ControlLink) -> None:
    # No heartbeats: a computing slot cannot send any, and the supervisor reads the clock instead.
    facts = {**manager.facts(), "metrics": manager.metrics_address, "heartbeat_timeout_s": None}
    await link.greet(full_build(own_build()), f"slot {manager.config.in_slot}", TASKMANAGER, facts)
    await manager.serve_driver(link)


async def _beat(clock: mmap.mmap) -> None:
    while True:
        HEARTBEAT.pack_into(clock, 0, time.monotonic_ns())
        await trio.sleep(HEARTBEAT_S)


def limit_memory(limit_bytes: int) -> None:
    """Limits the data of this process; allocations beyond the limit raise MemoryError.

    Raises:
        ConfigError: the limit is too small for a process, or larger than the system allows.
    """
    check_process_memory(limit_bytes)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def check_process_memory(limit_bytes: int) -> None:
    """Checks that a memory limit can be set.

    Raises:
        ConfigError: the limit is too small for a process, or larger than the system allows.
    """
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY and limit_bytes > most:
        raise ConfigError(f"--process-memory {limit_bytes}: the system limits this process to {most} bytes")
    if limit_bytes < LEAST_PROCESS_BYTES:
        raise ConfigError(f"--process-memory {limit_bytes}: the minimum for a process is {LEAST_PROCESS_BYTES}")
