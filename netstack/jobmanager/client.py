"""A JobManager from the outside: submit jobs, ask how they are, save and end them, wait for their end.

Takes: the address of a JobManager. Gives: `JobClient`; how a job ended.

    async with open_job_client("tcp://10.0.0.1:6120", secret=secret) as client:
        job_id = await client.submit(environment)
        result = await client.wait(job_id)

Rules: documents that describe jobs are plain data as the JobManager made them; their keys are a contract (README). Any
number of questions may be under way at a time. A client that goes leaves its jobs as they are. A JobManager that has
gone may come back on its folder, and then goes on with the job; so `wait_for_job` asks again at the same address, for
as long as its patience lasts. Only the loss of a connection is waited out: what a JobManager answers, its refusals
included, is the answer.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import trio

from ..control.build import build_of
from ..control.link import CLIENT, HEARTBEAT_TIMEOUT_S, JOBMANAGER, ControlLink, Greeting, dial
from ..control.messages import SLICE_BYTES
from ..control.questions import Questions
from ..errors import AuthenticationFailed, ConfigError, ConnectionLost, JobFailed, RemoteProtocolError, RequestRefused
from ..runtime.authentication import Secret, prove_dialler
from ..runtime.threads import background_tasks
from ..schedule.graph.job_file import write_job
from ..schedule.graph.stream_builder import StreamEnvironment
from ..schedule.graph.stream_graph import StreamGraph
from ..task.source_sizes import with_source_sizes
from .shipping import zip_package

Document: TypeAlias = dict[str, Any]

DEFAULT_ADDRESS: Final = "tcp://127.0.0.1:6120"
"""Where a JobManager listens unless `--listen` says otherwise."""

_CHECKED_ELSEWHERE: Final = frozenset({"netstack"})
"""Greetings compare these."""


@final
@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended.

    Attributes:
        job_id: its id.
        state: `finished` or `canceled`; one that failed raises.
        reason: why it was canceled; may be empty.
        results: operator -> subtask -> what its sink, or its invokable, returned.
    """

    job_id: str
    state: str
    reason: str
    results: dict[str, dict[int, Any]]


@final
class JobClient:
    """Made by `open_job_client`.

    Attributes:
        greeting: what the JobManager says of itself.
    """

    def __init__(self, link: ControlLink, greeting: Greeting) -> None:
        self.greeting = greeting
        self._link = link
        self._questions = Questions(link)
        self._owner = owner_key() if greeting.facts.get("has_owners") is True else ""
        self.receive_all = self._questions.receive_all

    @property
    def peer(self) -> str:
        """The JobManager, for messages."""
        return self._link.peer

    async def submit(
        self,
        job: StreamGraph | StreamEnvironment,
        *,
        from_savepoint: str | None = None,
        allow_non_restored_state: bool = False,
        ship: Iterable[str] = (),
    ) -> str:
        """Has a job run; what it returns is kept by the JobManager, whatever becomes of this client.

        Args:
            job: it.
            from_savepoint: folder of a checkpoint or savepoint to begin from, as the JobManager sees it.
            allow_non_restored_state: state there of operators that the job does not have is left behind.
            ship: packages or modules, by name or by path, to send along for TaskManagers that do not have them
                (started with --allow-submitted). Of all others the TaskManagers' code has to be what it is here.

        Returns:
            The job's id.

        Raises:
            ConfigError: it is no job, a source tells a size that is none, or a package to be sent is not there.
            RequestRefused: the JobManager does not take it; the text says why.
            ConnectionLost: the JobManager is gone; whether it has taken the job is not known.

        Cancellation: likewise.
        """
        graph = job.stream_graph() if isinstance(job, StreamEnvironment) else job
        if graph.settings.is_dynamic:
            graph = await trio.to_thread.run_sync(with_source_sizes, graph)
        document = write_job(graph)
        code: dict[str, str] = {}
        for name in ship:
            package = await trio.to_thread.run_sync(zip_package, name)
            await self._send_code(package.sha256, package.data)
            code[package.name] = package.sha256
        builds = await trio.to_thread.run_sync(_builds, graph, frozenset(code))
        definition = {"document": document, "code": code, "builds": builds}
        return await self.resubmit(
            definition, from_savepoint=from_savepoint, allow_non_restored_state=allow_non_restored_state
        )

    async def definition(self, job_id: str) -> Document:
        """A job as it was submitted: `job_id`, `document` (a job file), `code` and `builds` of its packages.

        Raises as `job`.
        """
        return await self._questions.ask("definition", {"job_id": job_id})

    async def resubmit(
        self, definition: Document, *, from_savepoint: str | None = None, allow_non_restored_state: bool = False
    ) -> str:
        """Has a job run that was submitted before, perhaps with other settings (`definition`); see `submit`."""
        arguments = {name: definition[name] for name in ("document", "code", "builds")}
        arguments |= {"from_savepoint": from_savepoint, "allow_non_restored_state": allow_non_restored_state}
        arguments |= {"owner": self._owner}
        return self._questions.field(await self._questions.ask("submit", arguments), "job_id", str)

    async def jobs(self) -> list[Document]:
        """A summary of every job that the JobManager remembers, in the order of submission.

        Raises:
            ConnectionLost: the JobManager is gone.

        Cancellation: the answer is ignored when it comes; so it is of the calls below, but for what they say.
        """
        return self._questions.field(await self._questions.ask("jobs", {}), "jobs", list)

    async def job(self, job_id: str) -> Document:
        """All about one job.

        Of tens of thousands of subtasks not all are listed: `left_out` of a vertex counts the others by their states.

        Args:
            job_id: its id, or a beginning that no other id has.

        Raises:
            RequestRefused: there is none, or several begin so; also in the calls below.
            ConnectionLost: the JobManager is gone.
        """
        return await self._questions.ask("job", {"job_id": job_id})

    async def wait(self, job_id: str) -> JobResult:
        """Waits until a job has ended.

        Raises:
            JobFailed: it failed; the text is its root cause, `traceback` the lines that raised it.
            RequestRefused: there is no such job.
            ConnectionLost: the JobManager is gone; another one on its folder goes on with the job.

        Cancellation: the job goes on.
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
        """Cancels a job and waits until nothing of it runs; one that has ended stays as it is.

        Returns:
            The state in which it is now: `canceled`, or how it has ended before.

        Raises:
            RequestRefused: there is no such job.
            ConnectionLost: the JobManager is gone.

        Cancellation: it is cancelled all the same.
        """
        return self._questions.field(
            await self._questions.ask("cancel", {"job_id": job_id, "owner": self._owner}), "state", str
        )

    async def savepoint(self, job_id: str, *, stop: bool = False) -> Document:
        """Takes a savepoint: a checkpoint that stays until somebody removes it.

        Args:
            job_id: of which job.
            stop: whether the job ends with it, without the end of its data.

        Returns:
            `checkpoint_id`, `path` (for `submit`), `size_bytes`, `duration_s`.

        Raises:
            RequestRefused: there is no such job, it takes no checkpoints, or this one failed.
            ConnectionLost: the JobManager is gone.

        Cancellation: it is taken all the same.
        """
        return await self._questions.ask("savepoint", {"job_id": job_id, "stop": stop, "owner": self._owner})

    async def taskmanagers(self) -> list[Document]:
        """The TaskManagers that are there, their slots, and who has them.

        Raises:
            ConnectionLost: the JobManager is gone.
        """
        return self._questions.field(await self._questions.ask("taskmanagers", {}), "taskmanagers", list)

    async def look(self) -> Document:
        """What the cluster is like now, down to each channel; see `ClusterWatch.snapshot`.

        Details of channels are there a moment after the first look, as long as somebody looks.

        Raises:
            ConnectionLost: the JobManager is gone.
            RequestRefused: more than an answer holds.
        """
        return await self._questions.ask("look", {})

    async def stacks(self, job_id: str) -> Document:
        """The Python stacks of a job's tasks; see `StackQueries.ask`. Raises as `job`."""
        return await self._questions.ask("stack", {"job_id": job_id})

    async def datasets(self) -> list[Document]:
        """What jobs have left under a name (`DataStream.persist`), the oldest first.

        Raises:
            ConnectionLost: the JobManager is gone.
        """
        return self._questions.field(await self._questions.ask("datasets", {}), "datasets", list)

    async def release_dataset(self, dataset_id: str) -> int:
        """Drops a dataset; jobs that read it now fail.

        Returns:
            How many bytes it had.

        Raises:
            RequestRefused: there is none of this name.
            ConnectionLost: the JobManager is gone.

        Cancellation: it is dropped or not.
        """
        answer = await self._questions.ask("release_dataset", {"dataset_id": dataset_id})
        return self._questions.field(answer, "bytes", int)

    # Inside.

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
    """Connects to a JobManager for as long as the block runs.

    Args:
        address: URL of its port; without a scheme it is `tcp://`.
        secret: shared with it.
        name: of this client, for the JobManager's log.
        heartbeat_timeout_s: a JobManager that is silent for so long is lost.
        connect_timeout_s: for connecting.

    Raises:
        ConnectionLost: nobody answers.
        AuthenticationFailed: the secrets differ, or only one end has one.
        RequestRefused: it is of another release, or no JobManager.

    Cancellation: the connection is closed.
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
            raise RequestRefused(f"{link.peer} is a {greeting.role}, no JobManager: give the address of the JobManager")
        client = JobClient(link, greeting)
        async with background_tasks() as nursery:
            nursery.start_soon(link.run)
            nursery.start_soon(client.receive_all)
            yield client
    finally:
        link.close()


@functools.cache
def owner_key() -> str:
    """What shows that two clients are of one user: what is in a file that only this user reads, made when it is wanted.

    Where there is no home it is this process's alone.
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
    """The packages, or modules, that the functions of a job are in."""
    names = [*(node.function for node in graph.nodes), *(edge.function for edge in graph.edges)]
    return {name.partition(":")[0].partition(".")[0] for name in names if name}


def _builds(graph: StreamGraph, shipped: frozenset[str]) -> dict[str, str]:
    """The code that the job is meant to run, as far as it is here."""
    builds = {}
    for package in packages_of(graph) - shipped - _CHECKED_ELSEWHERE - sys.stdlib_module_names:
        try:
            builds[package] = build_of(package)
        except ConfigError:
            continue  # only TaskManagers have it
    return builds


PATIENCE_S: Final = 60.0
"""A supervisor has started the JobManager again by then, or a person has to."""

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
    """Waits until a job has ended, across deaths of its JobManager.

    Args:
        job_id: its id, or a beginning that no other id has.
        address: URL of the JobManager's port; without a scheme it is `tcp://`.
        secret: shared with it.
        name: of this client, for the JobManager's log.
        patience_s: for how long after its loss a JobManager may stay away; 0 does not wait for it.
        on_lost: told how the JobManager was lost, once each time.
        on_found: told when one has answered there again.

    Raises:
        JobFailed: the job failed; the text is its root cause.
        RequestRefused: there is no such job; or the JobManager that came back does not know it.
        ConnectionLost: nobody has answered for `patience_s`.
        AuthenticationFailed: the secrets differ.
        RemoteProtocolError: there is something else at the address.

    Cancellation: the job goes on.
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
                f"{error}; the JobManager at {address} was lost while job {job_id} ran, and the one that answers now"
                " goes on with it only if it is on the same --folder"
            ) from error
        except (AuthenticationFailed, RemoteProtocolError) as error:
            if lost_s is None:
                raise
            failure: Exception = error  # one that is killed while we prove ourselves looks like a stranger
        except (ConnectionLost, OSError) as error:
            failure = error
        now_s = trio.current_time()
        if lost_s is None:
            lost_s = now_s
            if on_lost is not None:
                on_lost(failure)
        if now_s - lost_s >= patience_s:
            raise ConnectionLost(
                f"no JobManager has answered at {address} for {patience_s:g} s ({failure}); job {job_id} goes on when"
                f" one is started on its folder again, and `netstack jobs {job_id}` tells how it is"
            ) from failure
        await trio.sleep(min(pause_s, lost_s + patience_s - now_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
