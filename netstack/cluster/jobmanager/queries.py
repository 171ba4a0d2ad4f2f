"""The requests of clients to a JobManager.

Takes: documents of requests. Gives: documents of answers, or an error whose text the client receives
(`control.port.answer_questions`).
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any, Final, TypeAlias, final

from ...base.errors import ConfigError
from ...base.text.safe_text import safe_repr
from ...base.units import counted
from ...schedule.graph.job_file import check_limits
from ..control.port import Answers
from .blobs import Upload
from .dispatcher import Dispatcher
from .job_master.stacks import StackQueries
from .job_record import JobRecord, audit
from .job_services import JobManagerParts
from .log import fatal_traceback
from .views.bounds import RESULT_CHARACTERS, fit_job, page, sendable
from .views.cluster_snapshots import ClusterSnapshots
from .views.documents import MAX_SUBTASKS, job_document, position_of, summary, taskmanager_entries

Document: TypeAlias = dict[str, Any]

JOB_BYTES: Final = 7 << 19
"""Limit of the details of one job, which are one message."""

_REMEDY: Final = "use the cluster's secret, or start the JobManager with --shared"


@final
class ClientQueries:
    """Handles the requests of one client.

    Args:
        upload: receives the package that the client sends.
        client: name of the client for the audit log.
        is_bound: whether the client may cancel, save and read only its own jobs, and release only its own datasets.

    Attributes:
        answers: handlers by the name of the request.
    """

    def __init__(
        self,
        parts: JobManagerParts,
        dispatcher: Dispatcher,
        snapshots: ClusterSnapshots,
        stacks: StackQueries,
        *,
        upload: Upload,
        client: str,
        is_bound: bool = False,
    ) -> None:
        self._parts = parts
        self._dispatcher = dispatcher
        self._snapshots = snapshots
        self._stacks = stacks
        self._is_bound = is_bound
        self._client = client
        self._upload = upload
        self.answers: Answers = {
            "code": self._code,
            "submit": self._submit,
            "jobs": self._jobs,
            "job": self._job,
            "definition": self._definition,
            "wait": self._wait,
            "cancel": self._cancel,
            "savepoint": self._savepoint,
            "taskmanagers": self._taskmanagers,
            "look": self._look,
            "stack": self._stack,
            "datasets": self._datasets,
            "release_dataset": self._release_dataset,
        }

    async def _code(self, document: Document) -> Document:
        received = await self._upload.add(
            _want(document, "sha256", str),
            _want(document, "offset", int),
            _want(document, "total", int),
            _want(document, "data", bytes),
        )
        return {"received": received}

    async def _submit(self, document: Document) -> Document:
        savepoint = document.get("from_savepoint")
        if savepoint is not None and type(savepoint) is not str:
            raise ConfigError(f"from_savepoint={safe_repr(savepoint)} is not a path")
        job_id = await self._dispatcher.submit(
            _want(document, "document", dict),
            from_savepoint=savepoint,
            allow_non_restored_state=document.get("allow_non_restored_state") is True,
            code=_texts(document, "code"),
            builds=_texts(document, "builds"),
            owner=_owner(document),
        )
        audit("submit", self._dispatcher.records[job_id], self._client)
        return {"job_id": job_id}

    async def _jobs(self, document: Document) -> Document:
        def short(record: JobRecord) -> Document:
            entry = summary(record, self._parts)
            return entry | {"reason": entry["reason"][:RESULT_CHARACTERS]}

        records = self._dispatcher.records.values()
        return page(document, {"jobs": [(position_of(each), partial(short, each)) for each in records]})

    async def _job(self, document: Document) -> Document:
        details = job_document(self._find(document), self._parts, MAX_SUBTASKS)
        fit_job(details, JOB_BYTES)
        return sendable(details)[0]

    async def _definition(self, document: Document) -> Document:
        stored = self._find_own(document).stored
        documents = {"job_id": stored.job_id, "document": dict(stored.document)}
        return documents | {"code": dict(stored.code), "builds": dict(stored.builds)}

    async def _wait(self, document: Document) -> Document:
        record = self._find(document)
        await record.ended.wait()
        assert record.end is not None
        end = {name: record.end[name] for name in ("state", "reason", "results")}
        return end | {"traceback": fatal_traceback(record.end)}

    async def _cancel(self, document: Document) -> Document:
        record = self._find_own(document)
        audit("cancel", record, self._client)
        await self._dispatcher.cancel(record)
        assert record.end is not None
        return {"state": record.end["state"]}

    async def _savepoint(self, document: Document) -> Document:
        record = self._find_own(document)
        master = record.master
        if master is None:
            raise ConfigError(f"job {record.stored.job_id} ({record.name}) is not running, so it has no state to save")
        master.check_takes_checkpoints()
        missing = self._parts.slots.missing(record.stored.job_id)
        if missing:
            raise ConfigError(
                f"job {record.stored.job_id} ({record.name}) waits for {counted(missing, 'more slot')}; a"
                f" savepoint needs all of its tasks running: {self._parts.slots.describe()}"
            )
        stop = _want(document, "stop", bool)
        audit("savepoint and stop" if stop else "savepoint", record, self._client)
        report = await master.savepoint(stop=stop)
        if stop:
            await record.ended.wait()
        return {
            "checkpoint_id": report.checkpoint_id,
            "path": master.path_of(report.checkpoint_id),
            "size_bytes": report.size_bytes,
            "duration_s": report.duration_s,
        }

    async def _taskmanagers(self, document: Document) -> Document:
        return page(document, {"taskmanagers": taskmanager_entries(self._parts)})

    async def _look(self, document: Document) -> Document:
        self._snapshots.request_updates()
        return page(document, self._snapshots.entries()) | self._snapshots.facts()

    async def _stack(self, document: Document) -> Document:
        record = self._find(document)
        if record.master is None:
            raise ConfigError(f"job {record.stored.job_id} ({record.name}) is not running, so its tasks have no stacks")
        return await self._stacks.ask(record.master)

    async def _datasets(self, document: Document) -> Document:
        return page(document, {"datasets": self._parts.datasets.entries()})

    async def _release_dataset(self, document: Document) -> Document:
        dataset_id = _want(document, "dataset_id", str)
        owner = self._parts.datasets.find(dataset_id).owner
        if self._is_bound and owner not in ("", _owner(document)):
            raise ConfigError(f"dataset {safe_repr(dataset_id, 80)} was kept by a job of another user: {_REMEDY}")
        released = await self._parts.datasets.release(dataset_id)
        return {"dataset_id": released.dataset_id, "bytes": released.bytes}

    def _find_own(self, document: Document) -> JobRecord:
        record = self._find(document)
        if self._is_bound and record.stored.owner not in ("", _owner(document)):
            raise ConfigError(f"job {record.stored.job_id} ({record.name}) was submitted by another user: {_REMEDY}")
        return record

    def _find(self, document: Document) -> JobRecord:
        return self._dispatcher.find(_want(document, "job_id", str))


def _owner(document: Document) -> str:
    """Returns the hash of a client's key; empty without a key."""
    key = document.get("owner")
    return hashlib.sha256(key.encode()).hexdigest() if type(key) is str and key else ""


def _want(document: Document, name: str, kind: type[Any]) -> Any:
    value = document.get(name)
    if type(value) is not kind:
        raise ConfigError(f"{name}={safe_repr(value)} of a request is not of type {kind.__name__}")
    return value


def _texts(document: Document, name: str) -> dict[str, str]:
    texts = document.get(name) or {}
    check_limits({name: texts})
    if type(texts) is not dict or not all(type(key) is type(value) is str for key, value in texts.items()):
        raise ConfigError(f"{name} of a request is not a table of texts")
    return texts
