"""Creates the tasks of a job on a TaskManager from documents, code, and the restored checkpoint.

Takes: descriptors of attempts. Gives: tasks that can be created and run.

Rules: for all tasks of the job, each document is parsed once, each function imported once, each checkpoint read once.
Slow or blocking work runs in threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, final

import trio

from ...base.errors import CheckpointError, NetstackError
from ...base.text.safe_text import safe_repr
from ...network.environment import NetworkEnvironment
from ...network.waiting.threads import in_thread
from ...schedule.checkpoint.storage import CheckpointStorage
from ...schedule.descriptors.descriptors import BlobKey, MaybeOffloaded, TaskDeploymentDescriptor
from ...schedule.descriptors.information import JobInformation, TaskInformation
from ...schedule.descriptors.shuffle import ShuffleDescriptors
from ..task.chain_task import ChainTask
from ..task.invokable import InvokableTask
from ..task.recovery import RestoredCheckpoint
from ..task.reports import AttemptReports, RunnableTask
from .blob_reader import BlobReader, Fetch
from .code import AllowList, ShippedCode, check_builds, root_package


@final
class TaskFactory:
    """Creates the tasks of one job.

    Attributes:
        vertices: names of the job's vertices with tasks here, by index.
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        *,
        host: str,
        allowed: AllowList,
        shipped: ShippedCode | None,
        blobs: BlobReader,
        fetch: Fetch,
    ) -> None:
        self.vertices: dict[int, str] = {}
        self._job_id = job_id
        self._name = name
        self._host = host
        self._allowed = allowed
        self._shipped = shipped
        self._blobs = blobs
        self._fetch = fetch
        self._functions: dict[str, Any] = {}
        self._loading = trio.Lock()
        self._parsed_jobs: dict[bytes, JobInformation] = {}
        self._parsed_tasks: dict[bytes, TaskInformation] = {}
        self._storage: CheckpointStorage | None = None
        self._checkpoints: dict[int, RestoredCheckpoint] = {}
        self._restoring = trio.Lock()

    async def make(
        self, descriptor: TaskDeploymentDescriptor, environment: NetworkEnvironment, reports: AttemptReports
    ) -> RunnableTask:
        """Fetches the blobs of a descriptor, imports its code, and creates its task.

        Raises:
            NetstackError: a blob or a function is missing or not allowed.

        Cancellation: fetched blobs stay cached.
        """
        parts: list[MaybeOffloaded] = [descriptor.job_information, descriptor.task_information]
        for gate in descriptor.gates:
            parts += gate.groups
        fetched = await self._blobs.fetch_all(self._job_id, parts, self._fetch)
        job = self._job(_inline(descriptor.job_information, fetched))
        task = self._task(_inline(descriptor.task_information, fetched))
        self.vertices[descriptor.attempt.vertex] = task.name
        await self._load_all(job, task)
        now_s = trio.current_time()

        def read(part: MaybeOffloaded) -> ShuffleDescriptors:
            return self._blobs.shuffle_descriptors(self._job_id, part, fetched, now_s)

        load = self._functions.__getitem__
        if task.is_invokable:
            gates = [gate.gate(read).channels for gate in descriptor.gates]
            return InvokableTask(descriptor, task, environment, reports, gates=gates, load=load)
        return ChainTask(
            descriptor,
            job,
            task,
            environment,
            reports,
            storage=self._storage_of(job),
            restored=None
            if descriptor.restore is None
            else partial(self._restored, descriptor.restore, job, has_heads=environment.config.as_flink),
            load=load,
            in_thread=in_thread,
            read=read,
        )

    def _storage_of(self, job: JobInformation) -> CheckpointStorage | None:
        """Returns the checkpoint storage of the job, shared by all of its tasks here."""
        if self._storage is None and job.checkpoint_folder is not None:
            self._storage = CheckpointStorage(job.checkpoint_folder, keep=job.keep, root=job.checkpoint_root)
        return self._storage

    async def _restored(self, checkpoint_id: int, job: JobInformation, *, has_heads: bool) -> RestoredCheckpoint:
        """Reads a checkpoint once for all tasks here; only the newest one stays cached."""
        async with self._restoring:
            restored = self._checkpoints.get(checkpoint_id)
            if restored is None:
                storage = self._storage_of(job)
                if storage is None:
                    raise CheckpointError(
                        f"checkpoint {checkpoint_id} cannot be read: the job has no checkpoint folder"
                    )
                path = storage.path(checkpoint_id)
                restored = await in_thread(
                    lambda: RestoredCheckpoint(storage.read(checkpoint_id), path, has_heads=has_heads)
                )
                self._checkpoints = {checkpoint_id: restored}
        return restored

    def _job(self, data: bytes) -> JobInformation:
        information = self._parsed_jobs.get(data)
        if information is None:
            information = self._parsed_jobs[data] = JobInformation.parse(data)
        return information

    def _task(self, data: bytes) -> TaskInformation:
        information = self._parsed_tasks.get(data)
        if information is None:
            information = self._parsed_tasks[data] = TaskInformation.parse(data)
        return information

    async def _load_all(self, job: JobInformation, task: TaskInformation) -> None:
        """Imports the functions of a task that were not imported yet, in a thread."""
        names = [name for name in _named(task) if name not in self._functions]
        if not names:
            return
        async with self._loading:  # one import for all subtasks of a vertex
            missing = [name for name in names if name not in self._functions]
            if missing:
                await self._unpack(job)
                self._functions |= await in_thread(partial(self._load, job, missing), abandon_on_cancel=True)

    async def _unpack(self, job: JobInformation) -> None:
        if not job.code:
            return
        if self._shipped is None:
            raise NetstackError(
                f"job {self._name!r} ships {', '.join(safe_repr(package, 40) for package, _ in job.code)}, but"
                f" TaskManager {self._host} accepts no code: start it with --allow-submitted, or install the package"
                " there"
            )
        for package, key in job.code:
            blob = await self._blobs.fetch(self._job_id, BlobKey(key), self._fetch)
            await in_thread(partial(self._shipped.put, self._job_id, package, blob))

    def _load(self, job: JobInformation, names: Iterable[str]) -> Mapping[str, Any]:
        shipped = {package for package, _ in job.code}
        loaded = {name: self._allowed.load(name, shipped) for name in names}
        check_builds(sorted({root_package(name) for name in loaded} - shipped), job.builds)
        return loaded


def _named(task: TaskInformation) -> set[str]:
    names = {operator.function for operator in task.operators}
    names |= {each.function for each in task.inputs} | {each.function for each in task.outputs}
    return names - {""}


def _inline(part: MaybeOffloaded, fetched: Mapping[BlobKey, bytes]) -> bytes:
    return part if isinstance(part, bytes) else fetched[part]
