"""A cluster on this machine: a JobManager in this process, TaskManagers as processes of their own.

Takes: a job. Gives: how it ended. Nothing is set up before, and nothing is left behind.

    result = netstack.run_job(environment, taskmanagers=2, slots=2)
    print(result.results["counts"])

It is the cluster of many hosts, only nearer: the same scheduler, messages and processes.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, final

import trio

from ..config import MIB, NetworkConfig
from ..errors import JobFailed, LocalProtocolError
from ..runtime.authentication import Secret
from ..schedule.graph.stream_builder import StreamEnvironment
from ..schedule.graph.stream_graph import StreamGraph
from ..schedule.plan.plan import make_plan
from ..schedule.slots.slots import LoadBalanceMode
from .children import Lines, LocalTaskManagers, TaskManagerSettings, open_local_taskmanagers, wait_registered
from .client import JobClient, JobResult, open_job_client
from .config import JobManagerConfig
from .service import JobManager, open_jobmanager

MEMORY_BYTES: Final = 64 * MIB
"""For the network buffers of a TaskManager of a small job."""

START_TIMEOUT_S: Final = 60.0
"""For all TaskManagers to register: a machine may be busy."""


@final
@dataclass(frozen=True, slots=True)
class LocalCluster:
    """Made by `open_local_cluster`.

    Attributes:
        jobmanager: in this process.
        taskmanagers: its children.
        client: connected to the JobManager.
    """

    jobmanager: JobManager
    taskmanagers: LocalTaskManagers
    client: JobClient

    async def wait(self, job_id: str) -> JobResult:
        """Like `JobClient.wait`; the error names a process that died.

        Raises:
            JobFailed: it failed.
        """
        deaths = len(self.taskmanagers.deaths)
        try:
            return await self.client.wait(job_id)
        except JobFailed as error:
            died = [*self.taskmanagers.deaths][deaths:]
            if died:
                raise JobFailed(f"{error}; {died[0]}", job_id=error.job_id, traceback=error.traceback) from error
            raise


@asynccontextmanager
async def open_local_cluster(
    *,
    taskmanagers: int = 2,
    slots: int = 2,
    memory_bytes: int = MEMORY_BYTES,
    load_balance: LoadBalanceMode = LoadBalanceMode.NONE,
    folder: str | None = None,
    slot_timeout_s: float = 300.0,
    is_restarting: bool = True,
    slots_in: str = "processes",
    max_record_bytes: int | None = None,
    flags: tuple[str, ...] = (),
    jobmanager: JobManagerConfig | None = None,
    on_printed: Lines | None = None,
    on_logged: Lines | None = None,
) -> AsyncIterator[LocalCluster]:
    """A cluster of this process and its children, for as long as the block runs; entered when all have registered.

    Args:
        taskmanagers: how many processes.
        slots: of each.
        memory_bytes: for network buffers, of each.
        load_balance: how tasks are spread.
        folder: where the JobManager keeps jobs and checkpoints; None is a folder that goes with it.
        slot_timeout_s: how long a job waits for slots.
        is_restarting: whether a TaskManager that dies is started again.
        slots_in: `processes`: each slot is a process; `loop`: all slots of a TaskManager share its event loop.
        max_record_bytes: the longest record; None is the default of `NetworkConfig`.
        flags: more flags of `netstack taskmanager`.
        jobmanager: what else is to be set there; what is given here wins.
        on_printed: takes the name of a TaskManager and a line that an operator there printed.
        on_logged: the same of what a TaskManager itself has to say.

    Raises:
        NetstackError: a TaskManager cannot be started; the text has its last words.
        ConfigError: another JobManager holds the folder.

    Cancellation, and the end of the block: all processes are ended.
    """
    secret = Secret.generate()
    config = dataclasses.replace(
        jobmanager or JobManagerConfig(),
        listen="tcp://127.0.0.1:0",
        folder=folder,
        secret=secret,
        load_balance=load_balance,
        slot_timeout_s=slot_timeout_s,
    )
    longest: tuple[str, ...] = ()
    if max_record_bytes is not None:
        NetworkConfig(max_record_bytes=max_record_bytes)  # refused here, not in every child
        longest = ("--max-record", str(max_record_bytes))
    settings = TaskManagerSettings(
        slots=slots,
        memory_bytes=memory_bytes,
        is_restarting=is_restarting,
        flags=("--slots-in", slots_in, *longest, *flags),
    )
    names = [str(number) for number in range(1, taskmanagers + 1)]
    async with (
        open_jobmanager(config) as manager,
        open_local_taskmanagers(
            manager.address, names, settings, secret=secret, on_printed=on_printed, on_logged=on_logged
        ) as children,
    ):
        await wait_registered(children, lambda: len([*manager.taskmanagers.all()]), taskmanagers, START_TIMEOUT_S)
        async with open_job_client(manager.address, secret=secret, name="netstack run") as client:
            yield LocalCluster(manager, children, client)


def memory_for(
    graph: StreamGraph, taskmanagers: int, slots: int, load_balance: LoadBalanceMode = LoadBalanceMode.NONE
) -> int:
    """How much memory each TaskManager is given for network buffers, where nobody says.

    What the job's tasks require in the slot where most of them are, for every slot, a quarter more, and at least
    `MEMORY_BYTES`.

    Args:
        graph: the job.
        taskmanagers: how many there are.
        slots: of each.
        load_balance: how tasks are spread.

    Raises:
        ConfigError: it is no job that could be planned anywhere.
    """
    network = graph.settings.network
    if network is not None:  # of its own, in the memory of each slot
        return max(MEMORY_BYTES, slots * network.memory_bytes)
    plan = make_plan(graph, taskmanagers=taskmanagers * slots, slots=1, mode=load_balance)
    required = 0 if plan.buffers is None else int(plan.buffers.required.max(initial=0))
    return max(MEMORY_BYTES, slots * required * plan.network.segment_size_bytes * 5 // 4)


def run_job(
    job: StreamGraph | StreamEnvironment,
    *,
    taskmanagers: int = 2,
    slots: int = 2,
    memory_bytes: int | None = None,
    load_balance: LoadBalanceMode = LoadBalanceMode.NONE,
    folder: str | None = None,
    from_savepoint: str | None = None,
    allow_non_restored_state: bool = False,
    slots_in: str = "processes",
    max_record_bytes: int | None = None,
) -> JobResult:
    """Runs a job in processes on this machine, to its end; what operators print comes out on standard error.

    Args:
        job: it. Functions of the program that calls this are found when they are in a file.
        taskmanagers: how many processes.
        slots: of each: how many tasks of one slot sharing group it runs.
        memory_bytes: for network buffers, of each; None is what the job requires, and some more.
        load_balance: how tasks are spread.
        folder: where checkpoints are kept afterwards, if the job names no folder; None keeps none.
        from_savepoint: folder of a savepoint to begin from.
        allow_non_restored_state: state there of operators that the job does not have is left behind.
        slots_in: `processes`: each slot is a process; `loop`: all slots of a TaskManager share its event loop.
        max_record_bytes: the longest record; None is the default of `NetworkConfig`.

    Returns:
        How it ended, and what its sinks returned.

    Raises:
        JobFailed: it failed; the text is its root cause.
        RequestRefused: it cannot run.
        LocalProtocolError: called inside trio; there use `open_local_cluster`.

    Ctrl-C ends the processes, and leaves as KeyboardInterrupt.
    """
    if trio.lowlevel.in_trio_run():
        raise LocalProtocolError("run_job blocks, and was called inside trio; use: async with open_local_cluster(...)")

    graph = job.stream_graph() if isinstance(job, StreamEnvironment) else job
    if memory_bytes is None:
        memory_bytes = memory_for(graph, taskmanagers, slots, load_balance)

    async def run() -> JobResult:
        async with open_local_cluster(
            taskmanagers=taskmanagers,
            slots=slots,
            memory_bytes=memory_bytes,
            load_balance=load_balance,
            folder=folder,
            slots_in=slots_in,
            max_record_bytes=max_record_bytes,
            on_printed=_to_stderr,
        ) as cluster:
            job_id = await cluster.client.submit(
                graph, from_savepoint=from_savepoint, allow_non_restored_state=allow_non_restored_state
            )
            return await cluster.wait(job_id)

    return trio.run(run)


def _to_stderr(name: str, line: str) -> None:
    sys.stderr.write(f"{line}\n")
