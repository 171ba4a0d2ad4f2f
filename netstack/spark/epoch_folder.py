"""The folder of a Subscriber: what writers have sent and not committed yet, and epochs that are committed.

Takes: rows of attempts, commits. Gives: epochs, numbered without gaps, each of which is whole.

    staged-WRITER-BATCH-PARTITION-TOKEN.arrow   rows of one attempt of one task, all of them, on the disk
    epoch-000000000017.json                     the epoch: whose batch it is, of which of these files, in which order
    committed.log                               the newest batch of every writer whose manifests are gone: WRITER BATCH

A file of rows is complete from the moment it has its name, and an epoch is committed from the moment its manifest has;
both are on the disk by then. A manifest goes when its epoch is processed, and before that its batch is in the log; the
newest manifest stays, as it has the number of the epoch. So a commit that is made again (Spark's driver died before it
wrote its own down) is recognised, however many other writers there were meanwhile, and changes nothing.

Rules: blocking; used by one thread at a time. Names come from the network: they are checked before they are paths.
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

from ..errors import ConfigError, RecordError, RequestRefused
from ..shown import shown_error
from .stream_schema import StreamSchema, synchronise

RecordBatch = Any

_WRITER: Final = re.compile(r"[0-9a-f][0-9a-f-]{7,63}")
_TOKEN: Final = re.compile(r"[0-9a-f]{8,64}")
_STAGED: Final = re.compile(r"staged-([0-9a-f][0-9a-f-]{7,63})-(\d+)-(\d+)-([0-9a-f]{8,64})\.arrow")
_MANIFEST: Final = re.compile(r"epoch-(\d{12})\.json")
_PART: Final = ".part"
_ORPHAN_S: Final = 24 * 3600.0
_LOG: Final = "committed.log"
_LOG_LINES: Final = 1000


@final
@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One attempt of one of Spark's tasks to write its rows.

    Attributes:
        writer: the query, or the one `save` of a DataFrame, by its id.
        batch: its micro-batch; 0 of a `save`.
        partition: of the task.
        token: of the attempt, at random: hex digits.

    Raises:
        ConfigError: one is not of that form.
    """

    writer: str
    batch: int
    partition: int
    token: str

    def __post_init__(self) -> None:
        """Checks what becomes a part of a path."""
        is_well = _WRITER.fullmatch(self.writer) and _TOKEN.fullmatch(self.token)
        if not is_well or min(self.batch, self.partition) < 0:
            raise ConfigError(f"{self!r:.200} is no attempt: give ids of hex digits, and numbers from 0")

    @property
    def file_name(self) -> str:
        """Of its rows."""
        return f"staged-{self.writer}-{self.batch}-{self.partition}-{self.token}.arrow"


@final
class EpochFolder:
    """See the module.

    Args:
        folder: of one Subscriber alone; made if it is not there.
        resume: the first epoch that is not processed; None is the oldest that is here.

    Raises:
        ConfigError: the folder does not reach as far as `resume`, or a manifest or the log is damaged; the text names
            it.
    """

    def __init__(self, folder: Path, resume: int | None = None) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._schema = StreamSchema(folder)
        self._manifests = dict(sorted(_manifests(folder)))
        self._log_lines = 0
        self._newest = self._read_log()
        for manifest in self._manifests.values():
            # Manifests of version 0.3 have all writers.
            known = {**manifest.pop("writers", {}), manifest["writer"]: manifest["batch"]}
            self._newest |= {each: max(last, self._newest.get(each, -1)) for each, last in known.items()}
            self._log(list(known.items())[:-1])
        self.next_epoch = max(self._manifests, default=-1) + 1
        """The number that the next commit gets."""
        if resume is not None and not 0 <= resume <= self.next_epoch:
            raise ConfigError(
                f"{folder} ends with epoch {self.next_epoch - 1}, and the worker goes on at {resume}: give the folder"
                " and the state of one worker"
            )
        self.processed = self._oldest() if resume is None else resume
        """All epochs before this one are processed."""
        self.forget(self.processed)
        self._clear_up()

    @property
    def waiting(self) -> int:
        """How many epochs are committed and not processed."""
        return self.next_epoch - self.processed

    def is_committed(self, writer: str, batch: int) -> bool:
        """Whether a batch of a writer is an epoch, or was one."""
        return batch <= self._newest.get(writer, -1)

    def staged(self, attempt: Attempt) -> StagedFile:
        """A file for the rows of an attempt; a context manager that removes what was not `finish`ed."""
        return StagedFile(self._folder / attempt.file_name, self._schema)

    def commit(self, writer: str, batch: int, attempts: Sequence[Attempt]) -> int | None:
        """Makes an epoch of attempts; it is on the disk when this returns.

        Args:
            writer: whose.
            batch: which; those of a writer are committed in their order.
            attempts: whose rows it has, in this order; one of each task.

        Returns:
            Its number; None when the batch was committed before.

        Raises:
            RequestRefused: rows of an attempt are not here.
            RecordError: they have not the columns of the stream; it has those of the first epoch.
            OSError: it cannot be written; nothing is committed.
        """
        import pyarrow as pa

        if self.is_committed(writer, batch):
            return None
        for attempt in attempts:
            if not (self._folder / attempt.file_name).exists():
                raise RequestRefused(
                    f"the rows of task {attempt.partition} of batch {batch} are not in {self._folder} any more: was it"
                    " emptied? Write the batch again"
                )
        for attempt in attempts[:1]:
            with pa.OSFile(str(self._folder / attempt.file_name)) as file, pa.ipc.open_stream(file) as rows:
                self._schema.keep(rows.schema)
        number = self.next_epoch
        files = [attempt.file_name for attempt in attempts]
        manifest = {"epoch": number, "writer": writer, "batch": batch, "files": files}
        synchronise(self._folder)  # the names of the rows' files
        self._replace(self._manifest(number), json.dumps(manifest))
        self._manifests[number] = manifest
        self._newest[writer] = batch
        self.next_epoch = number + 1
        self.forget(self.processed)  # manifests of processed epochs that this one makes superfluous
        self._drop(writer, batch, keep=frozenset(files))
        return number

    def abort(self, writer: str, batch: int) -> None:
        """Drops what attempts of a batch have sent, unless it is committed."""
        if not self.is_committed(writer, batch):
            self._drop(writer, batch, keep=frozenset(), only=True)

    def read(self, epoch: int) -> Iterator[RecordBatch]:
        """The rows of an epoch that is not processed.

        Raises:
            RecordError: a file of rows is damaged; the text names it.
            OSError: it cannot be read.
        """
        import pyarrow as pa

        for name in self._manifests[epoch]["files"]:
            with pa.OSFile(str(self._folder / name)) as file:
                try:
                    reader = pa.ipc.open_stream(file)
                    repr(reader.schema.names)  # they are decoded when somebody looks
                    for batch in reader:
                        batch.validate(full=True)  # what is damaged would end the process of whoever looks at it
                        yield batch
                except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                    raise RecordError(f"{self._folder / name} is damaged: {shown_error(error)}") from error

    def source_of(self, epoch: int) -> tuple[str, int]:
        """(writer, batch) of an epoch that is not processed."""
        manifest = self._manifests[epoch]
        return manifest["writer"], manifest["batch"]

    def forget(self, before: int) -> None:
        """All epochs before this one are processed: their rows go."""
        self.processed = max(self.processed, before)
        done = [each for each in self._manifests if each < self.processed]
        gone = [each for each in done if each < self.next_epoch - 1]  # the newest one has the number
        self._log([(self._manifests[each]["writer"], self._manifests[each]["batch"]) for each in gone])
        for number in done:
            for name in self._manifests[number]["files"]:
                (self._folder / name).unlink(missing_ok=True)
            self._manifests[number]["files"] = []
        for number in gone:
            self._manifest(number).unlink(missing_ok=True)
            del self._manifests[number]

    def _log(self, batches: Sequence[tuple[str, int]]) -> None:
        """Remembers what was committed; it is on the disk when this returns."""
        if not batches:
            return
        self._log_lines += len(batches)
        path = self._folder / _LOG
        if self._log_lines > _LOG_LINES + 2 * len(self._newest):
            self._replace(path, "".join(f"{writer} {batch}\n" for writer, batch in self._newest.items()))
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
        """The newest batch of each writer in it. Half a line at its end was never needed, and goes."""
        path = self._folder / _LOG
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self._replace(path, whole)
        newest: dict[str, int] = {}
        for line in whole.splitlines():
            writer, _, batch = line.partition(" ")
            if not _is_writer(writer) or not (batch.isascii() and batch.isdigit()):
                raise ConfigError(f"{path} is damaged: it is no log of the batches of writers")
            newest[writer] = max(int(batch), newest.get(writer, -1))
            self._log_lines += 1
        return newest

    def _replace(self, path: Path, text: str) -> None:
        aside = path.with_name(path.name + _PART)
        aside.write_text(text)
        synchronise(aside)
        aside.rename(path)
        synchronise(self._folder)

    def _oldest(self) -> int:
        """The first epoch whose rows are here."""
        for number, manifest in self._manifests.items():
            if all((self._folder / name).exists() for name in manifest["files"]):
                return number
        return self.next_epoch

    def _clear_up(self) -> None:
        """Removes what nobody will commit: half a file, attempts that lost, those of writers that never came back."""
        used = {name for manifest in self._manifests.values() for name in manifest["files"]}
        long_ago_s = time.time() - _ORPHAN_S
        for path in list(self._folder.iterdir()):
            found = _STAGED.fullmatch(path.name)
            if path.name.endswith(_PART):
                path.unlink()
            elif found is not None and path.name not in used:
                is_late = self.is_committed(found[1], int(found[2]))
                if is_late or path.stat().st_mtime < long_ago_s:
                    path.unlink()

    def _drop(self, writer: str, batch: int, *, keep: frozenset[str], only: bool = False) -> None:
        kept = keep.union(*(manifest["files"] for manifest in self._manifests.values()))
        for path in list(self._folder.iterdir()):
            found = _STAGED.fullmatch(path.name)
            if found is None or path.name in kept or found[1] != writer:
                continue
            if int(found[2]) == batch or (int(found[2]) < batch and not only):
                path.unlink(missing_ok=True)

    def _manifest(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch:012d}.json"


@final
class StagedFile:
    """Rows of one attempt on their way to the disk; blocking, by one thread at a time.

    Attributes:
        rows: so far.
    """

    def __init__(self, path: Path, schema: StreamSchema) -> None:
        self.rows = 0
        self._schema = schema
        self._path = path
        self._aside = path.with_name(path.name + _PART)
        self._file: Any = None
        self._writer: Any = None

    def __enter__(self) -> StagedFile:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Removes what was not finished."""
        with contextlib.suppress(Exception):
            self._close()
        self._aside.unlink(missing_ok=True)

    def write(self, batch: RecordBatch) -> None:
        """Adds rows.

        Raises:
            OSError: the disk does not take them.
            RecordError: the stream has other columns.
        """
        import pyarrow as pa

        if self._writer is None:
            self._schema.check(batch.schema)
            self._file = pa.OSFile(str(self._aside), "wb")
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def finish(self) -> None:
        """There are no more: they are on the disk, under the name of the attempt. Without rows there is no file."""
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
        found = _MANIFEST.fullmatch(path.name)
        if found is not None:
            yield int(found[1]), _checked(path)


def _checked(path: Path) -> dict[str, Any]:
    """What a manifest says, if it names nothing but files of its folder."""
    try:
        said = json.loads(path.read_bytes())
        writers = said.get("writers", {}) if type(said) is dict else None
        is_well = (
            type(writers) is dict
            and all(_is_writer(writer) and type(batch) is int for writer, batch in writers.items())
            and _is_writer(said["writer"])
            and type(said["batch"]) is int
            and type(said["files"]) is list
            and all(type(name) is str and _STAGED.fullmatch(name) for name in said["files"])
        )
    except (ValueError, KeyError, RecursionError):
        is_well = False
    if not is_well:
        raise ConfigError(f"{path} is damaged: it is no manifest of an epoch")
    return dict(said)


def _is_writer(name: object) -> bool:
    return type(name) is str and _WRITER.fullmatch(name) is not None
