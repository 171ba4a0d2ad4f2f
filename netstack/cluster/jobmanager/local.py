"""A local cluster: a JobManager in this process, TaskManagers as child processes.

Takes: a job. Gives: its result. It needs no setup and leaves nothing behind.

    result = netstack.run_job(environment, taskmanagers=2, slots=2)
    print(result.results["counts"])

It uses the same scheduler, messages and processes as a cluster of many hosts.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, final

import trio

from ...base.config import MIB, NetworkConfig
from ...base.errors import ConfigError, JobFailed, LocalProtocolError
from ...network.connection.authentication import Secret
from ...schedule.graph.stream_builder import StreamEnvironment
from ...schedule.graph.stream_graph import StreamGraph
from ...schedule.plan.labels import buffers_problem
from ...schedule.plan.plan import SlotsIn, make_plan
from ...schedule.slots.slots import LoadBalanceMode
from ..function_loading import refuse_while_importing
from .children import Lines, LocalTaskManagers, TaskManagerSettings, open_local_taskmanagers, wait_registered
from .client import JobClient, JobResult, graph_of, open_job_client
from .config import JobManagerConfig
from .service import JobManager, open_jobmanager

MEMORY_BYTES: Final = 64 * MIB
"""Default memory for the network buffers of each TaskManager."""

START_TIMEOUT_S: Final = 60.0
"""Limit for all TaskManagers to register, generous for a busy machine."""


@final
@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A running local cluster; created by `open_local_cluster`.

    Attributes:
        jobmanager: the JobManager in this process.
        taskmanagers: the TaskManager processes.
        client: a client of the JobManager.
    """

    jobmanager: JobManager
    taskmanagers: LocalTaskManagers
    client: JobClient

    async def wait(self, job_id: str) -> JobResult:
        """Waits for the end of a job, like `JobClient.wait`; the error names a process that died.

        Raises:
            JobFailed: the job failed.
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
    """Runs a local cluster while the block runs; entered when all TaskManagers have registered.

    Args:
        taskmanagers: number of TaskManager processes.
        slots: slots of each TaskManager.
        memory_bytes: memory for network buffers of each TaskManager.
        load_balance: how tasks are spread.
        folder: where the JobManager stores jobs and checkpoints; None: a temporary folder.
        slot_timeout_s: how long a job waits for slots.
        is_restarting: whether a TaskManager that dies is restarted.
        slots_in: `processes`: each slot is a process; `loop`: all slots of a TaskManager share its event loop.
        max_record_bytes: length of the longest record; None: the default of `NetworkConfig`.
        flags: additional flags of `netstack taskmanager`.
        jobmanager: other settings of the JobManager; the arguments here take precedence.
        on_printed: receives the name of a TaskManager and a line that an operator printed or logged as a warning there.
        on_logged: receives the name of a TaskManager and a line of its log.

    Raises:
        NetstackError: a TaskManager cannot be started; the text contains its last log line.
        ConfigError: another JobManager uses the folder, or the module of a job that is being imported calls this.

    Cancellation, like the end of the block, ends all processes.
    """
    refuse_while_importing("open_local_cluster")
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
        NetworkConfig(max_record_bytes=max_record_bytes)  # raises here instead of in every child
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
    graph: StreamGraph,
    taskmanagers: int,
    slots: int,
    load_balance: LoadBalanceMode = LoadBalanceMode.NONE,
    slots_in: str = "processes",
) -> int:
    """Returns the default memory for network buffers of each TaskManager.

    It is the requirement of the fullest process, for every one, plus a quarter, and at least `MEMORY_BYTES`.

    Raises:
        ConfigError: the job cannot be planned.
    """
    network = graph.settings.network
    if network is not None:  # the job's own network environment, in the memory of each slot
        return max(MEMORY_BYTES, slots * network.memory_bytes)
    plan = make_plan(graph, taskmanagers=taskmanagers, slots=slots, mode=load_balance, slots_in=SlotsIn(slots_in))
    required = 0 if plan.buffers is None else int(plan.buffers.required.max(initial=0))
    return max(MEMORY_BYTES, plan.processes * required * plan.network.segment_size_bytes * 5 // 4)


def check_memory(
    graph: StreamGraph,
    taskmanagers: int,
    slots: int,
    memory_bytes: int,
    load_balance: LoadBalanceMode = LoadBalanceMode.NONE,
    slots_in: str = "processes",
    acts_as: str = "netstack",
) -> None:
    """Checks that the job has enough network buffers in TaskManagers with this memory.

    Raises:
        ConfigError: buffers are missing; the text says how many, and where.
    """
    plan = make_plan(
        graph,
        taskmanagers=taskmanagers,
        slots=slots,
        mode=load_balance,
        network=NetworkConfig.acting_as(acts_as, memory_bytes=memory_bytes),
        slots_in=SlotsIn(slots_in),
    )
    problem = buffers_problem(plan)
    if problem:
        raise ConfigError(f"the job does not fit: {problem}")


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
    """Runs a job to its end in processes on this machine; output of operators appears on standard error.

    Args:
        job: the job. Its functions must be in files, not in an interactive session.
        taskmanagers: number of TaskManager processes.
        slots: slots of each TaskManager: the number of tasks of one slot sharing group that it runs.
        memory_bytes: memory for network buffers of each TaskManager; None: what the job requires, and some more.
        load_balance: how tasks are spread.
        folder: where checkpoints are stored if the job names no folder; None: they are removed at the end. A job that
            an earlier run left there is not continued: give its checkpoint as `from_savepoint`.
        from_savepoint: folder of a savepoint from which the job starts.
        allow_non_restored_state: whether state of operators that the job does not have may be dropped.
        slots_in: `processes`: each slot is a process; `loop`: all slots of a TaskManager share its event loop.
        max_record_bytes: length of the longest record; None: the default of `NetworkConfig`.

    Returns:
        The final state and the results of the sinks.

    Raises:
        JobFailed: the job failed; the text is its root cause.
        ConfigError: the job needs more slots, or its own module calls this while it is imported.
        RequestRefused: the job cannot run.
        LocalProtocolError: called inside trio; use `open_local_cluster` there.

    Ctrl-C ends all processes and raises KeyboardInterrupt.
    """
    if trio.lowlevel.in_trio_run():
        raise LocalProtocolError("run_job blocks, and was called inside trio; use: async with open_local_cluster(...)")

    refuse_while_importing("run_job")
    graph = graph_of(job)
    plan = make_plan(graph, taskmanagers=taskmanagers, slots=slots, mode=load_balance)
    if plan.problem:  # no other TaskManager will register with this cluster
        raise ConfigError(f"taskmanagers={taskmanagers}, slots={slots}: {plan.problem}")
    if memory_bytes is None:
        memory_bytes = memory_for(graph, taskmanagers, slots, load_balance, slots_in)
    else:
        check_memory(graph, taskmanagers, slots, memory_bytes, load_balance, slots_in)

    async def run() -> JobResult:
        async with open_local_cluster(
            taskmanagers=taskmanagers,
            slots=slots,
            memory_bytes=memory_bytes,
            load_balance=load_balance,
            folder=folder,
            slots_in=slots_in,
            max_record_bytes=max_record_bytes,
            jobmanager=JobManagerConfig(takes_up_jobs=False),
            on_printed=_to_stderr,
        ) as cluster:
            job_id = await cluster.client.submit(
                graph, from_savepoint=from_savepoint, allow_non_restored_state=allow_non_restored_state
            )
            return await cluster.wait(job_id)

    return trio.run(run)


def _to_stderr(name: str, line: str) -> None:
    sys.stderr.write(f"{line}\n")
