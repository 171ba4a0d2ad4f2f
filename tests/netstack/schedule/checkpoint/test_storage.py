"""The folder of checkpoints, with real files and with system calls that fail."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import lz4.frame
import pytest

from netstack.base.errors import CheckpointError, CheckpointStorageError, ConfigError
from netstack.schedule.checkpoint.files import CheckpointFiles
from netstack.schedule.checkpoint.finals import FinalStates
from netstack.schedule.checkpoint.snapshot import Manifest, TaskFile, TaskSnapshot, encode_snapshot
from netstack.schedule.checkpoint.storage import CheckpointStorage, RefusedCheckpoint

CREATED = datetime(2026, 11, 21, tzinfo=UTC)
TASKS = [("sink", 0), ("sink", 1), ("source", 0)]


def snapshots(checkpoint_id: int) -> list[TaskSnapshot]:
    return [TaskSnapshot(task, subtask, {"at": checkpoint_id}, {("w", subtask): b"x"}) for task, subtask in TASKS]


def write(
    storage: CheckpointStorage, checkpoint_id: int, *, is_savepoint: bool = False, job_goes_on: bool = False
) -> None:
    files = tuple(storage.write_task(checkpoint_id, snapshot) for snapshot in snapshots(checkpoint_id))
    storage.complete(Manifest(checkpoint_id, CREATED, {"sink": 2, "source": 1}, files, is_savepoint, job_goes_on))


def names(path: Path) -> list[str]:
    """What is in a folder but who owns it, without the checksums in the names of state files."""
    actual = (entry.name for entry in path.iterdir() if not entry.name.startswith("epoch-"))
    return sorted(re.sub(r"\.[0-9a-f]{8}\.state", ".state", name) for name in actual)


def state_file(folder: Path, checkpoint_id: int, name: str) -> Path:
    (path,) = (folder / f"chk-{checkpoint_id:08d}").glob(f"{name}.*.state")
    return path


def newest_id(storage: CheckpointStorage) -> int | None:
    newest = storage.newest()
    return None if newest is None else newest.checkpoint_id


class NthCallFails(CheckpointFiles):
    """The real system calls, without waiting for the disk; one of them fails, and if wanted all after it."""

    def __init__(self, fails: int, problem: int, *, for_good: bool = False) -> None:
        self.calls: list[str] = []
        self._fails = fails
        self._problem = problem
        self._for_good = for_good

    def _count(self, name: str) -> None:
        self.calls.append(name)
        if len(self.calls) == self._fails or (self._for_good and len(self.calls) > self._fails):
            raise OSError(self._problem, os.strerror(self._problem))

    def make_folder(self, path: str) -> None:
        self._count("make_folder")
        super().make_folder(path)

    def create(self, path: str) -> io.RawIOBase:
        self._count("create")
        return super().create(path)

    def write(self, file: io.RawIOBase, data: memoryview) -> int:
        self._count("write")
        return super().write(file, data[:100])

    def sync(self, file: io.RawIOBase) -> None:
        self._count("sync")

    def sync_folder(self, path: str) -> None:
        self._count("sync_folder")

    def rename(self, old: str, new: str) -> None:
        self._count("rename")
        super().rename(old, new)

    def read(self, path: str) -> Iterator[bytes]:
        self._count("read")
        return super().read(path)

    def list_folder(self, path: str) -> list[tuple[str, bool]]:
        self._count("list_folder")
        return super().list_folder(path)

    def remove(self, path: str) -> None:
        self._count("remove")
        super().remove(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "jobs" / "checkpoints"


@pytest.fixture
def storage(folder: Path) -> CheckpointStorage:
    return CheckpointStorage(folder, keep=2)


def test_a_checkpoint_comes_back(storage: CheckpointStorage, folder: Path) -> None:
    assert (storage.newest(), storage.next_id()) == (None, 1)
    write(storage, 42)
    assert names(folder) == ["chk-00000042"]
    assert names(folder / "chk-00000042") == ["manifest.json", "sink-0.state", "sink-1.state", "source-0.state"]
    newest = storage.newest()
    assert newest is not None
    assert (newest.checkpoint_id, newest.path) == (42, str(folder / "chk-00000042"))
    assert newest.manifest.parallelism == {"sink": 2, "source": 1}
    assert storage.read(42) == snapshots(42)
    assert storage.next_id() == 43


def test_without_a_manifest_it_is_no_checkpoint(
    storage: CheckpointStorage, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(storage, 1)
    storage.write_task(2, snapshots(2)[0])
    with caplog.at_level(logging.WARNING, "netstack"):
        assert newest_id(storage) == 1
    assert storage.refused == (RefusedCheckpoint("chk-00000002", "manifest.json is missing"),)
    assert f"{folder}/chk-00000002 is invalid, trying an older one: manifest.json is missing" in caplog.text
    with pytest.raises(CheckpointStorageError, match=r"manifest.json is missing"):
        storage.read(2)
    write(storage, 3)
    assert newest_id(storage) == 3
    assert storage.refused == ()


def test_each_kind_of_damage_is_named(storage: CheckpointStorage, folder: Path) -> None:
    for checkpoint_id in range(1, 8):
        write(storage, checkpoint_id)
    state_file(folder, 7, "sink-1").unlink()
    state_file(folder, 6, "sink-1").write_bytes(state_file(folder, 6, "sink-0").read_bytes())
    manifest = folder / "chk-00000005" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("sink", "sunk"))
    with open(state_file(folder, 4, "source-0"), "ab") as file:
        file.write(b"\0")
    state_file(folder, 3, "sink-0").write_bytes(state_file(folder, 2, "sink-0").read_bytes())
    os.truncate(state_file(folder, 2, "sink-0"), 0)
    assert newest_id(storage) == 1
    assert [refused.name for refused in storage.refused] == [f"chk-{number:08d}" for number in range(7, 1, -1)]
    reasons = [refused.reason for refused in storage.refused]
    assert re.fullmatch(r"sink-1\.[0-9a-f]{8}\.state is missing", reasons[0])
    assert re.match(r"sink-1\.[0-9a-f]{8}\.state has CRC-32", reasons[1])
    assert reasons[2].startswith("manifest.json does not end")
    assert re.match(r"source-0\.[0-9a-f]{8}\.state has", reasons[3])
    assert "its header says" in reasons[3]
    assert re.match(r"sink-0\.[0-9a-f]{8}\.state has CRC-32", reasons[4])
    assert re.fullmatch(r"sink-0\.[0-9a-f]{8}\.state .* b''", reasons[5])
    for refused, reason in zip(range(7, 1, -1), reasons, strict=True):
        with pytest.raises(CheckpointStorageError) as caught:
            storage.read(refused)
        assert str(caught.value).split()[0] == reason.split()[0]


def test_another_sound_file_in_its_place_is_refused(storage: CheckpointStorage, folder: Path) -> None:
    write(storage, 1)
    path = state_file(folder, 1, "sink-0")
    pieces, _ = encode_snapshot(1, TaskSnapshot("sink", 0, {"at": 2}, {("w", 0): b"x"}))
    assert len(path.read_bytes()) == len(b"".join(pieces))
    path.write_bytes(b"".join(pieces))
    assert storage.newest() is None
    with pytest.raises(CheckpointStorageError, match=r"sink-0\.[0-9a-f]{8}\.state has CRC-32"):
        storage.read(1)


def test_a_copied_folder_is_refused(storage: CheckpointStorage, folder: Path) -> None:
    write(storage, 1)
    (folder / "chk-00000001").rename(folder / "chk-00000002")
    assert storage.newest() is None
    assert storage.refused == (RefusedCheckpoint("chk-00000002", "manifest.json belongs to checkpoint 1"),)


def test_a_full_disk_fails_the_checkpoint_and_leaves_no_temporary_file(folder: Path) -> None:
    write(CheckpointStorage(folder), 1)
    files = NthCallFails(4, errno.ENOSPC)  # make the folder, synchronise its parent, create, the first write
    storage = CheckpointStorage(folder, files=files)
    with pytest.raises(CheckpointStorageError) as caught:
        storage.write_task(2, snapshots(2)[0])
    assert files.calls[3:] == ["write", "remove"]
    assert re.search(
        rf"writing {folder}/chk-00000002/sink-0\.[0-9a-f]{{8}}\.state failed after 0 of", str(caught.value)
    )
    assert "No space left on device; free disk space" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert names(folder / "chk-00000002") == []
    write(storage, 3)
    assert newest_id(storage) == 3


@pytest.mark.parametrize("for_good", [False, True])
def test_whichever_call_fails_the_older_checkpoint_is_there(tmp_path: Path, for_good: bool) -> None:
    for fails in range(1, 100):
        folder = tmp_path / str(fails)
        write(CheckpointStorage(folder, files=NthCallFails(-1, 0)), 1)
        files = NthCallFails(fails, errno.EIO, for_good=for_good)
        storage = CheckpointStorage(folder, files=files, keep=1)
        is_complete = False
        with contextlib.suppress(CheckpointStorageError):
            write(storage, 2)
            is_complete = True
        if not is_complete:
            storage.discard(2)
        storage.prune()
        after = CheckpointStorage(folder)
        newest = after.newest()
        assert newest is not None
        # When the disk fails for good after the last rename, the aborted one is whole and cannot be removed.
        assert newest.checkpoint_id in ((2,) if is_complete else (1, 2) if for_good else (1,))
        assert after.read(newest.checkpoint_id) == snapshots(newest.checkpoint_id)
        if len(files.calls) < fails:
            assert is_complete
            return
    raise AssertionError("one hundred calls do not suffice")


def test_completing_needs_the_files_that_were_acknowledged(storage: CheckpointStorage, folder: Path) -> None:
    files = tuple(storage.write_task(1, snapshot) for snapshot in snapshots(1))
    manifest = Manifest(1, CREATED, {"sink": 2, "source": 1}, files)
    path = state_file(folder, 1, "sink-1")
    with open(path, "ab") as file:
        file.write(b"\0")
    with pytest.raises(
        CheckpointStorageError, match=r"sink-1\.[0-9a-f]{8}\.state has \d+ bytes, but \d+ were acknowledged"
    ):
        storage.complete(manifest)
    path.unlink()
    with pytest.raises(CheckpointStorageError, match=r"sink-1\.[0-9a-f]{8}\.state .* missing: No such file"):
        storage.complete(manifest)
    assert storage.newest() is None


def test_state_that_is_not_plain_writes_nothing(storage: CheckpointStorage, folder: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be stored"):
        storage.write_task(1, TaskSnapshot("sink", 0, 2**64))
    assert not folder.exists()


def test_a_task_of_an_earlier_run_cannot_damage_a_complete_checkpoint(storage: CheckpointStorage) -> None:
    write(storage, 1)
    with pytest.raises(CheckpointStorageError, match=r"already complete, so sink-0\.[0-9a-f]{8}\.state "):
        storage.write_task(1, TaskSnapshot("sink", 0, "other"))
    assert storage.read(1) == snapshots(1)


def test_prune_keeps_the_last_complete_ones(storage: CheckpointStorage, folder: Path) -> None:
    for checkpoint_id in (1, 2, 4, 5):
        write(storage, checkpoint_id)
    for checkpoint_id in (3, 6):
        storage.write_task(checkpoint_id, snapshots(checkpoint_id)[0])
    for checkpoint_id in (3, 5, 6):
        (folder / f"chk-{checkpoint_id:08d}" / ".sink-0.state.0123abcd.tmp").touch()
    assert storage.prune() == [3, 2, 1]
    assert names(folder) == ["chk-00000004", "chk-00000005", "chk-00000006"]
    assert ".sink-0.state.0123abcd.tmp" not in names(folder / "chk-00000005")
    assert names(folder / "chk-00000006") == [".sink-0.state.0123abcd.tmp", "sink-0.state"]
    assert storage.prune() == []
    assert storage.prune(incomplete=True) == [6]
    assert names(folder) == ["chk-00000004", "chk-00000005"]  # and its number is not used again
    assert (newest_id(storage), storage.refused, storage.next_id()) == (5, (), 7)
    write(storage, 7)
    assert storage.prune() == [4]
    assert names(folder) == ["chk-00000005", "chk-00000007"]


def test_checkpoints_of_earlier_jobs_are_neither_used_nor_removed(storage: CheckpointStorage, folder: Path) -> None:
    for checkpoint_id in (1, 2, 3, 4, 5):
        write(storage, checkpoint_id)
    of_next_job = CheckpointStorage(folder, keep=1)
    of_next_job.take_over(steal=True)
    of_next_job.own_from(of_next_job.next_id())
    assert of_next_job.newest() is None
    assert of_next_job.prune(incomplete=True) == []
    write(of_next_job, 6)
    write(of_next_job, 7)
    assert newest_id(of_next_job) == 7
    assert of_next_job.prune() == [6]
    of_next_job.remove_all()
    assert names(folder) == [f"chk-{checkpoint_id:08d}" for checkpoint_id in (1, 2, 3, 4, 5)]
    assert (of_next_job.newest(), of_next_job.next_id()) == (None, 8)


def test_prune_never_counts_a_damaged_one(storage: CheckpointStorage, folder: Path) -> None:
    for checkpoint_id in (1, 2, 3):
        write(storage, checkpoint_id)
    for checkpoint_id in (2, 3):
        os.truncate(state_file(folder, checkpoint_id, "sink-0"), 10)
    again = CheckpointStorage(folder, keep=1)
    assert again.prune() == []
    assert newest_id(again) == 1
    assert again.prune(incomplete=True) == [3, 2]
    assert again.next_id() == 4


def test_nor_one_with_another_sound_file_in_it(storage: CheckpointStorage, folder: Path) -> None:
    write(storage, 1)
    write(storage, 2)
    pieces, _ = encode_snapshot(2, TaskSnapshot("sink", 0, {"at": 9}, {("w", 0): b"x"}))
    state_file(folder, 2, "sink-0").write_bytes(b"".join(pieces))
    assert CheckpointStorage(folder, keep=1).prune() == []


def test_the_job_itself_does_not_begin_from_a_savepoint_that_it_went_on_behind(
    storage: CheckpointStorage, folder: Path
) -> None:
    write(storage, 1)
    storage.write_task(2, snapshots(2)[0])  # under way
    write(storage, 3, is_savepoint=True, job_goes_on=True)
    for each in (storage, CheckpointStorage(folder)):
        of_job = each.newest(of_job=True)
        assert of_job is not None
        assert (of_job.checkpoint_id, newest_id(each)) == (1, 3)
        assert each.prune() == []
    write(each, 4, is_savepoint=True)
    of_job = each.newest(of_job=True)
    assert of_job is not None
    assert of_job.checkpoint_id == 4, "it stopped the job"


def test_nothing_complete_nothing_pruned(storage: CheckpointStorage, folder: Path) -> None:
    assert storage.prune(incomplete=True) == []
    storage.write_task(1, snapshots(1)[0])
    assert storage.prune() == []
    assert names(folder / "chk-00000001") == ["sink-0.state"]


def test_savepoints_stay(storage: CheckpointStorage, folder: Path) -> None:
    write(storage, 1, is_savepoint=True)
    for checkpoint_id in (2, 3, 4):
        write(storage, checkpoint_id)
    write(storage, 5, is_savepoint=True)
    (folder / "chk-00000005" / ".manifest.json.0123abcd.tmp").touch()
    assert storage.prune() == [2]
    assert ".manifest.json.0123abcd.tmp" not in names(folder / "chk-00000005")
    assert newest_id(storage) == 5
    os.truncate(state_file(folder, 1, "sink-0"), 10)
    assert CheckpointStorage(folder, keep=1).prune() == [3]
    assert names(folder) == ["chk-00000001", "chk-00000004", "chk-00000005"]


def test_discard_removes_what_was_written_and_keeps_the_number(storage: CheckpointStorage, folder: Path) -> None:
    storage.discard(1)  # nothing was written
    write(storage, 1)
    storage.write_task(2, snapshots(2)[0])
    storage.discard(2)
    assert names(folder) == ["chk-00000001"]
    assert (storage.next_id(), newest_id(storage), storage.refused) == (3, 1, ())
    assert CheckpointStorage(folder).next_id() == 3
    storage.write_task(3, snapshots(3)[0])
    storage.write_task(4, snapshots(4)[0])
    storage.discard(3)
    assert names(folder) == ["chk-00000001", "chk-00000004"]


def test_what_is_not_ours_stays(storage: CheckpointStorage, folder: Path, tmp_path: Path) -> None:
    write(storage, 1)
    foreign = ["notes.txt", "chk-1", "chk-000000077", "chk-00000001.bak", "xchk-00000001", "chk-00000000000000000099"]
    for name in foreign[1:]:
        (folder / name).mkdir()
        (folder / name / "manifest.json").touch()
    (folder / "notes.txt").touch()
    (folder / "chk-00000009").touch()  # a file, not a folder
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "sink-0.state").touch()
    (folder / "chk-00000008").symlink_to(tmp_path / "elsewhere")
    (folder / "chk-00000001" / "mine.txt").touch()
    (folder / "chk-00000001" / "manifest.json.old").touch()
    (folder / "chk-00000001" / "sub-0.01234567.state").mkdir()
    write(storage, 2)
    write(storage, 3)
    assert storage.next_id() == 10  # a number is used whatever has it
    assert storage.prune() == [1]
    assert names(folder / "chk-00000001") == ["manifest.json.old", "mine.txt", "sub-0.state"]
    assert storage.prune() == []
    assert names(tmp_path / "elsewhere") == ["sink-0.state"]
    expected = [*foreign, "chk-00000001", "chk-00000002", "chk-00000003", "chk-00000008", "chk-00000009"]
    assert names(folder) == sorted(expected)


def test_what_cannot_be_removed_is_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for checkpoint_id in (1, 2):
        write(CheckpointStorage(folder), checkpoint_id)
    files = NthCallFails(1, errno.EACCES, for_good=True)
    with caplog.at_level(logging.WARNING, "netstack"):
        assert CheckpointStorage(folder, keep=1, files=files).prune() == []
    assert "no checkpoint is removed: the checkpoint folder" in caplog.text

    class NothingGoes(CheckpointFiles):
        def remove(self, path: str) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with caplog.at_level(logging.WARNING, "netstack"):
        CheckpointStorage(folder, keep=1, files=NothingGoes()).prune()
    assert f"checkpoint files in {folder}/chk-00000001 cannot be removed" in caplog.text
    assert newest_id(CheckpointStorage(folder)) == 2


def test_a_folder_that_cannot_be_read(folder: Path) -> None:
    write(CheckpointStorage(folder), 1)
    listing = CheckpointStorage(folder, files=NthCallFails(1, errno.EACCES))
    with pytest.raises(CheckpointStorageError, match="cannot be listed: Permission denied"):
        listing.newest()
    reading = CheckpointStorage(folder, files=NthCallFails(3, errno.EIO))
    assert reading.newest() is None
    assert reading.refused[0].reason == "manifest.json cannot be read: Input/output error"


def test_what_is_in_the_place_of_a_checkpoint_is_refused_by_name_and_waits_for_nobody(
    storage: CheckpointStorage, folder: Path, tmp_path: Path
) -> None:
    write(storage, 1)
    for number in (2, 3, 4):
        write(storage, number)
    (folder / "chk-00000002").rename(tmp_path / "moved")
    (folder / "chk-00000002").symlink_to(tmp_path / "moved")  # to a larger disk
    state_file(folder, 3, "sink-0").unlink()
    os.mkfifo(folder / "chk-00000003" / "gone")
    (folder / "chk-00000004" / "manifest.json").unlink()
    os.mkfifo(folder / "chk-00000004" / "manifest.json")
    (folder / "chk-00000005").symlink_to(tmp_path / "nowhere")
    (folder / "chk-00000006").mkdir()
    (folder / "chk-00000006" / "manifest.json").symlink_to("/dev/zero")
    assert newest_id(storage) == 2
    assert storage.read(2) == snapshots(2)
    assert [(refused.name, refused.reason.split(".")[0]) for refused in storage.refused] == [
        ("chk-00000006", "manifest"),
        ("chk-00000005", "manifest"),
        ("chk-00000004", "manifest"),
        ("chk-00000003", "sink-0"),
    ]
    assert "not a regular file" in storage.refused[0].reason
    assert "not a regular file" in storage.refused[2].reason
    assert storage.next_id() == 7
    storage.prune(incomplete=True)
    assert names(tmp_path / "moved") == ["manifest.json", "sink-0.state", "sink-1.state", "source-0.state"]
    assert storage.next_id() == 7


def test_a_state_that_verifies_and_cannot_be_decoded_falls_back(storage: CheckpointStorage, folder: Path) -> None:
    write(storage, 1)
    body = lz4.frame.compress(b"\x81" * 5000)
    data = struct.pack(">6sHQ", b"NSCKPT", 2, len(body)) + body
    crc32 = zlib.crc32(data)
    file = TaskFile("sink", 0, len(data) + 4, crc32)
    (folder / "chk-00000002").mkdir()
    (folder / "chk-00000002" / file.name).write_bytes(data + crc32.to_bytes(4, "big"))
    storage.complete(Manifest(2, CREATED, {"sink": 1}, (file,)))
    assert newest_id(storage) == 1
    assert "hold a snapshot" in storage.refused[0].reason


def test_what_is_not_read_back_as_it_was_written_is_not_acknowledged(folder: Path) -> None:
    class Forgetful(CheckpointFiles):
        def write(self, file: io.RawIOBase, data: memoryview) -> int:
            super().write(file, memoryview(bytes(len(data))))
            return len(data)

    with pytest.raises(CheckpointStorageError, match="the file differs from what was written"):
        CheckpointStorage(folder, files=Forgetful()).write_task(1, snapshots(1)[0])


def test_two_storages_write_the_same_checkpoint(folder: Path) -> None:
    here, there = CheckpointStorage(folder), CheckpointStorage(folder)
    files = tuple(
        storage.write_task(1, snapshot) for storage, snapshot in zip([here, there, here], snapshots(1), strict=True)
    )
    here.complete(Manifest(1, CREATED, {"sink": 2, "source": 1}, files))
    assert there.read(1) == snapshots(1)


def test_keeping_none_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="keep=0 checkpoints"):
        CheckpointStorage(folder, keep=0)


@pytest.mark.parametrize("place", ["chk-00000007", "finals", "finals/chk-00000000"])
def test_nothing_is_written_through_a_link_below_the_folder(folder: Path, tmp_path: Path, place: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).symlink_to(elsewhere)
    snapshot = TaskSnapshot("sink", 0, {})
    write = FinalStates(folder).write if "finals" in place else partial(CheckpointStorage(folder).write_task, 7)
    with pytest.raises(CheckpointStorageError, match="is no folder, or a link to one, which is not followed"):
        write(snapshot)
    assert [path for path in elsewhere.rglob("*") if not path.is_dir()] == []


def test_a_folder_that_becomes_a_link_while_a_file_is_created_gets_nothing(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    class Swaps(CheckpointFiles):
        def create(self, path: str) -> io.RawIOBase:
            (folder / "chk-00000007").rmdir()
            (folder / "chk-00000007").symlink_to(elsewhere)
            return super().create(path)

    with pytest.raises(CheckpointStorageError, match="not followed"):
        CheckpointStorage(folder, files=Swaps()).write_task(7, TaskSnapshot("sink", 0, {}))
    assert [*elsewhere.iterdir()] == []


@pytest.mark.parametrize("place", ["a/b", "a"])
def test_a_folder_below_the_root_that_becomes_a_link_is_neither_written_nor_cleared(tmp_path: Path, place: str) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    folder = root / "a" / "b"
    storage = CheckpointStorage(folder, root=str(root))
    for number in range(1, 7):
        write(storage, number)
    final = FinalStates(folder, root=str(root)).write(TaskSnapshot("sink", 0, {}))
    moved = root / "moved"
    (root / place).rename(moved)
    (root / place).symlink_to(elsewhere)
    elsewhere.mkdir()
    there = elsewhere if place == "a/b" else elsewhere / "b"
    shutil.copytree(moved if place == "a/b" else moved / "b", there, dirs_exist_ok=True)
    before = sorted(each for each in elsewhere.rglob("*"))
    finals = FinalStates(folder, root=str(root))
    for change in (
        partial(storage.write_task, 7, TaskSnapshot("sink", 0, {})),
        partial(write, storage, 7),
        partial(finals.write, TaskSnapshot("sink", 1, {})),
        partial(CheckpointStorage(folder, root=str(root)).take_over, steal=True),
    ):
        with pytest.raises(CheckpointStorageError, match="not followed"):
            change()
    for clear in (storage.prune, partial(storage.discard, 6), storage.remove_all, finals.clear):
        with contextlib.suppress(CheckpointStorageError):
            clear()
    assert sorted(each for each in elsewhere.rglob("*")) == before
    (root / place).unlink()
    moved.rename(root / place)
    assert newest_id(storage) == 6
    assert finals.copy(final, 7, storage).task == "sink"


def test_links_to_the_root_itself_are_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    storage = CheckpointStorage(tmp_path / "root" / "job", root=str(tmp_path / "root"))
    write(storage, 1)
    assert newest_id(storage) == 1
