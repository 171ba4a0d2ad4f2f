"""`EpochFolder`: the folder of a Subscriber, with staged rows and committed epochs.

    staged-WRITER-BATCH-PARTITION-TOKEN.arrow   all rows of one attempt of one task
    epoch-000000000017.json                     the manifest of a committed epoch: its writer, batch and files in order
    committed.log                               the newest batch of every writer without a manifest: WRITER BATCH

A file of rows is complete once it has its name, and an epoch is committed once its manifest has its name; both are on
the disk by then. The manifest of a processed epoch is deleted after its batch is in the log. The newest manifest is
kept, because it has the epoch's number. If Spark's driver dies before it records a commit, it commits the batch again;
the folder recognises the batch, however many other writers committed since, and changes nothing.

Rules: blocking; used by one thread at a time. Names come from the network and are checked before they become paths.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from ..base.errors import ConfigError, RecordError, RequestRefused
from ..base.text.safe_text import safe_error
from .stream_schema import PART, StreamSchema, synchronise, write_whole

RecordBatch = Any

_WRITER: Final = re.compile(r"[0-9a-f][0-9a-f-]{7,63}")
_TOKEN: Final = re.compile(r"[0-9a-f]{8,64}")
_STAGED: Final = re.compile(r"staged-([0-9a-f][0-9a-f-]{7,63})-(\d+)-(\d+)-([0-9a-f]{8,64})\.arrow")
_MANIFEST: Final = re.compile(r"epoch-(\d{12})\.json")
_ORPHAN_S: Final = 24 * 3600.0
_LOG: Final = "committed.log"
_LOG_LINES: Final = 1000


@final
@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One attempt of a Spark task to write its rows.

    Attributes:
        writer: the id of the query, or of the `save` of a DataFrame.
        batch: the number of the micro-batch; 0 for a `save`.
        partition: the task's partition.
        token: a random id of the attempt, in hex digits.

    Raises:
        ConfigError: a value has another form.
    """

    writer: str
    batch: int
    partition: int
    token: str

    def __post_init__(self) -> None:
        """Checks the values, which become a file name."""
        is_valid = _WRITER.fullmatch(self.writer) and _TOKEN.fullmatch(self.token)
        if not is_valid or min(self.batch, self.partition) < 0:
            raise ConfigError(f"{self!r:.200} is no attempt: give ids of hex digits, and numbers of at least 0")

    @property
    def file_name(self) -> str:
        """The name of the file with its rows."""
        return f"staged-{self.writer}-{self.batch}-{self.partition}-{self.token}.arrow"


@final
class EpochFolder:
    """Staged rows and committed epochs of one Subscriber.

    Args:
        folder: used by one Subscriber only; created if missing.
        resume: the first epoch that is not processed; None is the oldest one in the folder.

    Raises:
        ConfigError: the folder ends before `resume`, or a manifest or the log is damaged; the text names the file.
    """

    def __init__(self, folder: Path, resume: int | None = None) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._schema = StreamSchema(folder)
        self._manifests = dict(sorted(_manifests(folder)))
        self._log_lines = 0
        self._newest = self._read_log()
        for manifest in self._manifests.values():
            # A manifest of version 0.3 lists all writers.
            known = {**manifest.pop("writers", {}), manifest["writer"]: manifest["batch"]}
            self._newest |= {each: max(last, self._newest.get(each, -1)) for each, last in known.items()}
            self._log(list(known.items())[:-1])
        self.next_epoch = max(self._manifests, default=-1) + 1
        """The number of the next committed epoch."""
        if resume is not None and not 0 <= resume <= self.next_epoch:
            raise ConfigError(
                f"{folder} ends with epoch {self.next_epoch - 1}, and the worker continues at {resume}: give the folder"
                " and the state of the same worker"
            )
        self.processed = self._oldest() if resume is None else resume
        """The worker has processed all epochs before this one."""
        self.forget(self.processed)
        self._clear_up()

    @property
    def waiting(self) -> int:
        """The number of epochs that are committed and not processed."""
        return self.next_epoch - self.processed

    def is_committed(self, writer: str, batch: int) -> bool:
        """Whether a batch was committed, in an epoch that may be processed by now."""
        return batch <= self._newest.get(writer, -1)

    def staged(self, attempt: Attempt) -> StagedFile:
        """Opens a file for the rows of an attempt; the context manager deletes a file that was not `finish`ed."""
        return StagedFile(self._folder / attempt.file_name, self._schema)

    def commit(self, writer: str, batch: int, attempts: Sequence[Attempt]) -> int | None:
        """Commits attempts as an epoch; it is on the disk when this returns.

        Args:
            writer: the id of the writer.
            batch: the number of the batch; a writer commits its batches in order.
            attempts: one attempt of each task; the epoch has their rows in this order.

        Returns:
            The number of the epoch; None if the batch was committed before.

        Raises:
            RequestRefused: the rows of an attempt are missing.
            RecordError: the rows have other columns than the first epoch of the stream.
            OSError: the disk does not take the manifest; nothing is committed.
        """
        import pyarrow as pa

        if self.is_committed(writer, batch):
            return None
        for attempt in attempts:
            if not (self._folder / attempt.file_name).exists():
                raise RequestRefused(
                    f"the rows of task {attempt.partition} of batch {batch} are missing in {self._folder}: was it"
                    " emptied? Write the batch again"
                )
        for attempt in attempts[:1]:
            with pa.OSFile(str(self._folder / attempt.file_name)) as file, pa.ipc.open_stream(file) as rows:
                self._schema.keep(rows.schema)
        number = self.next_epoch
        files = [attempt.file_name for attempt in attempts]
        manifest = {"epoch": number, "writer": writer, "batch": batch, "files": files}
        synchronise(self._folder)  # the names of the rows' files
        write_whole(self._manifest(number), json.dumps(manifest).encode())
        self._manifests[number] = manifest
        self._newest[writer] = batch
        self.next_epoch = number + 1
        self.forget(self.processed)  # the manifest before this one is no longer the newest
        self._drop(writer, batch, keep=frozenset(files))
        return number

    def abort(self, writer: str, batch: int) -> None:
        """Deletes the rows of all attempts of a batch, unless the batch is committed."""
        if not self.is_committed(writer, batch):
            self._drop(writer, batch, keep=frozenset(), only=True)

    def read(self, epoch: int) -> Iterator[RecordBatch]:
        """Reads the rows of an epoch that is not processed.

        Raises:
            RecordError: a file of rows is damaged; the text names it.
            OSError: a file cannot be read.
        """
        import pyarrow as pa

        for name in self._manifests[epoch]["files"]:
            with pa.OSFile(str(self._folder / name)) as file:
                try:
                    reader = pa.ipc.open_stream(file)
                    repr(reader.schema.names)  # decodes the names, which may be damaged
                    for batch in reader:
                        batch.validate(full=True)  # reading damaged rows would crash the process
                        yield batch
                except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                    raise RecordError(f"{self._folder / name} is damaged: {safe_error(error)}") from error

    def source_of(self, epoch: int) -> tuple[str, int]:
        """Returns (writer, batch) of an epoch that is not processed."""
        manifest = self._manifests[epoch]
        return manifest["writer"], manifest["batch"]

    def forget(self, before: int) -> None:
        """Marks all epochs before this one as processed, and deletes their rows."""
        self.processed = max(self.processed, before)
        done = [each for each in self._manifests if each < self.processed]
        obsolete = [each for each in done if each < self.next_epoch - 1]  # the newest one has the number
        self._log([(self._manifests[each]["writer"], self._manifests[each]["batch"]) for each in obsolete])
        for number in done:
            for name in self._manifests[number]["files"]:
                (self._folder / name).unlink(missing_ok=True)
            self._manifests[number]["files"] = []
        for number in obsolete:
            self._manifest(number).unlink(missing_ok=True)
            del self._manifests[number]

    def _log(self, batches: Sequence[tuple[str, int]]) -> None:
        """Appends committed batches to the log; they are on the disk when this returns."""
        if not batches:
            return
        self._log_lines += len(batches)
        path = self._folder / _LOG
        if self._log_lines > _LOG_LINES + 2 * len(self._newest):
            write_whole(path, "".join(f"{writer} {batch}\n" for writer, batch in self._newest.items()).encode())
            self._log_lines = len(self._newest)
            return
        is_new = not path.exists()
        with path.open("a") as file:
            file.writelines(f"{writer} {batch}\n" for writer, batch in batches)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            synchronise(self._folder)

    def _read_log(self) -> dict[str, int]:
        """Returns the newest batch of each writer in the log. An incomplete last line has no effect and is removed."""
        path = self._folder / _LOG
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            write_whole(path, whole.encode())
        newest: dict[str, int] = {}
        for line in whole.splitlines():
            writer, _, batch = line.partition(" ")
            if not _is_writer(writer) or not (batch.isascii() and batch.isdigit()):
                raise ConfigError(f"{path} is damaged: a line is not WRITER BATCH")
            newest[writer] = max(int(batch), newest.get(writer, -1))
            self._log_lines += 1
        return newest

    def _oldest(self) -> int:
        """The first epoch whose files are all in the folder."""
        for number, manifest in self._manifests.items():
            if all((self._folder / name).exists() for name in manifest["files"]):
                return number
        return self.next_epoch

    def _clear_up(self) -> None:
        """Deletes incomplete files, attempts of committed batches, and attempts that are a day old."""
        used = {name for manifest in self._manifests.values() for name in manifest["files"]}
        long_ago_s = time.time() - _ORPHAN_S
        for path in list(self._folder.iterdir()):
            match = _STAGED.fullmatch(path.name)
            if path.name.endswith(PART):
                path.unlink()
            elif match is not None and path.name not in used:
                is_late = self.is_committed(match[1], int(match[2]))
                if is_late or path.stat().st_mtime < long_ago_s:
                    path.unlink()

    def _drop(self, writer: str, batch: int, *, keep: frozenset[str], only: bool = False) -> None:
        kept = keep.union(*(manifest["files"] for manifest in self._manifests.values()))
        for path in list(self._folder.iterdir()):
            match = _STAGED.fullmatch(path.name)
            if match is None or path.name in kept or match[1] != writer:
                continue
            if int(match[2]) == batch or (int(match[2]) < batch and not only):
                path.unlink(missing_ok=True)

    def _manifest(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch:012d}.json"


@final
class StagedFile:
    """The file of one attempt while it is written. Blocking; used by one thread at a time.

    Attributes:
        rows: the number of rows written so far.
    """

    def __init__(self, path: Path, schema: StreamSchema) -> None:
        self.rows = 0
        self._schema = schema
        self._path = path
        self._aside = path.with_name(path.name + PART)
        self._file: Any = None
        self._writer: Any = None

    def __enter__(self) -> StagedFile:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self._close()
        self._aside.unlink(missing_ok=True)

    def write(self, batch: RecordBatch) -> None:
        """Adds rows. Raises OSError if the disk does not take the rows, RecordError if the stream has other columns."""
        import pyarrow as pa

        if self._writer is None:
            self._schema.check(batch.schema)
            self._file = pa.OSFile(str(self._aside), "wb")
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Completes the file; it is on the disk under its own name when this returns. Without rows there is no file."""
        if self._writer is None:
            return
        self._close()
        synchronise(self._aside)
        self._aside.rename(self._path)

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        file, self._file = self._file, None
        if writer is not None:
            writer.close()
        if file is not None:
            file.close()


def _manifests(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for path in folder.iterdir():
        match = _MANIFEST.fullmatch(path.name)
        if match is not None:
            yield int(match[1]), _checked(path)


def _checked(path: Path) -> dict[str, Any]:
    """Reads a manifest, which comes from the disk and may name files of its folder only."""
    try:
        manifest = json.loads(path.read_bytes())
        writers = manifest.get("writers", {}) if type(manifest) is dict else None
        is_valid = (
            type(writers) is dict
            and all(_is_writer(writer) and type(batch) is int for writer, batch in writers.items())
            and _is_writer(manifest["writer"])
            and type(manifest["batch"]) is int
            and type(manifest["files"]) is list
            and all(type(name) is str and _STAGED.fullmatch(name) for name in manifest["files"])
        )
    except (ValueError, KeyError, RecursionError):
        is_valid = False
    if not is_valid:
        raise ConfigError(f"{path} is damaged: it is no manifest of an epoch")
    return dict(manifest)


def _is_writer(name: object) -> bool:
    return type(name) is str and _WRITER.fullmatch(name) is not None
