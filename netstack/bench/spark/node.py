"""One node of a run: a TaskManager inside a task of a barrier stage; the first also leads the run.

Takes: the job as plain data, an `allGather`. Gives: one row a node, also when something failed.

In order: bind and listen; exchange addresses, once (each `allGather` costs a second, and is no start signal); the node
of rank 0 has the JobManager, which adopts every daemon, its own included, and runs the same mesh as `--hosts` does; the
others serve until it has gone. What goes wrong before the exchange travels inside it, so every node learns of it at
once.

Rules: nothing depends on cleaning up: Spark ends a cancelled node by SIGKILL. Every wait has a deadline.
"""

from __future__ import annotations

import contextlib
import importlib
import json
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

from netstack import build as netstack_build
from netstack.config import MIB
from netstack.control.build import own_build
from netstack.errors import NetstackError
from netstack.runtime.authentication import Secret
from netstack.runtime.causes import cause_text, is_secondary, root_cause
from netstack.taskmanager.config import TaskManagerConfig
from netstack.taskmanager.fork_server import die_with_parent
from netstack.taskmanager.runner import open_taskmanager
from netstack.taskmanager.service import TaskManager

from ..host import cpu_model
from ..mesh.cluster import open_mesh
from ..mesh.coordinator import measure_mesh
from ..mesh.result import document_of, host_latencies
from ..mesh.spec import MeshSpec

SETUP: Final = "setup"
FAULT: Final = "fault"
TIMEOUT: Final = "timeout"
PEER: Final = "peer"
OK: Final = "ok"
LOST: Final = "lost"
KINDS: Final = (SETUP, FAULT, TIMEOUT, PEER, LOST, OK)
"""How a node ended, the likelier root cause first; of one that is lost there is no word."""

INVOKABLES: Final = ("netstack.bench.mesh.invokables:",)
_PACKED: Final = "netstack.bench.packed"

HOST_LATENCIES: Final = "host_latencies"
"""Histograms of hosts, in the order of ranks: on their way to the driver they are in the document."""

Row = dict[str, Any]
AllGather = Callable[[str], Sequence[str]]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJob:
    """What every node of a run is given.

    Attributes:
        settings: a `RunSpec`, as plain data.
        subtasks: sources and sinks of each node, by rank.
        relay: whether records make a round trip.
        rows_file: of the user's rows, which Spark has brought; None generates records.
        token: shared by the nodes of this run only, at least 16 bytes.
        build: of the code the driver has, which every node must run; empty is not compared.
        netstack_build: whether the driver's data path is compiled, as every node's must be; empty is not compared.
        memory_bytes: network buffers a node may use.
        ports: first and last port a node may listen on; None is any.
        needs_distinct_hosts: whether two nodes on one host are an error.
        setup_timeout_s: for everything before the run.
        deadline_s: for the run.
    """

    settings: dict[str, Any]
    subtasks: tuple[tuple[int, int], ...]
    relay: bool = False
    rows_file: str | None = None
    token: bytes = b""
    build: str = ""
    netstack_build: str = ""
    memory_bytes: int = 256 * MIB
    ports: tuple[int, int] | None = None
    needs_distinct_hosts: bool = False
    setup_timeout_s: float = 20.0
    deadline_s: float = 60.0


def build() -> str:
    """Of all code that a run consists of, as this process has it."""
    return own_build()


def run_node(job: NodeJob, tell: Callable[[list[Any]], None], _: Iterator[Any]) -> Iterator[Row]:
    """The barrier task: what `mapPartitions` is given.

    Args:
        job: as every node has it.
        tell: takes how the node ended, at once: its row is known only when those of all others are (`Ending`).
    """
    from pyspark import BarrierTaskContext, SparkFiles

    _begin_session()
    if job.rows_file is not None:  # kept by the module that the invokables import, whatever this one is called
        importlib.import_module(_PACKED).keep(job.rows_file, Path(SparkFiles.get(job.rows_file)))
    context = BarrierTaskContext.get()
    rank = context.partitionId()
    address = context.getTaskInfos()[rank].address.rpartition(":")[0]
    host = "127.0.0.1" if address in ("", "localhost") else address
    node = Node(job, rank, host, context.allGather)
    row = trio.run(node.work)
    tell([Ending(job.token, rank, row["error"], node.hosts)])
    yield row


def _begin_session() -> None:
    """Gives a Python worker a session of its own, as the processes of other engines and slots have.

    Linux shares a busy machine's processors among sessions (autogroup): a JVM and its workers would have one share.
    """
    with contextlib.suppress(PermissionError):  # Spark has used this worker for a run before
        os.setsid()
    die_with_parent(os.getppid())  # Spark's daemon signals its own session when it ends


@final
@dataclass(frozen=True, slots=True)
class Ending:
    """How one node ended.

    Attributes:
        token: of its run.
        rank: of the node.
        error: None where it ended well.
        hosts: of all nodes, by rank; empty where they did not meet.
    """

    token: bytes
    rank: int
    error: str | None
    hosts: tuple[str, ...]


@final
class Node:
    """One node.

    Args:
        job: as every node of the run has it.
        rank: 0 leads.
        host: the address others reach this host at.
        all_gather: gives every node's message to every node, in the order of ranks; blocks. Called exactly once.

    Attributes:
        hosts: of all nodes, by rank, once they have met.
    """

    def __init__(self, job: NodeJob, rank: int, host: str, all_gather: AllGather) -> None:
        self._job = job
        self._rank = rank
        self._host = host
        self._all_gather = all_gather
        self.hosts: tuple[str, ...] = ()
        self._row: Row = {
            "rank": rank,
            "host": host,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "python": platform.python_version(),
            "build": build(),
            "netstack_build": netstack_build.kind,
            "why_python": netstack_build.reason,
            "cpu": cpu_model(),
            "cpus": os.cpu_count() or 1,
            "load": os.getloadavg()[0],
            "kind": OK,
            "error": None,
            "traceback": None,
            "document": None,
            "met_s": 0.0,  # from when all addresses were known: what came before was Spark's scheduling
        }

    async def work(self) -> Row:
        """The node's row: always one, whatever happened after the addresses were exchanged."""
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
                listen=f"tcp://{self._host}:{port}",
                name=self._host if self._job.needs_distinct_hosts else f"node {self._rank}",
                slots=max(self._job.subtasks[self._rank]),
                memory_bytes=self._job.memory_bytes,
                secret=Secret(self._job.token),
                allow=INVOKABLES,  # what is shipped declares nothing
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
        """Exchanges who everybody is."""
        place = "" if daemon is None else daemon.address.partition("://")[2]
        hello = {
            name: self._row[name]
            for name in ("rank", "host", "hostname", "python", "build", "netstack_build", "why_python", "error")
        }
        words = json.dumps({**hello, "address": place})
        try:
            said = await trio.to_thread.run_sync(self._all_gather, words, abandon_on_cancel=True)
        except EOFError as error:
            raise TimeoutError(
                f"node {self._rank}: a peer did not arrive in time, or the job was cancelled"
            ) from error  # Spark says no more than that
        return [json.loads(each) for each in said]

    def _problem(self, peers: Sequence[Row]) -> str:
        """What makes the run impossible, as every node sees it; empty when nothing does."""
        for peer in peers:
            if peer["error"]:
                return f"node {peer['rank']} at {peer['host']}: {peer['error']}"
        for peer in peers:
            if self._job.build and peer["build"] != self._job.build:
                return (
                    f"node {peer['rank']} at {peer['host']} runs build {peer['build']} of netstack, the driver"
                    f" {self._job.build}: what the driver sends has to come first in the path of the worker's Python"
                )
        for peer in peers:
            if self._job.netstack_build and peer["netstack_build"] != self._job.netstack_build:
                return (
                    f"node {peer['rank']} at {peer['host']} runs the {peer['netstack_build']} build, the driver the"
                    f" {self._job.netstack_build} one ({peer['why_python']}): NETSTACK_PURE=1 makes all of them Python"
                )
        for what in ("build", "python"):
            found = {str(peer[what]): f"{peer['hostname']} ({peer['host']})" for peer in peers}
            if len(found) > 1:
                told = ", ".join(f"{value} on {where}" for value, where in found.items())
                return f"nodes differ in their {what}: {told}; install the same on every worker"
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
                if self._rank:
                    await daemon.wait_served()
                else:
                    self._row["document"] = await self._lead(addresses)
        except trio.TooSlowError:
            self._fail(TIMEOUT, f"node {self._rank} was not done after {job.setup_timeout_s + job.deadline_s:g} s")
        except BaseException as error:
            root = root_cause(error)
            if not isinstance(root, Exception):
                raise
            self._fail(PEER if isinstance(root, OSError) or is_secondary(root) else FAULT, cause_text(root))
            self._row["traceback"] = "".join(traceback.format_exception(root))

    async def _lead(self, addresses: Sequence[str]) -> dict[str, Any]:
        job = self._job
        counts = zip(addresses, job.subtasks, strict=True)
        hosts = tuple(f"{address}={sources}/{sinks}" for address, (sources, sinks) in counts)
        spec = MeshSpec(**job.settings, hosts=hosts, relay=job.relay, rows_file=job.rows_file)
        async with open_mesh(
            spec, secret=Secret(job.token), name="node 0", connect_timeout_s=job.setup_timeout_s
        ) as mesh:
            outcome = await measure_mesh(spec, mesh)
        latencies = [histogram.to_dict() for histogram in host_latencies(outcome)]
        return {**document_of(outcome, "spark"), HOST_LATENCIES: latencies}

    def _fail(self, kind: str, text: str) -> None:
        if self._row["error"] is None:
            self._row["kind"], self._row["error"] = kind, text
