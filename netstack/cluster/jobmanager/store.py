"""The folder of a JobManager: submitted jobs, their ends, and their packages survive a crash.

Takes: documents of jobs. Gives: the same documents after a restart.

    FOLDER/lock                       held and touched every second by the running JobManager
    FOLDER/life.json                  number of earlier JobManagers on the folder
    FOLDER/known.json                 the jobs that the newest JobManager found without an end when it started
    FOLDER/jobs/ID/job.json           the job as submitted; written once
    FOLDER/jobs/ID/committing.json    written before a job without checkpoints commits its prepared output
    FOLDER/jobs/ID/end.json           how the job ended; missing while it runs
    FOLDER/jobs/ID/life.json          the newest JobManager that took the job up again
    FOLDER/checkpoints/ID/            its checkpoints, unless the job names another folder
    FOLDER/code/HASH.zip              packages shipped with jobs
    FOLDER/aside/ID/                  jobs that were refused to their clients, see below

Rules: files are atomic: written to a temporary name, synchronised, renamed; each document has a checksum
(`stored_files`). A damaged file raises an error that names it and affects no other job. While a job or dataset cannot
be read, nothing that it may use is removed. The calls block: event loops run them in a thread; `until_stored` retries a
write until it succeeds.

A JobManager that was stopped but not killed keeps its lock. Another one then takes the folder (`steal`): it replaces
the lock, then increments `life.json`. A writer checks after each write that it is still the newest; the next JobManager
increments first and reads afterwards. So an old JobManager publishes nothing that the new one does not know, and its
later writes about jobs that were taken up again are ignored. A job that it stores after the new one has read the folder
is missing in `known.json`; its submission was refused, so the next JobManager moves it aside. A folder whose lock
somebody removed is taken likewise.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, final

from ...base.errors import ConfigError
from ...base.text.safe_text import safe_text
from .folder_lock import holder_of, is_held_elsewhere, is_of_another_host, leave_lock, open_lock, take_lock, try_lock
from .stored_files import (
    COMMITTING,
    DATASET,
    END,
    FORMAT,
    JOB,
    KNOWN,
    LIFE,
    JobStoreError,
    Schema,
    make_private,
    packed_end,
    read_document,
    unpacked_end,
    write_bytes,
    write_document,
)

_HASH_CHARACTERS: Final = 64


@final
class JobStoreFenced(JobStoreError):
    """Another JobManager took over the folder; this one must end."""


@final
@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as submitted.

    Attributes:
        job_id: 16 hex digits.
        document: the job file (`schedule.graph.job_file`).
        submitted_at: seconds since 1970, UTC.
        restore: id of the checkpoint in its folder from which it starts; None: without state.
        code: package -> SHA-256 of the shipped archive.
        builds: package -> source fingerprint at the client.
        owner: SHA-256 of the submitting user's key; empty: no owner.
        end: how it ended; None while it runs.
        is_committing: whether it takes no checkpoints and has begun to commit; it cannot restart.
        first_checkpoint: the least id of its own checkpoints; lower ones in its folder are of earlier jobs.
        not_restored: operators in `restore` whose state was dropped because the job does not have them.
        life: number of the JobManager that stored it.
    """

    job_id: str
    document: Mapping[str, Any]
    submitted_at: float
    restore: int | None = None
    code: Mapping[str, str] = field(default_factory=dict)
    builds: Mapping[str, str] = field(default_factory=dict)
    end: Mapping[str, Any] | None = None
    is_committing: bool = False
    not_restored: tuple[str, ...] = ()
    owner: str = ""
    first_checkpoint: int = 0
    life: int = field(default=0, compare=False)


@final
class JobStore:
    """The folder of one JobManager; created by `open_job_store`.

    Attributes:
        life: number of earlier JobManagers on it.
        is_stolen: whether it was taken from a JobManager that may be alive.
    """

    def __init__(self, folder: Path, life: int = 0, lock: int | None = None, *, is_stolen: bool = False) -> None:
        self.folder = folder
        self.life = life
        self.is_stolen = is_stolen
        self._lock = lock
        self._is_all_readable = True

    def renew(self) -> None:
        """Touches the lock.

        Raises:
            JobStoreFenced: another JobManager took over.
            JobStoreError: the lock or `life.json` cannot be accessed.
        """
        self.check()
        if self._lock is not None:
            try:
                os.utime(self._lock)
            except OSError as error:
                raise JobStoreError(f"{self.folder / 'lock'}: {error}") from error

    def check(self) -> None:
        """Checks that no other JobManager took over. Raises as `renew`."""
        document = None if self._lock is None else read_document(self.folder / "life.json", LIFE)
        if document is not None and document["life"] != self.life:
            raise JobStoreFenced(
                f"another JobManager took over {self.folder} because this one was silent; this one ends, and its jobs"
                " continue there"
            )

    def put_taken_up(self, job_id: str) -> None:
        """Stores that this JobManager took up a job, so that later writes of an older one are ignored.

        Raises:
            JobStoreError: it cannot be written.
        """
        self._write(self._job(job_id) / "life.json", {"format": FORMAT})

    def put(self, job: StoredJob) -> None:
        """Stores a submitted job, which survives a crash from now on. Raises JobStoreError if it cannot be written."""
        self._write(
            self._job(job.job_id) / "job.json",
            {
                "format": FORMAT,
                "job_id": job.job_id,
                "submitted_at": job.submitted_at,
                "restore": job.restore,
                "first_checkpoint": job.first_checkpoint,
                "not_restored": list(job.not_restored),
                "owner": job.owner,
                "code": job.code,
                "builds": job.builds,
                "document": job.document,
            },
        )

    def put_committing(self, job_id: str) -> None:
        """Stores that a job without checkpoints begins to commit. Raises JobStoreError if it cannot be written."""
        self._write(self._job(job_id) / "committing.json", {"format": FORMAT})

    def put_end(self, job_id: str, end: Mapping[str, Any]) -> None:
        """Stores the end of a job; results that JSON cannot represent are packed as well.

        Raises:
            JobStoreError: it cannot be written; the job would run again after a restart.
        """
        self._write(self._job(job_id) / "end.json", packed_end({"format": FORMAT, **end}))

    def jobs(self) -> tuple[list[StoredJob], list[str]]:
        """Returns all jobs, oldest first, and a text for each one that is left out.

        Left out are unreadable jobs, and jobs that a superseded JobManager stored after its successor had read the
        folder: these are moved aside.
        """
        result, texts = [], []
        known: dict[str, Any] = {}
        unended = set()
        try:
            known = read_document(self.folder / "known.json", KNOWN) or {}
        except JobStoreError as error:
            texts.append(f"{error}; until then no job is moved aside")
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.folder / "jobs")):
                try:
                    job = self._read_job(name)
                    if job is None:
                        continue
                    if job.end is None and job.life < known.get("life", 0) and name not in known.get("jobs", ()):
                        texts.append(self._set_aside(name))
                        continue
                    result.append(job)
                    if job.end is None:
                        unended.add(name)
                except JobStoreError as error:
                    texts.append(f"job {safe_text(name, 40)} is neither run nor shown: {error}")
                    unended.add(name)
                    self._is_all_readable = False
        with contextlib.suppress(OSError, JobStoreError):  # a full disk: then none of them is moved aside later
            self._write(self.folder / "known.json", {"format": FORMAT, "jobs": sorted(unended)})
        return sorted(result, key=lambda job: (job.submitted_at, job.job_id)), texts

    def _set_aside(self, job_id: str) -> str:
        """Moves a job to `aside`; returns a sentence about it. Raises JobStoreError if it cannot be moved."""
        path = self.folder / "aside" / job_id
        try:
            make_private(path.parent)
            os.rename(self._job(job_id), path)
        except OSError as error:
            raise JobStoreError(f"it cannot be moved to {path}: {error}; move it and restart the JobManager") from error
        return (
            f"job {safe_text(job_id, 40)} was stored by a JobManager that had been replaced, which refused it to its"
            f" client; it is not run, and was moved to {path}"
        )

    def forget(self, job_id: str) -> None:
        """Removes an ended job; its checkpoints stay."""
        shutil.rmtree(self._job(job_id), ignore_errors=True)

    def put_dataset(self, dataset_id: str, document: Mapping[str, Any]) -> None:
        """Stores the record of a dataset, replacing one of the same name.

        Raises:
            JobStoreError: it cannot be written.
        """
        self._write(self._dataset(dataset_id), {"kind": FORMAT, **document})

    def forget_dataset(self, dataset_id: str) -> None:
        """Removes the record of a dataset."""
        self._dataset(dataset_id).unlink(missing_ok=True)

    def datasets(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Returns the records of datasets, oldest first, and an error text for each unreadable one."""
        entries, damaged = [], []
        for path in sorted((self.folder / "datasets").glob("*.json")):
            try:
                document = read_document(path, DATASET, version="kind")
            except JobStoreError as error:
                damaged.append(f"{error}; its partitions stay on their TaskManagers")
                continue
            if document is not None:
                entries.append({name: value for name, value in document.items() if name not in ("kind", "life")})
        return sorted(entries, key=lambda document: float(document["created_at"])), damaged

    def may_have_dataset(self, dataset_id: str) -> bool:
        """Whether there is a record of this dataset, readable or not."""
        return self._dataset(dataset_id).exists()

    def checkpoint_folder(self, job_id: str) -> str:
        """Returns the default checkpoint folder of a job."""
        return str(self.folder / "checkpoints" / job_id)

    def put_code(self, data: bytes) -> str:
        """Stores a package, replacing a damaged one; returns its SHA-256.

        Raises:
            JobStoreError: it cannot be written.
        """
        digest = hashlib.sha256(data).hexdigest()
        path = self._code(digest)
        try:
            if path.read_bytes() == data:
                os.utime(path)  # restarts its time in `prune_code`
                return digest
        except OSError:
            pass
        write_bytes(path, data)
        return digest

    def prune_code(self, used: Collection[str], unused_s: float, most_bytes: int) -> None:
        """Removes unused packages; ignores failures. Nothing is removed while an unreadable job may use one.

        Args:
            used: SHA-256 of the packages in use.
            unused_s: how long an unused package stays.
            most_bytes: limit of all unused packages; the oldest are removed.
        """
        if not self._is_all_readable:
            return
        packages = []
        for path in (self.folder / "code").glob("*.zip"):
            with contextlib.suppress(OSError):
                if path.stem not in used:
                    status = path.stat()
                    packages.append((status.st_mtime, status.st_size, path))
        left_bytes = most_bytes
        for at, size_bytes, path in sorted(packages, reverse=True):
            left_bytes -= size_bytes
            if left_bytes < 0 or at < time.time() - unused_s:
                with contextlib.suppress(OSError):
                    path.unlink()

    def code_path(self, digest: str) -> str:
        """Returns the path of a package. Raises `JobStoreError` for a malformed SHA-256."""
        return str(self._code(digest).absolute())

    def code_bytes(self, digest: str) -> int:
        """Returns the length of a package in bytes. Raises JobStoreError if there is no such package."""
        with self._reading(digest) as file:
            return os.fstat(file.fileno()).st_size

    def code_part(self, digest: str, offset: int, size: int) -> bytes:
        """Returns a part of a package; the reader checks the SHA-256 of the whole.

        Raises:
            JobStoreError: there is no such package.
        """
        with self._reading(digest) as file:
            return os.pread(file.fileno(), size, max(0, offset))

    @contextlib.contextmanager
    def _reading(self, digest: str) -> Iterator[BinaryIO]:
        try:
            with open(self._code(digest), "rb", buffering=0) as file:
                yield file
        except OSError as error:
            raise JobStoreError(
                f"package {digest} cannot be read: {error}; submit the job again with --ship"
            ) from error

    def _job(self, job_id: str) -> Path:
        return self.folder / "jobs" / job_id

    def _dataset(self, dataset_id: str) -> Path:
        return self.folder / "datasets" / f"{hashlib.sha256(dataset_id.encode()).hexdigest()}.json"

    def _code(self, digest: str) -> Path:
        if len(digest) != _HASH_CHARACTERS or not all(each in "0123456789abcdef" for each in digest):
            raise JobStoreError(f"{digest[:80]!r} is not the SHA-256 of a package")
        return self.folder / "code" / f"{digest}.zip"

    def _read_job(self, name: str) -> StoredJob | None:
        path = self._job(name) / "job.json"
        document = read_document(path, JOB)
        if document is None:
            return None  # the submission was interrupted before it was answered
        try:
            job = StoredJob(
                document["job_id"],
                document["document"],
                float(document["submitted_at"]),
                document["restore"],
                _texts(document["code"]),
                _texts(document["builds"]),
                unpacked_end(self._newest(name, "end.json", END)),
                self._newest(name, "committing.json", COMMITTING) is not None,
                tuple(map(str, document.get("not_restored", ()))),
                document.get("owner", ""),
                document.get("first_checkpoint", 0),
                document.get("life", self.life),
            )
        except ValueError as error:
            raise JobStoreError(f"{path} does not describe a job: {error!r}") from error
        if job.job_id != name:
            raise JobStoreError(f"{path} describes another job, {job.job_id}")
        return job

    def _newest(self, name: str, file: str, schema: Schema) -> dict[str, Any] | None:
        """Reads a document of a job; None if it is missing or was written by a superseded JobManager."""
        newest = read_document(self._job(name) / file, schema)
        taken = read_document(self._job(name) / "life.json", LIFE)
        if newest is None or (taken is not None and newest.get("life", taken["life"]) < taken["life"]):
            return None
        return {key: value for key, value in newest.items() if key != "life"}

    def _write(self, path: Path, document: Mapping[str, Any]) -> None:
        write_document(path, {**document, "life": self.life})
        self.check()


@contextlib.contextmanager
def open_job_store(folder: str | Path, *, steal: bool = False) -> Iterator[JobStore]:
    """Opens and locks a JobManager's folder while the block runs.

    Args:
        folder: path of the folder; created if missing.
        steal: whether to take it from a JobManager that may be alive.

    Raises:
        ConfigError: another JobManager uses it.
        JobStoreError: it cannot be created or locked.
    """
    path = Path(folder)
    try:
        make_private(path)
        is_lost = (path / "life.json").exists() and not (path / "lock").exists()  # removed; its holder may be alive
        lock = open_lock(path / "lock")  # closed below; closing unlocks
    except OSError as error:
        raise JobStoreError(f"{path} cannot be the folder of a JobManager: {error}") from error
    is_ours = False
    is_free = try_lock(lock) and not (is_of_another_host(lock) if steal else is_held_elsewhere(lock))
    try:
        if not is_free and steal:
            lock.close()
            part = path / f"lock.{os.getpid()}"
            lock = open_lock(part)
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.replace(part, path / "lock")
        elif not is_free or os.stat(path / "lock").st_ino != os.fstat(lock.fileno()).st_ino:  # taken meanwhile
            raise ConfigError(
                f"{path} is in use by another JobManager ({holder_of(lock)}): stop it, or give this one another"
                " --folder"
            )
        take_lock(lock)
        is_ours = True
        yield JobStore(path, _next_life(path / "life.json"), lock.fileno(), is_stolen=is_lost or not is_free)
    finally:
        if is_ours:
            leave_lock(lock)
        lock.close()


def _next_life(path: Path) -> int:
    try:
        document = read_document(path, LIFE)
        life = -1 if document is None else document["life"]
    except JobStoreError as error:
        raise JobStoreError(
            f"{error}; before you remove it, stop all TaskManagers that worked for JobManagers on this folder"
        ) from error
    write_document(path, {"format": FORMAT, "life": life + 1})
    return life + 1


def _texts(document: Mapping[str, Any]) -> Mapping[str, str]:
    """Checks that a mapping's values are texts. Raises ValueError."""
    if not all(isinstance(value, str) for value in document.values()):
        raise ValueError("a package has no text")
    return document
