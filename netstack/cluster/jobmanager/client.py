"""The client of a JobManager: submits, inspects, saves and cancels jobs, and waits for their end.

Takes: the address of a JobManager. Gives: `JobClient`; the result of a job.

    async with open_job_client("tcp://10.0.0.1:6120", secret=secret) as client:
        job_id = await client.submit(environment)
        result = await client.wait(job_id)

Rules: documents about jobs are plain data from the JobManager; their keys are a contract (README). Any number of
requests may be pending. Closing a client does not affect its jobs. A JobManager may be restarted on its folder and then
continues its jobs, so `wait_for_job` reconnects to the same address until its patience ends. It retries lost
connections only; any answer of a JobManager, also a rejection, is final.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import trio

from ...base.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionLost,
    JobFailed,
    RemoteProtocolError,
    RequestRefused,
)
from ...base.own_packages import OWN_PACKAGES
from ...base.text.safe_text import type_text
from ...network.connection.authentication import Secret, prove_dialler
from ...network.waiting.threads import background_tasks
from ...schedule.graph.job_file import write_job
from ...schedule.graph.job_generator import generate_job
from ...schedule.graph.stream_builder import StreamEnvironment
from ...schedule.graph.stream_graph import StreamGraph
from ..control.build import build_of
from ..control.link import CLIENT, HEARTBEAT_TIMEOUT_S, JOBMANAGER, ControlLink, Greeting, dial
from ..control.messages import SLICE_BYTES
from ..control.port import Questions
from ..function_loading import refuse_while_importing
from ..task.source_sizes import with_source_sizes
from .shipping import zip_package

Document: TypeAlias = dict[str, Any]

DEFAULT_ADDRESS: Final = "tcp://127.0.0.1:6120"
"""Default address of a JobManager without `--listen`."""


@final
@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job that did not fail.

    Attributes:
        job_id: id of the job.
        state: `finished` or `canceled`; a failed job raises `JobFailed`.
        reason: why it was canceled; may be empty.
        results: results of sinks and invokables, by operator and subtask.
    """

    job_id: str
    state: str
    reason: str
    results: dict[str, dict[int, Any]]


@final
class JobClient:
    """A connection to a JobManager; created by `open_job_client`.

    Attributes:
        greeting: greeting of the JobManager.
    """

    def __init__(self, link: ControlLink, greeting: Greeting) -> None:
        self.greeting = greeting
        self._link = link
        self._questions = Questions(link)
        self._owner = owner_key() if greeting.facts.get("has_owners") is True else ""
        self.receive_all = self._questions.receive_all

    @property
    def peer(self) -> str:
        """Name of the JobManager for error texts."""
        return self._link.peer

    async def submit(
        self,
        job: StreamGraph | StreamEnvironment,
        *,
        from_savepoint: str | None = None,
        allow_non_restored_state: bool = False,
        ship: Iterable[str] = (),
    ) -> str:
        """Submits a job; the JobManager stores its results, also when this client disconnects.

        Args:
            job: the job.
            from_savepoint: path of a checkpoint or savepoint to start from, on the JobManager's host.
            allow_non_restored_state: whether state of operators that the job does not have may be dropped.
            ship: packages or modules, by name or path, to send to TaskManagers that do not have them (started with
                --allow-submitted). For all other packages the TaskManagers must have the same source as this process.

        Returns:
            The job's id.

        Raises:
            ConfigError: the job is invalid, a source reports an invalid size, a package to ship is missing, or the
                module of a job that is being imported calls this.
            RequestRefused: the JobManager rejects the job; the text is its reason.
            ConnectionLost: the connection is lost; the JobManager may or may not have accepted the job.

        Cancellation: the JobManager may or may not have accepted the job.
        """
        refuse_while_importing("submit")
        graph = graph_of(job)
        if text := generate_job(graph).warning:
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        if graph.settings.is_dynamic:
            graph = await trio.to_thread.run_sync(with_source_sizes, graph)
        document = write_job(graph)
        code: dict[str, str] = {}
        for name in ship:
            package = await trio.to_thread.run_sync(zip_package, name)
            await self._send_code(package.sha256, package.data)
            code[package.name] = package.sha256
        builds = await trio.to_thread.run_sync(_builds, graph, frozenset(code))
        return await self.resubmit(
            {"document": document, "code": code, "builds": builds},
            from_savepoint=from_savepoint,
            allow_non_restored_state=allow_non_restored_state,
        )

    async def definition(self, job_id: str) -> Document:
        """Returns a job as submitted: `job_id`, `document` (a job file), `code` and `builds` of its packages.

        Raises the same errors as `job`.
        """
        return await self._questions.ask("definition", {"job_id": job_id, "owner": self._owner})

    async def resubmit(
        self, definition: Document, *, from_savepoint: str | None = None, allow_non_restored_state: bool = False
    ) -> str:
        """Submits the `definition` of a job again, possibly with changed settings; raises as `submit`."""
        arguments = {name: definition[name] for name in ("document", "code", "builds")}
        arguments |= {"from_savepoint": from_savepoint, "allow_non_restored_state": allow_non_restored_state}
        arguments |= {"owner": self._owner}
        return self._questions.field(await self._questions.ask("submit", arguments), "job_id", str)

    async def jobs(self) -> list[Document]:
        """Returns a summary of every job that the JobManager remembers, in order of submission.

        Raises:
            ConnectionLost: the connection is lost.

        Cancellation: a late answer is ignored; this holds for all calls below that do not state otherwise.
        """
        return await self._listed("jobs")

    async def job(self, job_id: str) -> Document:
        """Returns all details of one job.

        Of very wide vertices not all subtasks are listed; `left_out` of a vertex counts the others by state.

        Args:
            job_id: the job's id, or a unique prefix of it.

        Raises:
            RequestRefused: no job, or more than one job, has this id; this applies to all calls below.
            ConnectionLost: the connection is lost.
        """
        return await self._questions.ask("job", {"job_id": job_id})

    async def wait(self, job_id: str) -> JobResult:
        """Waits until a job has ended.

        Raises:
            JobFailed: the job failed; the text is its root cause, `traceback` that of user code.
            RequestRefused: there is no such job.
            ConnectionLost: the connection is lost; a JobManager restarted on its folder continues the job.

        Cancellation: the job continues.
        """
        answer = await self._questions.ask("wait", {"job_id": job_id})
        state, reason = self._questions.field(answer, "state", str), self._questions.field(answer, "reason", str)
        if state == "failed":
            raise JobFailed(reason, job_id=job_id, traceback=self._questions.field(answer, "traceback", str))
        results = {
            operator: {int(subtask): value for subtask, value in values.items()}
            for operator, values in self._questions.field(answer, "results", dict).items()
        }
        return JobResult(job_id, state, reason, results)

    async def cancel(self, job_id: str) -> str:
        """Cancels a job and waits until all of its tasks have ended; does nothing if the job has ended.

        Returns:
            The state of the job: `canceled`, or its earlier final state.

        Raises:
            RequestRefused: there is no such job.
            ConnectionLost: the connection is lost.

        Cancellation: the job is cancelled anyway.
        """
        return self._questions.field(
            await self._questions.ask("cancel", {"job_id": job_id, "owner": self._owner}), "state", str
        )

    async def savepoint(self, job_id: str, *, stop: bool = False) -> Document:
        """Takes a savepoint, a checkpoint that is never removed automatically.

        Args:
            job_id: id of the job.
            stop: whether to stop the job after the savepoint, before the end of its data.

        Returns:
            `checkpoint_id`, `path` (for `submit`), `size_bytes`, `duration_s`.

        Raises:
            RequestRefused: there is no such job, it takes no checkpoints, or the savepoint failed.
            ConnectionLost: the connection is lost.

        Cancellation: the savepoint is taken anyway.
        """
        return await self._questions.ask("savepoint", {"job_id": job_id, "stop": stop, "owner": self._owner})

    async def taskmanagers(self) -> list[Document]:
        """Returns the registered TaskManagers, their slots, and the jobs that use them.

        Raises:
            ConnectionLost: the connection is lost.
        """
        return await self._listed("taskmanagers")

    async def look(self) -> Document:
        """Returns a snapshot of the cluster, down to each channel (`ClusterSnapshots.snapshot`).

        Channel details are present shortly after the first call, while calls continue.

        Raises:
            ConnectionLost: the connection is lost.
        """
        return await self._pages("look", "taskmanagers", "jobs")

    async def stacks(self, job_id: str) -> Document:
        """Returns the Python stacks of a job's tasks (`StackQueries.ask`). Raises as `job`."""
        return await self._questions.ask("stack", {"job_id": job_id})

    async def datasets(self) -> list[Document]:
        """Returns the datasets that jobs kept (`DataStream.persist`), oldest first.

        Raises:
            ConnectionLost: the connection is lost.
        """
        return await self._listed("datasets")

    async def release_dataset(self, dataset_id: str) -> int:
        """Releases a kept dataset; jobs that are reading it fail.

        Returns:
            Size of the dataset in bytes.

        Raises:
            RequestRefused: there is no dataset of this name.
            ConnectionLost: the connection is lost.

        Cancellation: the dataset may or may not be released.
        """
        answer = await self._questions.ask("release_dataset", {"dataset_id": dataset_id, "owner": self._owner})
        return self._questions.field(answer, "bytes", int)

    async def _listed(self, name: str) -> list[Document]:
        """Returns the entries of a question that is named like its only list."""
        listed: list[Document] = (await self._pages(name, name))[name]
        return listed

    async def _pages(self, what: str, *lists: str) -> Document:
        """Returns the answer to a question whose lists come in pages (`pages`)."""
        whole: Document = {name: [] for name in lists}
        page: Document = {"after": None}
        while "after" in page:
            page = await self._questions.ask(what, {"after": page["after"]})
            listed = {name: whole[name] + self._questions.field(page, name, list) for name in lists}
            whole = {**page, **listed}
        return whole

    async def _send_code(self, sha256: str, data: bytes) -> None:
        for offset in range(0, len(data), SLICE_BYTES):
            part = data[offset : offset + SLICE_BYTES]
            await self._questions.ask("code", {"sha256": sha256, "offset": offset, "total": len(data), "data": part})


@asynccontextmanager
async def open_job_client(
    address: str = DEFAULT_ADDRESS,
    *,
    secret: Secret | None = None,
    name: str = "",
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    connect_timeout_s: float = 10.0,
) -> AsyncIterator[JobClient]:
    """Connects to a JobManager while the block runs.

    Args:
        address: URL of the JobManager; `tcp://` without a scheme.
        secret: secret shared with the JobManager.
        name: name of this client for the JobManager's log.
        heartbeat_timeout_s: a JobManager that is silent for this long is lost.
        connect_timeout_s: limit for connecting.

    Raises:
        ConnectionLost: the address does not answer.
        AuthenticationFailed: the secrets differ, or only one end has one.
        RequestRefused: the peer runs another release, or is not a JobManager.

    Cancellation: closes the connection.
    """
    link, greeting = await dial(
        address,
        role=CLIENT,
        name=name or "client",
        facts={},
        prove=None if secret is None else partial(prove_dialler, secret=secret),
        heartbeat_timeout_s=heartbeat_timeout_s,
        connect_timeout_s=connect_timeout_s,
    )
    try:
        if greeting.role != JOBMANAGER:
            raise RequestRefused(f"{link.peer} is a {greeting.role}, not a JobManager: give the JobManager's address")
        client = JobClient(link, greeting)
        async with background_tasks() as nursery:
            nursery.start_soon(link.run)
            nursery.start_soon(client.receive_all)
            yield client
    finally:
        link.close()


@functools.cache
def owner_key() -> str:
    """Returns the key that identifies this user's clients, from a private file that is created on first use.

    Without a home folder the key is valid for this process only.
    """
    path = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "netstack" / "owner"
    made = secrets.token_hex(32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"owner.{os.getpid()}")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(made)
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
        part.unlink()
        return path.read_text("ascii")
    except (OSError, ValueError):
        return made


def packages_of(graph: StreamGraph) -> set[str]:
    """Returns the packages and modules that contain the functions of a job."""
    names = [*(node.function for node in graph.nodes), *(edge.function for edge in graph.edges)]
    return {name.partition(":")[0].partition(".")[0] for name in names if name}


def _builds(graph: StreamGraph, shipped: frozenset[str]) -> dict[str, str]:
    """Returns the source fingerprints of the job's packages that are installed here."""
    builds = {}
    for package in packages_of(graph) - {*shipped, *OWN_PACKAGES} - sys.stdlib_module_names:  # a greeting compares ours
        try:
            builds[package] = build_of(package)
        except ConfigError:
            continue  # installed on TaskManagers only
    return builds


PATIENCE_S: Final = 60.0
"""How long to wait for a lost JobManager; a supervisor restarts it sooner."""

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0


async def wait_for_job(
    job_id: str,
    address: str = DEFAULT_ADDRESS,
    *,
    secret: Secret | None = None,
    name: str = "",
    patience_s: float = PATIENCE_S,
    on_lost: Callable[[Exception], None] | None = None,
    on_found: Callable[[], None] | None = None,
) -> JobResult:
    """Waits until a job has ended, across restarts of its JobManager.

    Args:
        job_id: the job's id, or a unique prefix of it.
        address: URL of the JobManager; `tcp://` without a scheme.
        secret: secret shared with the JobManager.
        name: name of this client for the JobManager's log.
        patience_s: how long to wait for a lost JobManager; 0: not at all.
        on_lost: called with the error each time the JobManager is lost.
        on_found: called each time a JobManager answers again.

    Raises:
        JobFailed: the job failed; the text is its root cause.
        RequestRefused: there is no such job, or the restarted JobManager does not know it.
        ConnectionLost: no JobManager answered for `patience_s`.
        AuthenticationFailed: the secrets differ.
        RemoteProtocolError: the process at the address is not a JobManager.

    Cancellation: the job continues.
    """
    lost_s: float | None = None  # since when, on trio's clock
    connections = 0
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            async with open_job_client(address, secret=secret, name=name) as client:
                connections += 1
                if lost_s is not None and on_found is not None:
                    on_found()
                lost_s, pause_s = None, _FIRST_PAUSE_S
                return await client.wait(job_id)
        except RequestRefused as error:
            if connections < 2:
                raise
            raise RequestRefused(
                f"{error}; the JobManager at {address} was lost while job {job_id} ran, and the JobManager that answers"
                " now continues the job only if it was started with the same --folder"
            ) from error
        except (AuthenticationFailed, RemoteProtocolError) as error:
            if lost_s is None:
                raise
            failure: Exception = error  # a JobManager killed during the proof causes these too
        except (ConnectionLost, OSError) as error:
            failure = error
        now_s = trio.current_time()
        if lost_s is None:
            lost_s = now_s
            if on_lost is not None:
                on_lost(failure)
        if now_s - lost_s >= patience_s:
            raise ConnectionLost(
                f"no JobManager answered at {address} for {patience_s:g} s ({failure}); job {job_id} continues when a"
                f" JobManager is started on its folder again, and `netstack jobs {job_id}` then shows its state"
            ) from failure
        await trio.sleep(min(pause_s, lost_s + patience_s - now_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def graph_of(job: StreamGraph | StreamEnvironment) -> StreamGraph:
    """Returns the graph of a job. Raises ConfigError if it is no job."""
    graph = job.stream_graph() if isinstance(job, StreamEnvironment) else job
    if not isinstance(graph, StreamGraph):
        raise ConfigError(f"the job is {type_text(job)}; give a StreamEnvironment or a StreamGraph")
    return graph
