"""A node of some runs: a TaskManager inside a task of a barrier stage; the node of rank 0 also leads the runs.

A node listens, exchanges addresses once (each `allGather` takes a second and is no start signal), and then serves. The
node of rank 0 has the JobManager, which connects to every TaskManager, its own included, and runs the same mesh as
`--hosts`; the others serve until it disconnects. An error before the exchange is exchanged with the addresses, so every
node has it at once. Each node returns one row, also after a failure.

Rules: nothing depends on cleanup, because Spark ends a cancelled node by SIGKILL. Every wait has a deadline.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import trio

from netstack.base import build as netstack_build
from netstack.base.causes import cause_text, is_secondary, root_cause
from netstack.base.config import MIB
from netstack.base.errors import NetstackError
from netstack.cluster.control.build import own_build
from netstack.cluster.taskmanager.config import TaskManagerConfig
from netstack.cluster.taskmanager.fork_server import die_with_parent
from netstack.cluster.taskmanager.runner import open_taskmanager
from netstack.cluster.taskmanager.service import TaskManager
from netstack.network.connection.authentication import Secret
from netstack.spark.barrier import BarrierTask

from ...host import cpu_model
from ..hosts.coordinator import measure_mesh, open_mesh
from ..hosts.result import document_of, host_latencies
from ..hosts.spec import MeshSpec

SETUP: Final = "setup"
FAULT: Final = "fault"
TIMEOUT: Final = "timeout"
PEER: Final = "peer"
OK: Final = "ok"
LOST: Final = "lost"
KINDS: Final = (SETUP, FAULT, TIMEOUT, PEER, LOST, OK)
"""The ways in which a node ends, the likelier root cause first. A lost node has returned nothing."""

INVOKABLES: Final = ("netstack_bench.places.hosts.invokables:",)
_PACKED: Final = "netstack_bench.arrow_input"

HOST_LATENCIES: Final = "host_latencies"
"""The key of the hosts' histograms in the document that rank 0 returns, in the order of ranks."""

Row = dict[str, Any]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJob:
    """The settings of all nodes of some runs, which are made one after the other.

    `setup_timeout_s` is the longest time for everything before the runs, `deadline_s` that of all runs.
    """

    runs: tuple[dict[str, Any], ...]  # a `RunSpec` each, as plain data
    subtasks: tuple[tuple[int, int], ...]  # the sources and sinks of each node, by rank
    relay: bool = False
    rows_file: str | None = None  # with the user's rows, which Spark distributes; None generates records
    token: bytes = b""  # the shared secret of this run, at least 16 bytes
    build: str = ""  # `own_build` of the driver, which every node must run; empty disables the check
    netstack_build: str = ""  # `compiled` or `python`, likewise
    memory_bytes: int = 256 * MIB
    ports: tuple[int, int] | None = None  # the first and the last to listen on; None is any
    needs_distinct_hosts: bool = False
    setup_timeout_s: float = 20.0
    deadline_s: float = 60.0


def run_node(job: NodeJob, report: Callable[[list[Any]], None], _: Iterator[Any]) -> Iterator[Row]:
    """Runs a node in `mapPartitions`.

    `report` receives the node's `Ending` at once; Spark delivers the rows when all nodes have ended.
    """
    from pyspark import SparkFiles

    _begin_session()
    if job.rows_file is not None:  # kept in the module that the invokables import
        importlib.import_module(_PACKED).keep(job.rows_file, Path(SparkFiles.get(job.rows_file)))
    task = BarrierTask.current()
    node = Node(job, task)
    row = trio.run(node.work)
    report([Ending(job.token, task.rank, row["error"], node.hosts)])
    yield row


def _begin_session() -> None:
    """Starts a process session for a Python worker, like those of the processes of other engines and slots.

    Linux divides a busy machine's processors among sessions (autogroup): a JVM and its workers would have one share.
    """
    with contextlib.suppress(PermissionError):  # an earlier run has started it
        os.setsid()
    die_with_parent(os.getppid())  # Spark's daemon signals only its own session when it ends


@final
@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a node."""

    token: bytes  # the secret of its run
    rank: int
    error: str | None
    hosts: tuple[str, ...]  # of all nodes, by rank; empty if the addresses were not exchanged


@final
class Node:
    """A node of a run; rank 0 leads. `hosts` has the hosts of all nodes, by rank, after the exchange of addresses."""

    def __init__(self, job: NodeJob, task: BarrierTask) -> None:
        self._job = job
        self._task = task
        self.hosts: tuple[str, ...] = ()
        self._row: Row = {
            "rank": task.rank,
            "host": task.host,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "python": platform.python_version(),
            "build": own_build(),
            "netstack_build": netstack_build.kind,
            "why_python": netstack_build.reason,
            "cpu": cpu_model(),
            "cpus": os.cpu_count() or 1,
            "kernel": platform.release(),
            "load": os.getloadavg()[0],
            "kind": OK,
            "error": None,
            "traceback": None,
            "documents": [],  # of the runs that succeeded; they end with the first that did not
            "met_s": 0.0,  # since the exchange of addresses; the time before is Spark's scheduling
        }

    async def work(self) -> Row:
        """Returns the node's row, also after a failure."""
        async with AsyncExitStack() as stack:
            daemon: TaskManager | None = None
            try:
                daemon = await self._listen(stack)
            except (NetstackError, OSError) as error:
                self._fail(SETUP, cause_text(error))
            peers = await self._meet(daemon)
            self.hosts = tuple(str(peer["host"]) for peer in peers)
            met_s = trio.current_time()
            problem = self._problem(peers)
            if problem:
                self._fail(SETUP, problem)
            elif daemon is not None:
                await self._run(daemon, [str(peer["address"]) for peer in peers])
            self._row["met_s"] = trio.current_time() - met_s
        return self._row

    async def _listen(self, stack: AsyncExitStack) -> TaskManager:
        first, last = self._job.ports or (0, 0)
        for port in range(first, last + 1):
            config = TaskManagerConfig(
                listen=f"tcp://{self._task.host}:{port}",
                name=self._task.host if self._job.needs_distinct_hosts else f"node {self._task.rank}",
                slots=max(self._job.subtasks[self._task.rank]),
                memory_bytes=self._job.memory_bytes,
                secret=Secret(self._job.token),
                allow=INVOKABLES,  # the shipped package declares no entry points
            )
            try:
                return await stack.enter_async_context(open_taskmanager(config))
            except OSError as error:
                if port < last:
                    continue
                if last:
                    raise OSError(f"no port of --node-ports {first}-{last} is free: {error}") from error
                raise
        raise AssertionError("the loop returns or raises")

    async def _meet(self, daemon: TaskManager | None) -> list[Row]:
        """Exchanges addresses and builds with all nodes."""
        names = ("rank", "host", "hostname", "python", "build", "netstack_build", "why_python", "error")
        hello = {name: self._row[name] for name in names}
        hello["address"] = "" if daemon is None else daemon.address.partition("://")[2]
        return await trio.to_thread.run_sync(self._task.meet, hello, abandon_on_cancel=True)

    def _problem(self, peers: Sequence[Row]) -> str:
        """Returns what prevents the run, the same text in every node; empty if nothing does."""
        for peer in peers:
            if peer["error"]:
                return f"node {peer['rank']} at {peer['host']}: {peer['error']}"
        for peer in peers:
            if self._job.build and peer["build"] != self._job.build:
                return (
                    f"node {peer['rank']} at {peer['host']} runs build {peer['build']} of netstack, the driver"
                    f" {self._job.build}: the driver's archive must come first in the path of the worker's Python"
                )
        for peer in peers:
            if self._job.netstack_build and peer["netstack_build"] != self._job.netstack_build:
                return (
                    f"node {peer['rank']} at {peer['host']} runs the {peer['netstack_build']} build, the driver the"
                    f" {self._job.netstack_build} one ({peer['why_python']}): NETSTACK_PURE=1 makes all run Python"
                )
        for what in ("build", "python"):
            hosts_by_value = {str(peer[what]): f"{peer['hostname']} ({peer['host']})" for peer in peers}
            if len(hosts_by_value) > 1:
                values = ", ".join(f"{value} on {where}" for value, where in hosts_by_value.items())
                return f"nodes differ in their {what}: {values}; install the same on every worker"
        hosts = [str(peer["host"]) for peer in peers]
        if self._job.needs_distinct_hosts and len(set(hosts)) < len(hosts):
            return (
                f"two nodes are on one host ({', '.join(hosts)}): start a worker on every host, or allow it with"
                " --shared-hosts"
            )
        return ""

    async def _run(self, daemon: TaskManager, addresses: Sequence[str]) -> None:
        job = self._job
        try:
            with trio.fail_after(job.setup_timeout_s + job.deadline_s):
                if self._task.rank:
                    await daemon.wait_served()
                else:
                    await self._lead(addresses)
        except trio.TooSlowError:
            limit_s = job.setup_timeout_s + job.deadline_s
            self._fail(TIMEOUT, f"node {self._task.rank} had not ended after {limit_s:g} s")
        except BaseException as error:
            root = root_cause(error)
            if not isinstance(root, Exception):
                raise
            self._fail(PEER if isinstance(root, OSError) or is_secondary(root) else FAULT, cause_text(root))
            self._row["traceback"] = "".join(traceback.format_exception(root))

    async def _lead(self, addresses: Sequence[str]) -> None:
        job = self._job
        counts = zip(addresses, job.subtasks, strict=True)
        hosts = tuple(f"{address}={sources}/{sinks}" for address, (sources, sinks) in counts)
        specs = [MeshSpec(**each, hosts=hosts, relay=job.relay, rows_file=job.rows_file) for each in job.runs]
        async with open_mesh(
            specs[0], secret=Secret(job.token), name="node 0", connect_timeout_s=job.setup_timeout_s
        ) as mesh:
            for spec in specs:
                outcome = await measure_mesh(spec, mesh)
                latencies = [histogram.to_dict() for histogram in host_latencies(outcome)]
                self._row["documents"].append({**document_of(outcome, "spark"), HOST_LATENCIES: latencies})

    def _fail(self, kind: str, text: str) -> None:
        if self._row["error"] is None:
            self._row["kind"], self._row["error"] = kind, text
