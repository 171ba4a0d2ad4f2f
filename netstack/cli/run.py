"""The command `netstack run`: runs a job on a temporary cluster on this machine, or on Spark's executors.

Takes: a job. Gives: the results of its sinks on standard output; progress on standard error if that is a terminal.

Rules: the cluster starts and ends with the job. The first Ctrl-C or SIGTERM cancels the job; a second one ends the
command without waiting for the cancellation.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import click
import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ..base.errors import ConfigError, NetstackError, RequestRefused
from ..cluster.jobmanager.client import Document, JobClient, JobResult
from ..cluster.jobmanager.config import JobManagerConfig
from ..cluster.jobmanager.job_master.job_master import JobMaster
from ..cluster.jobmanager.local import check_memory, memory_for, open_local_cluster
from ..cluster.jobmanager.service import JobManager
from ..schedule.execution import JobState
from ..schedule.graph.stream_graph import StreamGraph
from ..schedule.plan.plan import make_plan
from ..schedule.slots.slots import LoadBalanceMode
from .adaptive_flags import adaptive_flags, with_adaptive
from .job import checked_savepoint, job_parameters, load_stream_graph, parameters_of, savepoint_flags
from .job_output import decided_lines, not_restored_line, print_results, result_document, state_text, vertices_table
from .jobmanager_flags import json_flag
from .json_document import print_document
from .network_flags import acts_as_flag, load_balance_flag, max_record_flag, slots_in_flag
from .stopping import StoppedBySignal, note_signal, stopped_by
from .values import COUNT, SIZE

if TYPE_CHECKING:
    from ..spark.settings import SparkSettings

_WINDOW_S: Final = 3.0


@final
class RunView:
    """A live view of one job; a context manager.

    Args:
        console: console to write to; standard error if not given.
    """

    def __init__(self, name: str, console: Console | None = None) -> None:
        self._name = name
        self._console = console or Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._began_s: float | None = None
        self._counts: deque[tuple[float, dict[str, tuple[int, int]]]] = deque()
        if self._console.is_terminal:
            self._live = Live(Text(f"{name}: starting"), console=self._console, transient=True, auto_refresh=False)

    def __enter__(self) -> RunView:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def is_shown(self) -> bool:
        """Whether the console is a terminal."""
        return self._live is not None

    def print(self, line: str) -> None:
        """Prints a line above the view."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, job: Document, now_s: float) -> None:
        """Redraws the view from the job's document."""
        if self._live is not None:
            self._live.transient = job["state"] != "finished"
            self._live.update(self.rendered(job, now_s), refresh=True)

    def rendered(self, job: Document, now_s: float) -> RenderableType:
        """Renders a job's document, with rates over the last three seconds."""
        self._began_s = now_s if self._began_s is None else self._began_s
        counts = {each["name"]: (each["records_in"], each["records_out"]) for each in job["vertices"]}
        self._counts.append((now_s, counts))
        while len(self._counts) > 2 and self._counts[0][0] < now_s - _WINDOW_S:
            self._counts.popleft()
        head = Text.assemble(
            (self._name, "bold"),
            "  ",
            state_text(job["state"]),
            f"  {now_s - self._began_s:.0f} s",
            f"  checkpoints {job['checkpoints_completed']}" if job["checkpoints_completed"] else "",
            (f"  restarts {job['restarts']}", "yellow") if job["restarts"] else "",
        )
        lines: list[RenderableType] = [head]
        if job["waits_for"]:
            lines.append(Text(f"waits for {job['waits_for']}", style="yellow"))
        lines.append(vertices_table(job["vertices"], self._rates(now_s, counts), places=False))
        return Group(*lines)

    def _rates(self, now_s: float, counts: dict[str, tuple[int, int]]) -> dict[str, tuple[float, float]]:
        before_s, before = self._counts[0]
        if now_s <= before_s:
            return {}
        rates = {}
        for name, (came, went) in counts.items():
            came_before, went_before = before.get(name, (0, 0))
            # After a restart the counters begin at 0.
            rates[name] = (
                max(0, came - came_before) / (now_s - before_s),
                max(0, went - went_before) / (now_s - before_s),
            )
        return rates


_CANCEL_S: Final = 10.0
_REFRESH_S: Final = 0.25

_PRINTED: Final = frozenset({"failure", "taskmanager", "blocked"})
"""Kinds of entries of the job's log that are printed."""


class JobCluster(Protocol):
    """The cluster that a job runs on: a `LocalCluster`, or one on Spark."""

    @property
    def jobmanager(self) -> JobManager:
        """The JobManager, which runs in this process."""

    @property
    def client(self) -> JobClient:
        """A client that is connected to the JobManager."""

    async def wait(self, job_id: str) -> JobResult:
        """Waits until the job has ended; see `JobClient.wait`."""


@click.command(short_help="Run a job on this machine or on Spark until it ends.")
@click.argument("job")
@job_parameters
@click.option(
    "--taskmanagers",
    type=COUNT,
    show_default="one per CPU, or fewer if the job needs fewer",
    help="Number of TaskManagers.",
)
@click.option("--slots", type=COUNT, show_default="as many as the job needs", help="Slots of each TaskManager.")
@click.option(
    "--memory",
    "memory_bytes",
    type=SIZE,
    show_default="what the job needs, and a reserve",
    help="Memory for network buffers of each TaskManager.",
)
@load_balance_flag
@savepoint_flags
@click.option(
    "--web",
    metavar="ADDR:PORT",
    help="Serve a live web page at this address, such as 127.0.0.1:8081, while the job runs.",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Record the data of the live web page in FILE, for `netstack replay`.",
)
@click.option(
    "--on",
    "where",
    type=click.Choice(["here", "spark"]),
    default="here",
    show_default=True,
    help="Where TaskManagers run: as processes of this machine, or as tasks of a Spark barrier stage.",
)
@click.option(
    "--master",
    metavar="URL",
    show_default="local[2]",
    help="Spark master: local[N], spark://HOST:PORT, yarn or k8s://...",
)
@click.option(
    "--folder",
    metavar="DIR",
    show_default="a temporary folder",
    help="Folder for jobs and checkpoints. On several hosts it must be a shared one. A job that an earlier run left"
    " there is not continued: start from its checkpoint with --from.",
)
@slots_in_flag
@max_record_flag
@acts_as_flag
@adaptive_flags
@click.option("--verbose", is_flag=True, help="Print the log of the TaskManagers.")
@json_flag
def run(
    job: str,
    input_file: Path | None,
    given: tuple[tuple[str, str], ...],
    taskmanagers: int | None,
    slots: int | None,
    memory_bytes: int | None,
    load_balance: str | None,
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
    """Run JOB on a temporary cluster and print the results of its sinks.

    JOB is MODULE:ATTRIBUTE or a JSON job file, as for `netstack plan`. The JobManager runs in this process and each
    TaskManager in a process of its own; all of them end with the job.

    With --on spark each TaskManager is a task of a Spark barrier stage, and Spark provides hosts, resources and code.
    The default of --taskmanagers is then the N of local[N], else 2.

    Output that operators print, and warnings that they log, go to standard error; on Spark they go to Spark's logs. The
    exit code is 1 if the job fails, and 130 or 143 if Ctrl-C or SIGTERM cancels it.
    """
    if master is not None and where != "spark":
        raise ConfigError("--master requires --on spark; add it, or omit --master")
    if acts_as is not None and where != "here":
        raise ConfigError("--as cannot be combined with --on spark; omit one of them")
    if input_file is not None and not input_file.exists():
        raise ConfigError(f"--input {input_file}: the file does not exist")
    from_savepoint = checked_savepoint(from_savepoint, allow_non_restored_state)
    graph = with_adaptive(load_stream_graph(job, parameters_of(input_file, given)), adaptive)
    mode = LoadBalanceMode(load_balance or "none")
    spark = None if where == "here" else _spark_settings(master, taskmanagers, graph.name)
    taskmanagers, slots = _size(graph, taskmanagers if spark is None else spark.node_count, slots, mode)
    if memory_bytes is None:
        memory_bytes = memory_for(graph, taskmanagers, slots, mode, slots_in)
    else:
        check_memory(graph, taskmanagers, slots, memory_bytes, mode, slots_in, acts_as or "netstack")
    logging.basicConfig(
        level=logging.INFO if verbose else logging.ERROR, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    embedded = _Run(graph, from_savepoint, allow_non_restored_state=allow_non_restored_state, web=web, record=record)
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
                jobmanager=JobManagerConfig(takes_up_jobs=False),
                on_printed=embedded.print_line,
                on_logged=embedded.print_line if verbose else None,
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
                "duration_s": round(embedded.duration_s, 3),
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
    """Opens a Spark session that lasts as long as `stack`. Returns a function that opens a cluster in it."""
    from ..spark.job_run import open_spark_cluster, shippable_packages
    from ..spark.session import check_spark, open_session

    check_spark()
    click.echo(f"starting Spark at {settings.master}; its output goes to {settings.log_file}", err=True)
    try:
        spark = stack.enter_context(open_session(settings))
    except KeyboardInterrupt:
        raise StoppedBySignal(f"stopped by {stopped_by()} before the job started") from None
    return partial(open_spark_cluster, spark, **sizes, packages=shippable_packages(graph))


def _size(graph: StreamGraph, taskmanagers: int | None, slots: int | None, mode: LoadBalanceMode) -> tuple[int, int]:
    """Chooses the number of TaskManagers and of their slots.

    Raises:
        NetstackError: the job needs more slots; no other TaskManager will register with this cluster.
    """
    if taskmanagers is None:
        needed = make_plan(graph, slots=slots, mode=mode).taskmanagers
        taskmanagers = needed if slots is not None else min(needed, os.cpu_count() or 1)
    plan = make_plan(graph, taskmanagers=taskmanagers, slots=slots, mode=mode)
    if plan.problem:
        raise NetstackError(f"the job does not fit: {plan.problem}")
    return plan.taskmanagers, plan.slots


@final
class _Run:
    """One run of a job, from the start of its cluster to the end of the cluster.

    Attributes:
        restarts: how often regions were restarted.
        checkpoints: the number of completed checkpoints.
        duration_s: from the submission of the job to its end; without start and end of the cluster.
        vertices: the job's vertices as the job document lists them.
    """

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
        self.duration_s = 0.0
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
        """Opens the cluster, runs the job and closes the cluster."""
        outcome: JobResult | NetstackError | None = None
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_on, signals, nursery)
                try:
                    with self._view:
                        async with open_cluster() as cluster, self._observed(cluster):
                            try:
                                outcome = await self._run_job(cluster)
                            except NetstackError as error:  # of the job; keeps the page's nursery from wrapping it
                                outcome = error
                except NetstackError as error:  # of the cluster; keeps this nursery from wrapping it
                    outcome = error
                nursery.cancel_scope.cancel()
        if self._stopped_by:
            raise StoppedBySignal(f"stopped by {self._stopped_by}")
        assert outcome is not None
        if isinstance(outcome, NetstackError):
            raise outcome
        return outcome

    @asynccontextmanager
    async def _observed(self, cluster: JobCluster) -> AsyncIterator[None]:
        """Serves the web page and records the job, if the flags say so."""
        async with contextlib.AsyncExitStack() as stack:
            if self._record is not None:
                from ..cluster.web.recording import recorded

                await stack.enter_async_context(recorded(self._record, cluster.client.look))
            if self._web is not None:
                from ..cluster.web.serve import open_web  # without --web neither h11 nor starlette is needed

                url = await stack.enter_async_context(open_web(cluster.jobmanager, self._web))
                click.echo(f"web page: {url}", err=True)
            yield

    async def _run_job(self, cluster: JobCluster) -> JobResult:
        self._cluster = cluster
        began_s = trio.current_time()
        self._job_id = await cluster.client.submit(
            self._graph,
            from_savepoint=self._from_savepoint,
            allow_non_restored_state=self._allow_non_restored_state,
        )
        record = cluster.jobmanager.dispatcher.find(self._job_id)
        if record.stored.not_restored:
            self._view.print(not_restored_line(record.stored.not_restored))
        master = record.master
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, cluster, master)
            try:
                outcome: JobResult | NetstackError = await cluster.wait(self._job_id)
            except NetstackError as error:
                outcome = error
            self.duration_s = trio.current_time() - began_s
            nursery.cancel_scope.cancel()
        self._print_log(master)
        if isinstance(outcome, NetstackError):
            raise outcome
        await self._update_view(cluster)
        return outcome

    async def _watch(self, cluster: JobCluster, master: JobMaster | None) -> None:
        while True:
            if self._view.is_shown:
                await self._update_view(cluster)
            self._print_log(master)
            await trio.sleep(_REFRESH_S)

    def _print_log(self, master: JobMaster | None) -> None:
        """Prints new entries of the job's log, but not the failure that ends the job: `main` raises that one."""
        if master is None:
            return
        entries = [each for each in master.log.since(self._printed) if each.what in _PRINTED]
        self._printed = master.log.added
        if master.scheduler.state in (JobState.FAILING, JobState.FAILED):
            failures = [number for number, each in enumerate(entries) if each.what == "failure"]
            del entries[failures[-1] if failures else 0 :]
        for entry in entries:
            self._view.print(f"netstack: {entry.text}")

    async def _update_view(self, cluster: JobCluster) -> None:
        try:
            document = await cluster.client.job(self._job_id)
        except RequestRefused:  # the document exceeds the size of a response: the job runs without a view
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
            note_signal(number)
            self._stopped_by = stopped_by()

    async def _cancel(self, scope: trio.CancelScope) -> None:
        assert self._cluster is not None
        with contextlib.suppress(NetstackError), trio.move_on_after(_CANCEL_S):
            await self._cluster.client.cancel(self._job_id)
        scope.cancel()

    def lost(self, why: str) -> None:
        """Prints that all TaskManagers were lost at once and are being restarted."""
        self._view.print(f"netstack: {why}; restarting the TaskManagers")

    def print_line(self, name: str, line: str) -> None:
        self._view.print(line)
