"""What a JobManager keeps on disk, so that it may die: the jobs that were submitted, how they ended, their code.

Takes: documents of jobs. Gives: the same, after any kill.

    FOLDER/lock                       held while a JobManager runs on the folder, which touches it every second
    FOLDER/life.json                  how many JobManagers had the folder before the newest
    FOLDER/jobs/ID/job.json           what was submitted; written once
    FOLDER/jobs/ID/committing.json    written before a job without checkpoints commits what it has prepared
    FOLDER/jobs/ID/end.json           how it ended; not there while it runs
    FOLDER/jobs/ID/life.json          the newest JobManager that has taken it up again
    FOLDER/checkpoints/ID/            its checkpoints, unless the job names a folder of its own
    FOLDER/code/HASH.zip              packages that were sent with jobs

Rules: a file is there whole or not at all: it is written beside, synchronised, and renamed. A damaged file is an error
that names it; it never hides the other jobs. The calls block: whoever has an event loop runs them in a thread,
and `until_stored` tries one again until it succeeds.

A JobManager that was stopped and not killed keeps its lock. Another one then takes the folder (`steal`): it puts
a new lock in the place of the old one, then counts itself. Whoever writes looks afterwards whether he is still the
newest; the next JobManager counts itself first and reads then. So the one publishes nothing that the other does not
know; and what the older one still writes of a job that was taken up again is not read.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO, final

import msgpack

from ..errors import ConfigError
from ..json_text import json_text
from .stored_files import (
    FORMAT,
    JobStoreError,
    read_document,
    write_bytes,
)

_HASH_CHARACTERS: Final = 64


@final
class JobStoreFenced(JobStoreError):
    """Another JobManager has taken over the folder: this one must not go on."""


@final
@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as it was submitted.

    Attributes:
        job_id: 16 hex digits.
        document: the job file (`schedule.graph.job_file`).
        submitted_at: seconds since 1970, UTC.
        restore: the checkpoint in its folder that it begins from; None begins empty.
        code: package -> SHA-256 of what was sent with it.
        builds: package -> hash of the code that the job's functions are in, where it was submitted.
        owner: SHA-256 of the key of who submitted it; empty: nobody's alone.
        end: how it ended; None while it runs.
        is_committing: whether it takes no checkpoints, and has begun to commit; it cannot begin again.
        not_restored: operators whose state in `restore` it left behind, because it does not have them.
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


@final
class JobStore:
    """The folder of one JobManager; see `open_job_store`.

    Attributes:
        folder: where it is.
        life: how many JobManagers had it before this one.
        is_stolen: whether it was taken from one that may live.
    """

    def __init__(self, folder: Path, life: int = 0, lock: int | None = None, *, is_stolen: bool = False) -> None:
        self.folder = folder
        self.life = life
        self.is_stolen = is_stolen
        self._lock = lock

    def renew(self) -> None:
        """Says that this JobManager lives.

        Raises:
            JobStoreFenced: another one has taken over.
            JobStoreError: who has it cannot be read, or written.
        """
        self.check()
        if self._lock is not None:
            try:
                os.utime(self._lock)
            except OSError as error:
                raise JobStoreError(f"{self.folder / 'lock'}: {error}") from error

    def check(self) -> None:
        """Returns if nobody has taken over. Raises as `renew`."""
        document = None if self._lock is None else read_document(self.folder / "life.json")
        if document is not None and document.get("life") != self.life:
            raise JobStoreFenced(
                f"another JobManager has taken over {self.folder}, because this one was silent: it ends, and its jobs"
                " go on there"
            )

    def put_taken_up(self, job_id: str) -> None:
        """A job goes on here: what an older JobManager still says of its end does not count.

        Raises:
            JobStoreError: it cannot be written.
        """
        self._write(self._job(job_id) / "life.json", {"format": FORMAT})

    def put(self, job: StoredJob) -> None:
        """A job was submitted. When this returns, it will run, whatever dies.

        Raises:
            JobStoreError: it cannot be written.
        """
        self._write(
            self._job(job.job_id) / "job.json",
            {
                "format": FORMAT,
                "job_id": job.job_id,
                "submitted_at": job.submitted_at,
                "restore": job.restore,
                "not_restored": list(job.not_restored),
                "owner": job.owner,
                "code": job.code,
                "builds": job.builds,
                "document": job.document,
            },
        )

    def put_committing(self, job_id: str) -> None:
        """A job is about to commit what it cannot prepare twice.

        Raises:
            JobStoreError: it cannot be written.
        """
        self._write(self._job(job_id) / "committing.json", {"format": FORMAT})

    def put_end(self, job_id: str, end: Mapping[str, Any]) -> None:
        """A job has ended; its results come back as they are, though JSON knows neither bytes nor keys but text.

        Raises:
            JobStoreError: it cannot be written; the job would run again after a restart.
        """
        document = {"format": FORMAT, **end}
        results = end.get("results")
        shown_results = json.loads(json_text(results))
        if shown_results != results:
            document |= {"results": shown_results, "packed_results": base64.b64encode(msgpack.packb(results)).decode()}
        self._write(self._job(job_id) / "end.json", document)

    def jobs(self) -> tuple[list[StoredJob], list[str]]:
        """All jobs, the oldest first; and of those that cannot be read why not."""
        result, damaged = [], []
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.folder / "jobs")):
                try:
                    job = self._read_job(name)
                except JobStoreError as error:
                    damaged.append(str(error))
                else:
                    if job is not None:
                        result.append(job)
        return sorted(result, key=lambda job: (job.submitted_at, job.job_id)), damaged

    def forget(self, job_id: str) -> None:
        """Removes an ended job; its checkpoints stay."""
        shutil.rmtree(self._job(job_id), ignore_errors=True)

    def put_dataset(self, dataset_id: str, document: Mapping[str, Any]) -> None:
        """A job has left a dataset; one of the same name is replaced.

        Raises:
            JobStoreError: it cannot be written.
        """
        self._write(self._dataset(dataset_id), {"kind": FORMAT, **document})

    def forget_dataset(self, dataset_id: str) -> None:
        """Removes what `put_dataset` has stored."""
        self._dataset(dataset_id).unlink(missing_ok=True)

    def datasets(self) -> list[dict[str, Any]]:
        """All of them, the oldest first; those that cannot be read are left out."""
        entries = []
        for path in (self.folder / "datasets").glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                document = json.loads(path.read_bytes())
                if isinstance(document, dict) and document.pop("kind", None) == FORMAT:
                    document.pop("life", None)
                    entries.append(document)
        return sorted(entries, key=lambda document: float(document.get("created_at", 0)))

    def checkpoint_folder(self, job_id: str) -> str:
        """Where the checkpoints of a job are that names no folder of its own."""
        return str(self.folder / "checkpoints" / job_id)

    def put_code(self, data: bytes) -> str:
        """Keeps a package; returns its SHA-256. A damaged one is replaced.

        Raises:
            JobStoreError: it cannot be written.
        """
        digest = hashlib.sha256(data).hexdigest()
        path = self._code(digest)
        try:
            if path.read_bytes() == data:
                os.utime(path)  # it is wanted again: see `prune_code`
                return digest
        except OSError:
            pass
        write_bytes(path, data)
        return digest

    def prune_code(self, used: Collection[str], unused_s: float, most_bytes: int) -> None:
        """Removes packages that nobody uses; what cannot be removed stays.

        Args:
            used: SHA-256 of those that stay.
            unused_s: others stay for so long after they came.
            most_bytes: of those others together; the oldest go.
        """
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
        """Where a package is, or would be. Raises `JobStoreError`: this names none."""
        return str(self._code(digest).absolute())

    def code_bytes(self, digest: str) -> int:
        """How long a package is.

        Raises:
            JobStoreError: there is none.
        """
        with self._reading(digest) as file:
            return os.fstat(file.fileno()).st_size

    def code_part(self, digest: str, offset: int, size: int) -> bytes:
        """A part of a package; whoever has all of it compares it with the SHA-256.

        Raises:
            JobStoreError: there is none.
        """
        with self._reading(digest) as file:
            return os.pread(file.fileno(), size, max(0, offset))

    @contextlib.contextmanager
    def _reading(self, digest: str) -> Iterator[BinaryIO]:
        try:
            with open(self._code(digest), "rb", buffering=0) as file:
                yield file
        except OSError as error:
            raise JobStoreError(f"code {digest}: {error}; submit the job again with --ship") from error

    def _job(self, job_id: str) -> Path:
        return self.folder / "jobs" / job_id

    def _dataset(self, dataset_id: str) -> Path:
        return self.folder / "datasets" / f"{hashlib.sha256(dataset_id.encode()).hexdigest()}.json"

    def _code(self, digest: str) -> Path:
        if len(digest) != _HASH_CHARACTERS or not all(each in "0123456789abcdef" for each in digest):
            raise JobStoreError("this is no SHA-256 of a package")
        return self.folder / "code" / f"{digest}.zip"

    def _read_job(self, name: str) -> StoredJob | None:
        path = self._job(name) / "job.json"
        document = read_document(path)
        if document is None:
            return None  # its submission was cut short: no client has its answer
        try:
            job = StoredJob(
                document["job_id"],
                document["document"],
                float(document["submitted_at"]),
                document["restore"],
                document["code"],
                document["builds"],
                _read_end(self._newest(name, "end.json")),
                self._newest(name, "committing.json") is not None,
                tuple(document.get("not_restored", ())),
                str(document.get("owner", "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise JobStoreError(f"{path} does not describe a job: {error!r}") from error
        if job.job_id != name:
            raise JobStoreError(f"{path} describes another job")
        return job

    def _newest(self, name: str, file: str) -> dict[str, Any] | None:
        """A document of a job; None if it is not there, or of a JobManager from which the job was taken."""
        newest, taken = read_document(self._job(name) / file), read_document(self._job(name) / "life.json")
        if newest is None or (taken is not None and newest.get("life", taken["life"]) < taken["life"]):
            return None
        return {key: value for key, value in newest.items() if key != "life"}

    def _write(self, path: Path, document: Mapping[str, Any]) -> None:
        write_bytes(path, json.dumps({**document, "life": self.life}, indent=1, sort_keys=True).encode())
        self.check()


@contextlib.contextmanager
def open_job_store(folder: str | Path, *, steal: bool = False) -> Iterator[JobStore]:
    """A folder for one JobManager at a time.

    Args:
        folder: made if it is not there.
        steal: also from a JobManager that lives, which must do nothing more then.

    Raises:
        ConfigError: another JobManager holds it.
        JobStoreError: it cannot be made or locked.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = open(path / "lock", "a+")  # noqa: SIM115  # closed below; closing unlocks
    except OSError as error:
        raise JobStoreError(f"{path} cannot be the folder of a JobManager: {error}") from error
    is_free = _try_lock(lock)
    try:
        if not is_free and steal:
            lock.close()
            part = path / f"lock.{os.getpid()}"
            lock = open(part, "a+")  # noqa: SIM115
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.replace(part, path / "lock")
        elif not is_free or os.stat(path / "lock").st_ino != os.fstat(lock.fileno()).st_ino:  # taken meanwhile
            lock.seek(0)
            holder = lock.read(64).strip() or "unknown"
            raise ConfigError(
                f"{path} is in use by another JobManager (process {holder}): stop it, or give this one another --folder"
            )
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield JobStore(path, _next_life(path / "life.json"), lock.fileno(), is_stolen=not is_free)
    finally:
        lock.close()


def sign_of_life(folder: str | Path) -> tuple[int, int] | None:
    """What changes while a JobManager has the folder and lives; None while nobody has it."""
    try:
        with open(Path(folder) / "lock", "a+") as lock:
            if _try_lock(lock):
                return None
            status = os.fstat(lock.fileno())
            return status.st_ino, status.st_mtime_ns
    except OSError:
        return None


def _try_lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _next_life(path: Path) -> int:
    """How many had the folder before, and from now on one more."""
    try:
        document = read_document(path)
        life = -1 if document is None else int(document["life"])
    except (JobStoreError, KeyError, TypeError, ValueError) as error:
        raise JobStoreError(
            f"{path} does not say how many JobManagers had the folder; when no TaskManager runs that knew one of them,"
            " remove it"
        ) from error
    write_bytes(path, json.dumps({"format": FORMAT, "life": life + 1}).encode())
    return life + 1


def _read_end(end: dict[str, Any] | None) -> dict[str, Any] | None:
    if end is not None and "packed_results" in end:
        try:
            end["results"] = msgpack.unpackb(base64.b64decode(end.pop("packed_results")), strict_map_key=False)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise JobStoreError(f"its results cannot be read: {error!r}") from error
    return end
