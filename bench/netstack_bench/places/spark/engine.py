"""`SparkEngine`: makes runs in barrier jobs of a Spark session, several in one where they are announced.

A run gives the document that `netstack_bench.places.local.runner.run_once` gives, and a row for each node.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, final

from netstack.base import build as netstack_build
from netstack.base.units import format_count, format_duration
from netstack.cluster.control.build import own_build
from netstack.network.connection.authentication import Secret
from netstack.spark.classic import ClassicDriver
from netstack.spark.driver import Executors
from netstack.spark.failures import explain, spark_errors
from netstack.spark.interruptible import JobTooSlow, run_job
from netstack.spark.settings import SparkSettings

from ...spec import RunSpec
from ...sweep import PlaceUnusable
from ..conversation import MeasurementFailed
from ..hosts.matrix import Matrix
from .node import HOST_LATENCIES, KINDS, LOST, OK, SETUP, Ending, NodeJob, Row, run_node
from .spec import SparkSpec
from .workload import Workload

_UNTIMED_S: Final = 600.0  # for a run with a number of records instead of seconds
_STRAGGLE_S: Final = 10.0  # nodes end within a second of each other


@final
class SparkEngine:
    """Makes runs on one session, to whose executors the package has been shipped.

    `on_nodes` receives the rows of a run's nodes (`frames.NODE_SCHEMA`), of failed runs too. `session_s` is the time to
    open the session, for the document. `workload` are the user's rows, which replace generated records. `is_usable` is
    False after a failure that every other run would repeat.
    """

    def __init__(
        self,
        spark: Any,
        settings: SparkSettings,
        *,
        on_nodes: Callable[[list[Row]], None] = lambda rows: None,
        session_s: float | None = None,
        workload: Workload | None = None,
    ) -> None:
        self._driver = ClassicDriver(spark)
        self._context = spark.sparkContext
        self._session_s = session_s
        self._workload = workload
        self._java = self._driver.java_version()
        self._settings = settings
        self._on_nodes = on_nodes
        self._version = str(spark.version)
        self._build = own_build()
        self._jobs = 0
        self._last_rate = ""
        self._announced: list[SparkSpec] = []
        self._made: list[tuple[list[Row], dict[str, Any], float]] = []  # of announced runs, in their order
        self._endings = self._driver.collected_lists()
        self.is_usable = True

    def announce(self, specs: Sequence[RunSpec]) -> None:
        """Names the runs that come next: those that can share a barrier job are made by the first of them."""
        self._announced = [self._own(spec) for spec in specs]
        self._made.clear()

    def _own(self, spec: RunSpec) -> SparkSpec:
        return spec if isinstance(spec, SparkSpec) else SparkSpec(**spec.as_dict(), nodes=self._settings.node_count)

    def __call__(self, spec: RunSpec, /) -> dict[str, Any]:
        """Makes one run, with others that were announced as one barrier job.

        Raises:
            MeasurementFailed: the run failed; the text is one sentence.
            PlaceUnusable: the run failed, and every other run on this session would.
            KeyboardInterrupt: the job was cancelled.
        """
        spec = self._own(spec)
        if self._announced[:1] != [spec]:
            self._announced, self._made = [spec], []
        some = self._announced
        self._announced = some[1:]
        if self._made:
            rows, document, scheduling_s = self._made.pop(0)
            return self._document(spec, rows, document, scheduling_s)
        job = self._job(some)
        began_s = time.monotonic()
        try:
            rows = self._collect(spec, job)
        except MeasurementFailed as error:
            self.is_usable = not isinstance(error, PlaceUnusable)
            lost = {"run_id": spec.run_id, "kind": LOST, "error": str(error)}
            self._on_nodes([{**lost, "rank": rank} for rank in range(spec.nodes)])
            raise
        failure = first_failure(rows)
        documents: list[dict[str, Any]] = next((row["documents"] for row in rows if row["documents"]), [])
        if not documents:
            self._on_nodes(node_rows(spec, rows, None))
            hopeless = any(row["kind"] == SETUP for row in rows)
            self.is_usable = not hopeless
            raise PlaceUnusable(failure) if hopeless else MeasurementFailed(failure)
        good = [{**row, "kind": OK, "error": None} for row in rows]
        scheduling_s = (time.monotonic() - began_s - rows[0]["met_s"]) / len(documents)
        self._made = [(good, document, scheduling_s) for document in documents[1:]]
        return self._document(spec, good, documents[0], scheduling_s)

    def _document(
        self, spec: SparkSpec, rows: list[Row], document: dict[str, Any], scheduling_s: float
    ) -> dict[str, Any]:
        self._on_nodes(node_rows(spec, rows, document))
        workload = self._workload
        self._last_rate = f"; the run before: {format_count(document['records_per_s'])} records/s"
        return {
            **document,
            "settings": {**spec.as_dict(), **({"record_bytes": workload.record_bytes} if workload else {})},
            "input": workload.as_dict() if workload else {},
            "spark": {
                "master": self._settings.master,
                "version": self._version,
                "java": self._java,
                "executors": spec.nodes,
                "hosts": len({row["hostname"] for row in rows}),
                "machines": sorted({f"{row['hostname']}: {row['cpus']} x {row['cpu']}" for row in rows}),
                "session_s": self._session_s,
                "scheduling_s": scheduling_s,  # of the barrier job, shared by its runs
            },
        }

    def _job(self, specs: Sequence[SparkSpec]) -> NodeJob:
        settings, spec = self._settings, specs[0]
        return NodeJob(
            runs=tuple(each.run_settings() for each in specs),
            subtasks=spec.subtasks(),
            relay=spec.relay,
            rows_file=self._workload.packed.name if self._workload else None,
            token=Secret.generate().reveal(),
            build=self._build,
            netstack_build=netstack_build.kind,
            memory_bytes=max(Matrix(each.as_mesh()).network().memory_bytes for each in specs),
            ports=settings.node_ports,
            needs_distinct_hosts=settings.needs_distinct_hosts,
            setup_timeout_s=settings.setup_timeout_s,
            deadline_s=sum((each.seconds or _UNTIMED_S) + settings.grace_s / 2 for each in specs),
        )

    def _collect(self, spec: SparkSpec, job: NodeJob) -> list[Row]:
        context, nodes = self._context, spec.nodes
        self._jobs += 1
        group = f"netstack-{os.getpid()}-{id(self):x}-{self._jobs}"
        deadline_s = self._settings.start_timeout_s + job.setup_timeout_s + job.deadline_s
        watch = EndingWatch(nodes, lambda: [each for each in self._endings.value if each.token == job.token])

        def work() -> list[Row]:
            stage = context.parallelize(range(nodes), nodes).barrier()
            rows: list[Row] = stage.mapPartitions(partial(run_node, job, self._endings.add)).collect()
            return rows

        # Spark's UI shows it beside the job. It is fixed when the job starts, so it has the rate of the run before.
        cell = f"{spec.rows}, {spec.channels} channels, timeout {format_duration(spec.buffer_timeout_s)}"
        title = f"netstack-bench of {socket.gethostname()}, run {self._jobs}: {cell}{self._last_rate}"
        try:
            with self._driver.archives_first():
                rows = run_job(context, group, title, work, deadline_s=deadline_s, tick=watch.look)
        except JobTooSlow as error:
            if error.has_begun:
                why = f"nodes are silent: {error}; is a host frozen, overloaded or cut off, or are slots taken?"
            else:
                why = f"the barrier stage never began: {error}; it needs {nodes} slots at once: start more workers"
            raise MeasurementFailed(why + self._also_lost()) from error
        except NodesMissing as error:
            self._give_up(error.hosts)
            raise
        except spark_errors() as error:
            executors = self._driver.executors()
            raise failure_of(error, nodes=nodes, python=context.pythonExec, executors=executors) from error
        return sorted(rows, key=lambda row: int(row["rank"]))

    def _give_up(self, hosts: Collection[str]) -> None:
        """Lets Spark replace lost executors that it considers alive; otherwise it would schedule tasks on them."""
        if not self._settings.is_local:
            for executor in self._driver.executors().active_on(hosts):
                with contextlib.suppress(*spark_errors()):
                    self._driver.replace_executor(executor)

    def _also_lost(self) -> str:
        hosts = self._driver.executors().lost_hosts
        return f" ({', '.join(hosts)} lost the executors it had)" if hosts else ""


@final
class NodesMissing(MeasurementFailed):
    """Nodes on these hosts did not end."""

    def __init__(self, text: str, hosts: Collection[str]) -> None:
        super().__init__(text)
        self.hosts = hosts


@final
class EndingWatch:
    """Finds the nodes that do not end when the others have: Spark notices after a minute, or never.

    `endings` returns the nodes that have ended.
    """

    def __init__(self, nodes: int, endings: Callable[[], Sequence[Ending]]) -> None:
        self._nodes = nodes
        self._endings = endings
        self._known = 0
        self._news_s = 0.0

    def look(self) -> None:
        """Checks the endings; called repeatedly during a run.

        Raises:
            NodesMissing: ten seconds after the last ending some nodes have not ended.
        """
        endings = self._endings()
        if len(endings) != self._known:
            self._known, self._news_s = len(endings), time.monotonic()
        if not 0 < self._known < self._nodes or time.monotonic() - self._news_s < _STRAGGLE_S:
            return
        hosts = next((each.hosts for each in endings if each.hosts), ())
        missing = sorted(set(range(self._nodes)) - {each.rank for each in endings})
        named = ", ".join(f"node {rank}{f' at {hosts[rank]}' if hosts else ''}" for rank in missing)
        reason = next((f" ({each.error})" for each in endings if each.error), "")
        raise NodesMissing(
            f"{named} did not end when the others did: the host is down, frozen or cut off from the network{reason}",
            {hosts[rank] for rank in missing} if hosts else (),
        )


def node_rows(spec: SparkSpec, rows: list[Row], document: dict[str, Any] | None) -> list[Row]:
    """Completes the rows that the nodes of a run returned, and moves the histograms from the document to them.

    The document is None if the run failed.
    """
    result = []
    hosts: list[dict[str, Any]] = [{}] * len(rows) if document is None else document["hosts"]
    nothing: dict[str, Any] = {"buckets": [], "counts": []}
    latencies: list[dict[str, Any]] = [nothing] * len(rows) if document is None else document.pop(HOST_LATENCIES)
    for row, host, latency in zip(rows, hosts, latencies, strict=True):
        result.append(
            {
                "run_id": spec.run_id,
                **{name: row[name] for name in _OF_NODE},
                "kind": row["kind"],
                "error": row["error"],
                **{name: host.get(name) for name in _OF_HOST},
                "seconds": None if document is None else document["seconds"],
                "latency_max_us": latency["max_ns"] / 1000 if latency["buckets"] else None,
                "hist": [
                    {"b": bucket, "n": count}
                    for bucket, count in zip(latency["buckets"], latency["counts"], strict=True)
                ],
            }
        )
    return result


_OF_NODE: Final = (
    "rank",
    "host",
    "hostname",
    "pid",
    "python",
    "build",
    "netstack_build",
    "cpu",
    "cpus",
    "load",
    "kernel",
)
_OF_HOST: Final = (
    *("sources", "sinks", "records", "bytes", "records_per_s", "payload_mb_per_s", "cpu_s"),
    *("local_records_per_s", "clock_offset_us", "clock_uncertainty_us", "congestion_control"),
)


def failure_of(
    error: BaseException, *, nodes: int, python: str, executors: Executors | None = None
) -> MeasurementFailed:
    """Explains an error of py4j or pyspark: `PlaceUnusable` if every other run would fail in the same way."""
    failure = explain(error, tasks=nodes, python=python, executors=executors, task="node", fewer="lower --nodes")
    return PlaceUnusable(failure.text) if failure.is_final else MeasurementFailed(failure.text)


def first_failure(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the likeliest root cause among the nodes' rows; empty if no node failed."""
    failed = sorted((row for row in rows if row["kind"] != OK), key=lambda row: KINDS.index(row["kind"]))
    if not failed:
        return ""
    row = failed[0]
    text = str(row["error"])
    where = f"node {row['rank']} at {row['host']}"
    return text if text.startswith("node ") or row["kind"] == SETUP else f"{where}: {text}"
