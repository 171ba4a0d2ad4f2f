"""`run(spark, job)`: a job whose TaskManagers are the tasks of a barrier stage, its JobManager here in the driver.

Takes: a session, a job. Gives: how it ended; `open_spark_cluster` is what `netstack run --on spark` stands on too.

Hosts, resources and code are Spark's to bring; placement, channels, checkpoints and failover are netstack's, as with
TaskManagers that came in any other way. Each task of the stage is one TaskManager, which registers and serves until the
stage is cancelled. When Spark loses one of them it ends the whole stage (that is what a barrier is):
the stage is started again, its TaskManagers register anew, and the job goes on from its newest checkpoint.

Rules: the driver's address is reached from every executor. The connections have a secret of this run's own. Tasks are
ended by SIGKILL, which no TaskManager minds.
"""

from __future__ import annotations

import dataclasses
import functools
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, final

import trio

from ..config import MIB
from ..errors import ConfigError, LocalProtocolError, NetstackError
from ..jobmanager.client import JobClient, JobResult, open_job_client, packages_of
from ..jobmanager.config import JobManagerConfig
from ..jobmanager.service import JobManager, open_jobmanager
from ..runtime.authentication import Secret
from ..runtime.threads import background_tasks
from ..schedule.graph.stream_builder import StreamEnvironment
from ..schedule.graph.stream_graph import StreamGraph
from ..schedule.slots.slots import LoadBalanceMode
from ..taskmanager.config import TaskManagerConfig
from ..taskmanager.fork_server import start_fork_server
from ..taskmanager.runner import open_taskmanager
from ..taskmanager.slot_process import slot_main
from ..taskmanager.slot_processes import SlotProcesses
from ..taskmanager.slot_settings import SlotSettings
from .barrier import BarrierTask
from .classic import ClassicDriver
from .driver import check_version, driver_of
from .exchange_frame import check_session
from .failures import FailureExplanation, SparkFailed, explain, spark_errors
from .ship import import_anew, ship, ship_package

_OWN: Final = frozenset({"netstack"})
_PAUSE_S: Final = 1.0
_LOOK_S: Final = 0.2
_END_S: Final = 10.0
_CANCEL_AGAIN_S: Final = 0.5


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManagerJob:
    """What every task of the stage is given.

    Attributes:
        jobmanager: where to register.
        token: the secret of this run.
        slots: of each TaskManager.
        memory_bytes: for network buffers, of each.
        slots_in: `processes` or `loop`.
        max_record_bytes: the longest record; None is the default.
        archives: of packages that were sent, by their names.
    """

    jobmanager: str
    token: bytes = field(repr=False)
    slots: int
    memory_bytes: int
    slots_in: str = "processes"
    max_record_bytes: int | None = None
    archives: dict[str, str] = field(default_factory=dict)


def serve_taskmanager(job: TaskManagerJob, _: Iterator[Any]) -> Iterator[Any]:
    """What `mapPartitions` is given: a TaskManager, until Spark ends it."""
    task = BarrierTask.current()
    import_anew(job.archives)
    config = TaskManagerConfig(
        listen=f"tcp://{task.host}:0",
        jobmanager=job.jobmanager,
        name=f"spark-{task.rank}",
        slots=job.slots,
        memory_bytes=job.memory_bytes,
        secret=Secret(job.token),
        allow=("*",),  # whoever has the secret of this run has made it
    )

    if job.max_record_bytes is not None:
        network = dataclasses.replace(config.network, max_record_bytes=job.max_record_bytes)
        config = dataclasses.replace(config, network=network)
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
        job: it.
        taskmanagers: tasks of the stage; None is as many as the session has slots.
        slots: of each TaskManager: how many tasks of one slot sharing group it runs.
        memory_bytes: for network buffers, of each.
        folder: where the JobManager keeps jobs and checkpoints; None keeps none.
        from_savepoint: folder of a savepoint to begin from.
        allow_non_restored_state: state there of operators that the job does not have is left behind.
        slots_in: `processes`: each slot is a process; `loop`: the slots of a TaskManager share one event loop.
        max_record_bytes: the longest record; None is the default of `NetworkConfig`.
        ship_packages: packages and modules that executors do not have; None is all that the job's functions are in.
        start_timeout_s: for TaskManagers to come, at the start and after one was lost.

    Returns:
        How it ended, and what its sinks returned.

    Raises:
        JobFailed: it failed; the text is its root cause.
        SparkFailed: the stage cannot be run, in one sentence.
        ConfigError: the session runs no barrier stages.
        LocalProtocolError: called inside trio.

    Ctrl-C cancels the stage and leaves as KeyboardInterrupt.
    """
    if trio.lowlevel.in_trio_run():
        raise LocalProtocolError("netstack.spark.run blocks, and was called inside trio; call it in a thread")
    graph = job.stream_graph() if isinstance(job, StreamEnvironment) else job

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
    """See `open_spark_cluster`, which makes one.

    Attributes:
        jobmanager: in this process.
        client: connected to it.
    """

    jobmanager: JobManager
    client: JobClient

    async def wait(self, job_id: str) -> JobResult:
        """As `JobClient.wait`."""
        return await self.client.wait(job_id)


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
    on_lost: Callable[[str], None] = lambda why: None,
) -> AsyncIterator[SparkCluster]:
    """A cluster of this process and the tasks of a barrier stage, for as long as the block runs.

    Args:
        spark: as in `run`, like the others.
        taskmanagers: see there.
        slots: see there.
        memory_bytes: see there.
        load_balance: how tasks are spread.
        folder: see there.
        slots_in: see there.
        max_record_bytes: see there.
        packages: by name or path, for executors that do not have them.
        start_timeout_s: see there.
        on_lost: told why a stage has ended, which is then started again.

    Raises:
        SparkFailed: the stage cannot be run.
        ConfigError: the session runs no barrier stages, or a package is not there.

    Cancellation, and the end of the block: the stage is cancelled.
    """
    check_version(what="a job on Spark")
    if not isinstance(driver_of(spark), ClassicDriver):
        raise ConfigError("a job on Spark needs a classic session: Spark Connect does not say what became of its tasks")
    driver = ClassicDriver(spark)
    check_session(driver)
    context = spark.sparkContext
    count = taskmanagers or driver.slots()
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
    )
    try:
        async with AsyncExitStack() as stack:
            jobmanager = await stack.enter_async_context(open_jobmanager(config))
            what = TaskManagerJob(
                jobmanager=jobmanager.address,
                token=secret.reveal(),
                slots=slots,
                memory_bytes=memory_bytes,
                slots_in=slots_in,
                max_record_bytes=max_record_bytes,
                archives=archives,
            )
            stage = _Stage(spark, what, count)
            stack.callback(stage.end)
            nursery = await stack.enter_async_context(background_tasks())
            nursery.start_soon(_keep, stage, start_timeout_s, on_lost)
            client = await stack.enter_async_context(open_job_client(jobmanager.address, secret=secret))
            yield SparkCluster(jobmanager, client)
    except BaseExceptionGroup as group:
        raise _first(group) from None


def shippable_packages(graph: StreamGraph) -> set[str]:
    """The packages, or modules, that a job's functions are in and netstack is not."""
    return packages_of(graph) - _OWN - sys.stdlib_module_names


@final
class _Stage:
    """The stage, in a thread of its own: a call into the JVM blocks until its job is over."""

    def __init__(self, spark: Any, what: TaskManagerJob, count: int) -> None:
        self._driver = ClassicDriver(spark)
        self._context = spark.sparkContext
        self._what = what
        self._count = count
        self._group = f"netstack-run-{secrets.token_hex(6)}"
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Whether none runs."""
        return self._thread is None or not self._thread.is_alive()

    def start(self) -> None:
        """Starts it, again if it is over."""
        from pyspark import InheritableThread

        self.failure = None
        self._thread = InheritableThread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Cancels it and waits for its end; again and again, since Spark forgets a group that has no job yet."""
        until_s = time.monotonic() + _END_S
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < until_s:
            self._context.cancelJobGroup(self._group)
            self._thread.join(_CANCEL_AGAIN_S)

    def explain(self) -> FailureExplanation:
        """Why it ended, and whether it would do so again."""
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
                stage.mapPartitions(functools.partial(serve_taskmanager, self._what)).collect()
        except spark_errors() as error:
            self.failure = error


async def _keep(stage: _Stage, patience_s: float, on_lost: Callable[[str], None]) -> None:
    """Keeps the stage running.

    Args:
        stage: not started yet.
        patience_s: how long a cluster that has lost slots may take to have as many again.
        on_lost: told why it ended.

    Raises:
        SparkFailed: it cannot be.
    """
    lost_s: float | None = None  # when slots that there were went
    while True:
        began_s = time.monotonic()
        stage.start()
        while not stage.is_over:  # noqa: ASYNC110 - a thread of Spark's
            await trio.sleep(_LOOK_S)
        found = stage.explain()
        if not found.is_shortage:
            lost_s = time.monotonic()
        is_waiting = found.is_shortage and lost_s is not None and time.monotonic() - lost_s < patience_s
        if found.is_final and not is_waiting:
            raise SparkFailed(found.text)
        on_lost(found.text)
        if time.monotonic() - began_s < _PAUSE_S:
            await trio.sleep(_PAUSE_S)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that says most: of netstack before any other."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        known, _ = found.split(NetstackError)
        found = (known or found).exceptions[0]
    return found
