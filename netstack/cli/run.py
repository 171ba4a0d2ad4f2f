"""The command `netstack run`: a job in processes of this machine, or of Spark's executors, that come and go with it.

Takes: a job. Gives: what its sinks return on standard output; progress on standard error, where that is a terminal.

Rules: nothing is set up before and nothing is left behind. Ctrl-C and SIGTERM cancel the job; a second one does not
wait for its end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import click
import trio

from ..errors import ConfigError, NetstackError, RequestRefused
from ..jobmanager.client import JobClient, JobResult
from ..jobmanager.job_master import JobMaster
from ..jobmanager.local import memory_for, open_local_cluster
from ..jobmanager.service import JobManager
from ..schedule.execution.execution_states import JobState
from ..schedule.graph.stream_graph import StreamGraph
from ..schedule.plan.plan import make_plan
from ..schedule.slots.slots import LoadBalanceMode
from .adaptive_flags import adaptive_flags, with_adaptive
from .job import job_parameters, load_stream_graph, parameters_of
from .job_output import decided_lines, not_restored_line, print_results, result_document
from .jobmanager_flags import json_flag
from .json_document import print_document
from .network_flags import acts_as_flag
from .run_view import RunView
from .values import COUNT, SIZE

if TYPE_CHECKING:
    from ..spark.settings import SparkSettings

_CANCEL_S: Final = 10.0
_LOOK_S: Final = 0.25

_PRINTED: Final = frozenset({"failure", "taskmanager", "blocked"})
"""The entries of a job's log that are printed."""


class JobCluster(Protocol):
    """What a job runs on: a `LocalCluster`, or one of `netstack.spark`."""

    @property
    def jobmanager(self) -> JobManager:
        """In this process."""

    @property
    def client(self) -> JobClient:
        """Connected to it."""

    async def wait(self, job_id: str) -> JobResult:
        """Waits for the job's end, as `JobClient.wait` does."""


@click.command(short_help="A job on this machine, or on Spark, from its beginning to its end.")
@click.argument("job")
@job_parameters
@click.option(
    "--taskmanagers", type=COUNT, help="Processes; if not given one per CPU, or fewer if the job takes fewer."
)
@click.option("--slots", type=COUNT, help="Of each TaskManager; as many as the job takes if not given.")
@click.option(
    "--memory",
    "memory_bytes",
    type=SIZE,
    help="Of each TaskManager, for network buffers; what the job requires, and some more, if not given.",
)
@click.option(
    "--load-balance",
    type=click.Choice([mode.value for mode in LoadBalanceMode]),
    default=LoadBalanceMode.NONE.value,
    show_default=True,
    help="none: exchanges stay local where they can; slots, tasks: spread these.",
)
@click.option(
    "--from", "from_savepoint", metavar="SAVEPOINT", help="Begin from this savepoint or checkpoint, a folder."
)
@click.option(
    "--allow-non-restored-state", is_flag=True, help="With --from: leave behind state of operators JOB does not have."
)
@click.option(
    "--web",
    metavar="ADDR:PORT",
    help="Serve a live page there while the job runs, such as 127.0.0.1:8081; its address is printed.",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep what the live page would show in FILE, for `netstack replay`.",
)
@click.option(
    "--on",
    "where",
    type=click.Choice(["here", "spark"]),
    default="here",
    show_default=True,
    help="Where TaskManagers are: processes of this machine, or tasks of a barrier stage of Spark.",
)
@click.option(
    "--master", metavar="URL", help="Spark's: local[N], spark://HOST:PORT, yarn, k8s://...; local[2] if not given."
)
@click.option(
    "--folder",
    metavar="DIR",
    help="Where jobs and checkpoints are kept; on a cluster one that all its hosts share. Temporary if not given.",
)
@click.option(
    "--slots-in",
    type=click.Choice(["processes", "loop"]),
    default="processes",
    show_default=True,
    help="processes: each slot is a process; loop: the slots of a TaskManager share one event loop.",
)
@click.option(
    "--max-record", "max_record_bytes", type=SIZE, help="The longest record; a longer one fails its task. 256MiB."
)
@acts_as_flag
@adaptive_flags
@click.option("--verbose", is_flag=True, help="Show what TaskManagers log.")
@json_flag
def run(
    job: str,
    input_file: Path | None,
    given: tuple[tuple[str, str], ...],
    taskmanagers: int | None,
    slots: int | None,
    memory_bytes: int | None,
    load_balance: str,
    from_savepoint: str | None,
    allow_non_restored_state: bool,
    web: str | None,
    record: Path | None,
    where: str,
    master: str | None,
    folder: str | None,
    slots_in: str,
    max_record_bytes: int | None,
    acts_as: str | None,
    adaptive: dict[str, int],
    verbose: bool,
    as_json: bool,
) -> int:
    """Runs JOB, named as for `netstack plan`: a JobManager here, TaskManagers as processes, gone when it has ended.

    With --on spark each TaskManager is a task of a barrier stage: hosts, resources and code are Spark's to bring, and
    --taskmanagers is N of local[N], else 2, if not given.

    What operators print appears on standard error; on Spark, in its own output. Exit code 1 if the job fails or is
    stopped.
    """
    if master is not None and where != "spark":
        raise ConfigError("--master goes with --on spark; give that too")
    if acts_as is not None and where != "here":
        raise ConfigError("--as goes with --on here; leave one of the two out")
    if input_file is not None and not input_file.exists():
        raise ConfigError(f"--input {input_file}: there is no such file")
    graph = with_adaptive(load_stream_graph(job, parameters_of(input_file, given)), adaptive)
    mode = LoadBalanceMode(load_balance)
    spark = None if where == "here" else _spark_settings(master, taskmanagers, graph.name)
    taskmanagers, slots = _size(graph, taskmanagers if spark is None else spark.node_count, slots, mode)
    if memory_bytes is None:
        memory_bytes = memory_for(graph, taskmanagers, slots, mode)
    logging.basicConfig(
        level=logging.INFO if verbose else logging.ERROR, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    if allow_non_restored_state and from_savepoint is None:
        raise ConfigError("--allow-non-restored-state goes with --from; give that too")
    if from_savepoint is not None and os.path.exists(from_savepoint):
        from_savepoint = os.path.abspath(from_savepoint)
    embedded = _Run(graph, from_savepoint, allow_non_restored_state=allow_non_restored_state, web=web, record=record)
    began = time.monotonic()
    sizes: Any = {
        "taskmanagers": taskmanagers,
        "slots": slots,
        "memory_bytes": memory_bytes,
        "load_balance": mode,
        "folder": None if folder is None else os.path.abspath(folder),
        "slots_in": slots_in,
        "max_record_bytes": max_record_bytes,
    }
    with contextlib.ExitStack() as stack:
        result = trio.run(
            embedded.main,
            partial(
                open_local_cluster,
                **sizes,
                flags=() if acts_as is None else ("--as", acts_as),
                on_printed=embedded.printed,
                on_logged=embedded.printed if verbose else None,
            )
            if spark is None
            else _on_spark(stack, spark, graph, {**sizes, "on_lost": embedded.lost}),
        )
    if as_json:
        print_document(
            result_document(result)
            | {
                "job": graph.name,
                "taskmanagers": taskmanagers,
                "slots": slots,
                "duration_s": round(time.monotonic() - began, 3),
                "restarts": embedded.restarts,
                "checkpoints_completed": embedded.checkpoints,
                "decided": {
                    vertex["name"]: {"parallelism": vertex["parallelism"], **vertex["decided"]}
                    for vertex in embedded.vertices
                    if vertex["decided"] is not None
                },
            }
        )
    else:
        for line in decided_lines(embedded.vertices):
            click.echo(line, err=True)
        print_results(result.results)
    return 0 if result.state == "finished" else 1


def _spark_settings(master: str | None, taskmanagers: int | None, name: str) -> SparkSettings:
    from ..spark.settings import SparkSettings

    return SparkSettings(
        master=master or SparkSettings().master,
        nodes=taskmanagers,
        nodes_flag="--taskmanagers",
        shared_hosts=True,
        app_name=f"netstack run {name}",
        log_file=os.path.join(tempfile.gettempdir(), f"netstack-run-{os.getpid()}.log"),
    )


def _on_spark(
    stack: contextlib.ExitStack, settings: SparkSettings, graph: StreamGraph, sizes: dict[str, Any]
) -> Callable[[], AbstractAsyncContextManager[JobCluster]]:
    """Opens a session until `stack` ends. Returns what opens a cluster on it."""
    from ..spark.job_run import open_spark_cluster, shippable_packages
    from ..spark.session import check_spark, open_session

    check_spark()
    click.echo(f"starting Spark at {settings.master}; its own output is {settings.log_file}", err=True)
    try:
        spark = stack.enter_context(open_session(settings))
    except KeyboardInterrupt:
        raise NetstackError("stopped by Ctrl-C before the job began") from None
    return partial(open_spark_cluster, spark, **sizes, packages=shippable_packages(graph))


def _size(graph: StreamGraph, taskmanagers: int | None, slots: int | None, mode: LoadBalanceMode) -> tuple[int, int]:
    """How many TaskManagers of how many slots.

    Raises:
        NetstackError: the job does not fit; nobody else will come with more.
    """
    if taskmanagers is None:
        wanted = make_plan(graph, slots=slots, mode=mode).taskmanagers
        taskmanagers = wanted if slots is not None else min(wanted, os.cpu_count() or 1)
    made = make_plan(graph, taskmanagers=taskmanagers, slots=slots, mode=mode)
    if made.problem:
        raise NetstackError(f"it does not fit: {made.problem}")
    return made.taskmanagers, made.slots


@final
class _Run:
    """One run of a job."""

    def __init__(
        self,
        graph: StreamGraph,
        from_savepoint: str | None,
        *,
        allow_non_restored_state: bool = False,
        web: str | None = None,
        record: Path | None = None,
    ) -> None:
        self.restarts = self.checkpoints = self._printed = 0
        self.vertices: list[dict[str, Any]] = []
        self._graph = graph
        self._from_savepoint = from_savepoint
        self._allow_non_restored_state = allow_non_restored_state
        self._web = web
        self._record = record
        self._view = RunView(graph.name)
        self._stopped_by = ""
        self._cluster: JobCluster | None = None
        self._job_id = ""

    async def main(self, open_cluster: Callable[[], AbstractAsyncContextManager[JobCluster]]) -> JobResult:
        """From nothing to its end, and to nothing again."""
        outcome: JobResult | NetstackError | None = None
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_on, signals, nursery)
                try:
                    with self._view:
                        async with open_cluster() as cluster, self._seen(cluster):
                            try:
                                outcome = await self._on(cluster)
                            except NetstackError as error:  # of the job: no group of the page's or the recording's
                                outcome = error
                except NetstackError as error:  # of what it runs on: not inside this nursery's group either
                    outcome = error
                nursery.cancel_scope.cancel()
        if self._stopped_by:
            raise NetstackError(f"stopped by {self._stopped_by}")
        assert outcome is not None
        if isinstance(outcome, NetstackError):
            raise outcome
        return outcome

    @asynccontextmanager
    async def _seen(self, cluster: JobCluster) -> AsyncIterator[None]:
        """The live page and the recording, where they were asked for."""
        async with contextlib.AsyncExitStack() as stack:
            if self._record is not None:
                from ..web.recording import recorded

                await stack.enter_async_context(recorded(self._record, cluster.client.look))
            if self._web is not None:
                from ..web.serve import open_web  # without --web neither hypercorn nor starlette is needed

                url = await stack.enter_async_context(open_web(cluster.jobmanager, self._web))
                click.echo(f"the page is {url}", err=True)
            yield

    async def _on(self, cluster: JobCluster) -> JobResult:
        self._cluster = cluster
        self._job_id = await cluster.client.submit(
            self._graph,
            from_savepoint=self._from_savepoint,
            allow_non_restored_state=self._allow_non_restored_state,
        )
        record = cluster.jobmanager.jobs.find(self._job_id)
        if record.stored.not_restored:
            self._view.print(not_restored_line(record.stored.not_restored))
        master = record.master
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, cluster, master)
            try:
                outcome: JobResult | NetstackError = await cluster.wait(self._job_id)
            except NetstackError as error:
                outcome = error
            nursery.cancel_scope.cancel()
        self._print_news(master)
        if isinstance(outcome, NetstackError):
            raise outcome
        await self._look(cluster)
        return outcome

    async def _watch(self, cluster: JobCluster, master: JobMaster | None) -> None:
        while True:
            if self._view.is_shown:
                await self._look(cluster)
            self._print_news(master)
            await trio.sleep(_LOOK_S)

    def _print_news(self, master: JobMaster | None) -> None:
        """Prints what the job goes on after; what ends it is printed in the end."""
        if master is None:
            return
        happenings = [each for each in master.log.since(self._printed) if each.what in _PRINTED]
        self._printed = master.log.added
        if master.scheduler.state in (JobState.FAILING, JobState.FAILED):
            failures = [number for number, each in enumerate(happenings) if each.what == "failure"]
            del happenings[failures[-1] if failures else 0 :]
        for happening in happenings:
            self._view.print(f"netstack: {happening.text}")

    async def _look(self, cluster: JobCluster) -> None:
        """Shows how the job is doing."""
        try:
            document = await cluster.client.job(self._job_id)
        except RequestRefused:  # more than an answer holds: the job goes on unseen
            return
        self.restarts, self.checkpoints = document["restarts"], document["checkpoints_completed"]
        self.vertices = document["vertices"]
        self._view.show(document, trio.current_time())

    async def _end_on(self, signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
        async for number in signals:
            if self._stopped_by or not self._job_id:
                nursery.cancel_scope.cancel()
            else:
                nursery.start_soon(self._cancel, nursery.cancel_scope)
            self._stopped_by = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name

    async def _cancel(self, scope: trio.CancelScope) -> None:
        assert self._cluster is not None
        with contextlib.suppress(NetstackError), trio.move_on_after(_CANCEL_S):
            await self._cluster.client.cancel(self._job_id)
        scope.cancel()

    def lost(self, why: str) -> None:
        """Says that all TaskManagers went at once, and come again."""
        self._view.print(f"netstack: {why}; TaskManagers are started again")

    def printed(self, name: str, line: str) -> None:
        """Shows a line that an operator printed, or a TaskManager logged."""
        self._view.print(line)
