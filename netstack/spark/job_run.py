"""`run(spark, job)`: runs a job whose TaskManagers are the tasks of a barrier stage, with the JobManager in the driver.

Spark provides hosts, resources and code; netstack provides placement, channels, checkpoints and failover, as for other
TaskManagers. Each task of the stage is a TaskManager, which registers and serves until the stage is cancelled. When an
executor is lost, Spark ends the whole stage, as it does for every barrier stage. The stage is then started again, its
TaskManagers register, and the job continues from its newest checkpoint. `netstack run --on spark` uses
`open_spark_cluster` too.

Rules: the driver's address must be reachable from every executor. The connections use a secret of this run. Spark ends
tasks by SIGKILL, which TaskManagers tolerate.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, final

import trio

from ..base.config import MIB
from ..base.errors import ConfigError, LocalProtocolError, NetstackError
from ..base.own_packages import OWN_PACKAGES
from ..cluster.jobmanager.client import JobClient, JobResult, graph_of, open_job_client, packages_of
from ..cluster.jobmanager.config import JobManagerConfig
from ..cluster.jobmanager.service import JobManager, open_jobmanager
from ..cluster.taskmanager.config import TaskManagerConfig
from ..cluster.taskmanager.fork_server import start_fork_server
from ..cluster.taskmanager.runner import open_taskmanager
from ..cluster.taskmanager.slot_main import slot_main
from ..cluster.taskmanager.slot_pool import SlotProcesses
from ..cluster.taskmanager.slot_settings import SlotSettings
from ..network.connection.authentication import Secret
from ..network.waiting.threads import background_tasks
from ..schedule.graph.stream_builder import StreamEnvironment
from ..schedule.graph.stream_graph import StreamGraph
from ..schedule.slots.slots import LoadBalanceMode
from .barrier import BarrierTask
from .classic import ClassicDriver
from .driver import check_version
from .drivers import classic_driver
from .exchange_frame import check_session
from .failures import FailureExplanation, SparkFailed, explain, spark_errors
from .ship import import_anew, ship, ship_package

LOGGER: Final = logging.getLogger("netstack.spark")
_PAUSE_S: Final = 1.0
_LOOK_S: Final = 0.2
_END_S: Final = 10.0
_CANCEL_AGAIN_S: Final = 0.5


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManagerJob:
    """The settings of all TaskManagers.

    Attributes:
        token: the secret of this run.
        memory_bytes: the memory for network buffers of each TaskManager.
        slots_in: `processes` or `loop`.
        max_record_bytes: the longest record; None is the default.
        archives: the archives of shipped packages, by package name.
    """

    jobmanager: str
    token: bytes = field(repr=False)
    slots: int
    memory_bytes: int
    slots_in: str = "processes"
    max_record_bytes: int | None = None
    archives: dict[str, str] = field(default_factory=dict)

    def config(self, host: str, rank: int) -> TaskManagerConfig:
        """Returns the settings of the TaskManager in a task. Raises ConfigError if one has a wrong value."""
        if self.slots_in not in ("processes", "loop"):
            raise ConfigError(f"slots_in={self.slots_in!r} is unknown; give processes or loop")
        config = TaskManagerConfig(
            listen=f"tcp://{host}:0",
            jobmanager=self.jobmanager,
            name=f"spark-{rank}",
            slots=self.slots,
            memory_bytes=self.memory_bytes,
            secret=Secret(self.token),
            allow=("*",),  # only this run has the secret
        )
        if self.max_record_bytes is None:
            return config
        return dataclasses.replace(
            config, network=dataclasses.replace(config.network, max_record_bytes=self.max_record_bytes)
        )


def serve_taskmanager(job: TaskManagerJob, _: Iterator[Any]) -> Iterator[Any]:
    """Runs a TaskManager until Spark ends it; the function that `mapPartitions` gets."""
    task = BarrierTask.current()
    import_anew(job.archives)
    config = job.config(task.host, task.rank)
    processes = None
    if job.slots_in == "processes":
        settings = SlotSettings(config=config)
        processes = SlotProcesses(settings, start_fork_server(functools.partial(slot_main, settings)), None)

    async def serve() -> None:
        async with open_taskmanager(config, processes=processes):
            await trio.sleep_forever()

    trio.run(serve)
    yield from ()


def run(
    spark: Any,
    job: StreamGraph | StreamEnvironment,
    *,
    taskmanagers: int | None = None,
    slots: int = 2,
    memory_bytes: int = 64 * MIB,
    folder: str | None = None,
    from_savepoint: str | None = None,
    allow_non_restored_state: bool = False,
    slots_in: str = "processes",
    max_record_bytes: int | None = None,
    ship_packages: Iterable[str] | None = None,
    start_timeout_s: float = 120.0,
) -> JobResult:
    """Runs a job on Spark's executors, to its end.

    Args:
        spark: the session; it needs a slot for each TaskManager.
        job: the job.
        taskmanagers: the number of TaskManagers; None is the number of the session's slots.
        slots: the number of slots of each TaskManager.
        memory_bytes: the memory for network buffers of each TaskManager.
        folder: stores jobs and checkpoints of the JobManager; None stores none. A job that an earlier run left there is
            not continued: give its checkpoint as `from_savepoint`.
        from_savepoint: the folder of a savepoint to restore.
        allow_non_restored_state: whether the savepoint may have state of operators that the job does not have.
        slots_in: `processes`: each slot is a process; `loop`: the slots of a TaskManager share one event loop.
        max_record_bytes: the longest record; None is the default of `NetworkConfig`.
        ship_packages: packages and modules to ship to the executors; None is those of the job's functions.
        start_timeout_s: the longest time for TaskManagers to register, at the start and after one was lost.

    Returns:
        The result of the job, with what its sinks returned.

    Raises:
        JobFailed: the job failed; the text is the root cause.
        SparkFailed: the stage cannot run; the text is one sentence.
        ConfigError: the session cannot run barrier stages, or a setting has a wrong value.
        LocalProtocolError: it was called inside trio.

    Ctrl-C cancels the stage and raises KeyboardInterrupt.
    """
    if trio.lowlevel.in_trio_run():
        raise LocalProtocolError("netstack.spark.run blocks, and was called inside trio: call it in a thread")
    graph = graph_of(job)

    async def main() -> JobResult:
        async with open_spark_cluster(
            spark,
            taskmanagers=taskmanagers,
            slots=slots,
            memory_bytes=memory_bytes,
            folder=folder,
            slots_in=slots_in,
            max_record_bytes=max_record_bytes,
            packages=shippable_packages(graph) if ship_packages is None else ship_packages,
            start_timeout_s=start_timeout_s,
        ) as cluster:
            job_id = await cluster.client.submit(
                graph, from_savepoint=from_savepoint, allow_non_restored_state=allow_non_restored_state
            )
            return await cluster.wait(job_id)

    return trio.run(main)


@final
@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A cluster that `open_spark_cluster` has opened."""

    jobmanager: JobManager
    client: JobClient

    async def wait(self, job_id: str) -> JobResult:
        """Waits for the end of a job, like `JobClient.wait`."""
        return await self.client.wait(job_id)


def _warn(why: str) -> None:
    LOGGER.warning("the TaskManagers have ended and are started again: %s", why)


@asynccontextmanager
async def open_spark_cluster(
    spark: Any,
    *,
    taskmanagers: int | None = None,
    slots: int = 2,
    memory_bytes: int = 64 * MIB,
    load_balance: LoadBalanceMode = LoadBalanceMode.NONE,
    folder: str | None = None,
    slots_in: str = "processes",
    max_record_bytes: int | None = None,
    packages: Iterable[str] = (),
    start_timeout_s: float = 120.0,
    on_lost: Callable[[str], None] = _warn,
) -> AsyncIterator[SparkCluster]:
    """Opens a cluster for a block: a JobManager in this process, and TaskManagers as tasks of a barrier stage.

    Args:
        spark: the session.
        taskmanagers: as for `run`.
        slots: as for `run`.
        memory_bytes: as for `run`.
        load_balance: how tasks are spread over TaskManagers.
        folder: as for `run`.
        slots_in: as for `run`.
        max_record_bytes: as for `run`.
        packages: names or paths of packages to ship.
        start_timeout_s: as for `run`.
        on_lost: called with the reason when a stage has ended and is started again; by default it is logged.

    Raises:
        SparkFailed: the stage cannot run.
        ConfigError: the session cannot run barrier stages, a setting has a wrong value, or a package is missing.

    Cancellation, and the end of the block, cancel the stage.
    """
    check_version(what="a job on Spark")
    driver = classic_driver(spark, "a job on Spark")
    check_session(driver)
    context = spark.sparkContext
    count = driver.slots() if taskmanagers is None else taskmanagers
    if count < 1:
        raise ConfigError(f"taskmanagers={count}; the least is 1")
    secret = Secret.generate()
    host = str(context.getConf().get("spark.driver.host", "127.0.0.1"))
    ship(spark)
    archives = dict(ship_package(spark, package) for package in sorted(packages))
    config = JobManagerConfig(
        listen=f"tcp://{host}:0",
        folder=folder,
        secret=secret,
        load_balance=load_balance,
        slot_timeout_s=start_timeout_s,
        name="spark driver",
        takes_up_jobs=False,
    )
    try:
        async with AsyncExitStack() as stack:
            jobmanager = await stack.enter_async_context(open_jobmanager(config))
            settings = TaskManagerJob(
                jobmanager=jobmanager.address,
                token=secret.reveal(),
                slots=slots,
                memory_bytes=memory_bytes,
                slots_in=slots_in,
                max_record_bytes=max_record_bytes,
                archives=archives,
            )
            settings.config(host, 0)  # refuses wrong values here: a stage that fails is started again
            stage = _Stage(spark, settings, count)
            stack.callback(stage.end)
            nursery = await stack.enter_async_context(background_tasks())
            nursery.start_soon(_keep, stage, start_timeout_s, on_lost)
            client = await stack.enter_async_context(open_job_client(jobmanager.address, secret=secret))
            yield SparkCluster(jobmanager, client)
    except BaseExceptionGroup as group:
        raise _first(group) from None


def shippable_packages(graph: StreamGraph) -> set[str]:
    """Returns the packages and modules of a job's functions, without netstack and the standard library."""
    return packages_of(graph) - {*OWN_PACKAGES} - sys.stdlib_module_names


@final
class _Stage:
    """The stage, in a thread of its own: a call into the JVM blocks until its job has ended."""

    def __init__(self, spark: Any, settings: TaskManagerJob, count: int) -> None:
        self._driver = ClassicDriver(spark)
        self._context = spark.sparkContext
        self._settings = settings
        self._count = count
        self._group = f"netstack-run-{secrets.token_hex(6)}"
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    @property
    def is_over(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def start(self) -> None:
        from pyspark import InheritableThread

        self.failure = None
        self._thread = InheritableThread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Cancels the stage until it has ended; Spark ignores the cancellation of a group that has no job yet."""
        until_s = time.monotonic() + _END_S
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < until_s:
            self._context.cancelJobGroup(self._group)
            self._thread.join(_CANCEL_AGAIN_S)

    def explain(self) -> FailureExplanation:
        if self.failure is None:
            return FailureExplanation("the stage ended", is_final=False)
        return explain(
            self.failure,
            tasks=self._count,
            python=str(self._context.pythonExec),
            executors=self._driver.executors(),
            task="TaskManager",
            fewer="ask for fewer TaskManagers",
        )

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, "netstack TaskManagers")
            stage = self._context.parallelize(range(self._count), self._count).barrier()
            with self._driver.archives_first():
                stage.mapPartitions(functools.partial(serve_taskmanager, self._settings)).collect()
        except spark_errors() as error:
            self.failure = error


async def _keep(stage: _Stage, patience_s: float, on_lost: Callable[[str], None]) -> None:
    """Restarts the stage whenever it ends.

    Args:
        stage: the stage, not started yet.
        patience_s: the longest wait for slots that the cluster has lost.
        on_lost: called with the reason when the stage has ended.

    Raises:
        SparkFailed: the stage cannot run.
    """
    lost_s: float | None = None  # when the cluster lost slots
    while True:
        began_s = time.monotonic()
        stage.start()
        while not stage.is_over:  # noqa: ASYNC110 - a thread of Spark's
            await trio.sleep(_LOOK_S)
        reason = stage.explain()
        if not reason.is_shortage:
            lost_s = time.monotonic()
        is_waiting = reason.is_shortage and lost_s is not None and time.monotonic() - lost_s < patience_s
        if reason.is_final and not is_waiting:
            raise SparkFailed(reason.text)
        on_lost(reason.text)
        if time.monotonic() - began_s < _PAUSE_S:
            await trio.sleep(_PAUSE_S)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of netstack, or else the first error."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        known, _ = error.split(NetstackError)
        error = (known or error).exceptions[0]
    return error
