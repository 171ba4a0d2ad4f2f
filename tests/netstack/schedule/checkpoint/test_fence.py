"""Two masters on one folder of checkpoints: one of them completes, and knows."""

from __future__ import annotations

import errno
import io
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from netstack.base.errors import CheckpointFenced, CheckpointStorageError
from netstack.schedule.checkpoint.files import CheckpointFiles
from netstack.schedule.checkpoint.snapshot import Manifest, TaskSnapshot
from netstack.schedule.checkpoint.storage import CheckpointStorage, CompletedCheckpoint

CREATED = datetime(2026, 11, 22, tzinfo=UTC)


def take(storage: CheckpointStorage, checkpoint_id: int, state: object = None) -> CompletedCheckpoint:
    file = storage.write_task(checkpoint_id, TaskSnapshot("sink", 0, state))
    return storage.complete(Manifest(checkpoint_id, CREATED, {"sink": 1}, (file,)))


def epochs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("epoch-*"))


class InTheMiddle(CheckpointFiles):
    """The real system calls; before one of them something else happens."""

    def __init__(self, moment: int, action: Callable[[], None]) -> None:
        self.calls = 0
        self._moment = moment
        self._action = action

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self._moment:
            self._action()

    def make_folder(self, path: str) -> None:
        self._count()
        super().make_folder(path)

    def create(self, path: str) -> io.RawIOBase:
        self._count()
        return super().create(path)

    def write(self, file: io.RawIOBase, data: memoryview) -> int:
        self._count()
        return super().write(file, data)

    def sync(self, file: io.RawIOBase) -> None:
        self._count()

    def sync_folder(self, path: str) -> None:
        self._count()

    def publish(self, old: str, new: str) -> None:
        self._count()
        super().publish(old, new)

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def read(self, path: str) -> Iterator[bytes]:
        self._count()
        return super().read(path)

    def size_bytes(self, path: str) -> int:
        self._count()
        return super().size_bytes(path)

    def list_folder(self, path: str) -> list[tuple[str, bool]]:
        self._count()
        return super().list_folder(path)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)


def test_an_older_epoch_completes_nothing(tmp_path: Path) -> None:
    old, new = CheckpointStorage(tmp_path, owner="job a"), CheckpointStorage(tmp_path, owner="job b")
    assert old.take_over() == 1
    take(old, 1, "old")
    file = old.write_task(2, TaskSnapshot("sink", 0, "old"))
    assert new.take_over() == 2
    assert epochs(tmp_path) == ["epoch-00000002"]
    with pytest.raises(CheckpointFenced, match=r"job b \(process \d+ on .*, .* has epoch 1"):
        old.complete(Manifest(2, CREATED, {"sink": 1}, (file,)))
    with pytest.raises(CheckpointFenced):
        old.prune()
    take(new, 2, "new")
    old.discard(2)  # of an abort that it owed: not its own any more
    assert new.read(2)[0].operator == "new"
    assert new.newest() is not None
    assert new.take_over() == 3  # again, by itself
    take(new, 3)


def test_both_may_write_states_of_one_number_without_harm(tmp_path: Path) -> None:
    old, new = CheckpointStorage(tmp_path), CheckpointStorage(tmp_path)
    old.take_over()
    new.take_over()
    file = new.write_task(5, TaskSnapshot("sink", 0, "new"))
    old.write_task(5, TaskSnapshot("sink", 0, "old"))
    new.complete(Manifest(5, CREATED, {"sink": 1}, (file,)))
    with pytest.raises(CheckpointStorageError, match="is already complete"):
        old.write_task(5, TaskSnapshot("sink", 0, "later"))
    assert new.read(5)[0].operator == "new"


def test_at_whatever_moment_the_folder_is_taken_over_both_agree_on_what_is_complete(tmp_path: Path) -> None:
    """What the old master is told to be complete, the new one goes on from."""
    outcomes = set()
    for moment in range(1, 100):
        folder = tmp_path / str(moment)
        seen: list[CompletedCheckpoint | None] = []

        def taken_over(folder: Path = folder, seen: list[CompletedCheckpoint | None] = seen) -> None:
            new = CheckpointStorage(folder)
            new.take_over()
            seen.append(new.newest())
            following = new.next_id()
            take(new, following, "new")
            seen.append(new.newest())

        first = CheckpointStorage(folder)
        take(first, 1, "old")
        files = InTheMiddle(1 << 30, taken_over)
        old = CheckpointStorage(folder, files=files)
        old.take_over()
        file = old.write_task(2, TaskSnapshot("sink", 0, "old"))
        files._moment = files.calls + moment
        is_complete = True
        try:
            old.complete(Manifest(2, CREATED, {"sink": 1}, (file,)))
        except CheckpointStorageError:
            is_complete = False
        is_over = not seen
        if is_over:
            assert is_complete
            taken_over()
        basis, after = seen
        assert basis is not None
        outcomes.add((is_complete, basis.checkpoint_id))
        if is_complete:
            assert basis.checkpoint_id == 2
        # And whoever starts next goes on from the new master's, whatever the old one has left.
        newest = CheckpointStorage(folder).newest()
        assert newest == after
        assert newest is not None
        assert newest.manifest.epoch > old._fence.epoch
        if is_over:
            break
    else:
        raise AssertionError("one hundred calls do not suffice")
    assert outcomes == {(False, 1), (False, 2), (True, 2)}


def test_of_two_histories_the_newer_epoch_counts_whatever_its_numbers(tmp_path: Path) -> None:
    old, new = CheckpointStorage(tmp_path), CheckpointStorage(tmp_path)
    take(old, 50, "old")
    manifest = tmp_path / "chk-00000050" / "manifest.json"
    kept = manifest.read_bytes()
    manifest.unlink()
    new.take_over()
    take(new, 45, "new")
    manifest.write_bytes(kept)  # published by a fenced master, told to nobody
    newest = new.newest()
    assert newest is not None
    assert newest.checkpoint_id == 45
    assert "of epoch 1, whose master was replaced before epoch 2 completed checkpoint 45" in new.refused[0].reason


@pytest.mark.parametrize("contents", [b"", b"{", b"[" * 100_000, b"\xff", b"[]", b'{"used": "x", "owner": 5}'])
def test_a_damaged_epoch_still_counts(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "epoch-00000007").write_bytes(contents)
    storage = CheckpointStorage(tmp_path)
    assert storage.next_id() == 1
    assert storage.take_over() == 8
    (tmp_path / "epoch-00000009").write_bytes(contents)
    with pytest.raises(CheckpointFenced, match=r"epoch 9 .* belongs to "):
        storage.prune()


def test_a_number_that_was_removed_is_not_used_again_whoever_takes_over(tmp_path: Path) -> None:
    first = CheckpointStorage(tmp_path)
    first.write_task(5, TaskSnapshot("sink", 0))
    first.discard(5)
    for _ in range(2):
        storage = CheckpointStorage(tmp_path)
        storage.take_over(steal=True)
        assert storage.next_id() == 6


def test_a_full_disk_keeps_the_number_by_the_folder(tmp_path: Path) -> None:
    class Full(CheckpointFiles):
        def create(self, path: str) -> io.RawIOBase:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    CheckpointStorage(tmp_path).write_task(1, TaskSnapshot("sink", 0))
    storage = CheckpointStorage(tmp_path, files=Full())
    with pytest.raises(CheckpointStorageError, match="taken over: No space"):
        storage.take_over()
    storage.discard(1)
    assert storage.prune() == []
    assert CheckpointStorage(tmp_path).next_id() == 2


CHANGES: dict[str, Callable[[CheckpointStorage], object]] = {
    "prune": lambda storage: storage.prune(),
    "prune all": lambda storage: storage.prune(incomplete=True),
    "discard the newest": lambda storage: storage.discard(9),
    "discard an older one": lambda storage: storage.discard(5),
    "complete": lambda storage: take(storage, 8),
    "take over": lambda storage: storage.take_over(steal=True),
}


def begun(folder: Path, files: CheckpointFiles) -> CheckpointStorage:
    """A folder with complete checkpoints, aborted ones before and behind them, and its master."""
    storage = CheckpointStorage(folder, keep=1, files=files)
    storage.take_over()
    for checkpoint_id in (1, 2, 3):
        take(storage, checkpoint_id)
    for checkpoint_id in (4, 5, 9):
        storage.write_task(checkpoint_id, TaskSnapshot("sink", 0))
    return storage


@pytest.mark.whole
@pytest.mark.parametrize("inner", CHANGES)
@pytest.mark.parametrize("outer", CHANGES)
def test_no_order_of_two_changes_fences_a_master_against_itself(tmp_path: Path, outer: str, inner: str) -> None:
    """A disk that was full for a second ended a job: one thread pruned, another discarded, and they fenced each other.

    One change happens before each system call of the other. The lock does not keep them apart: it is one thread.
    """
    for moment in range(1, 200):
        folder = tmp_path / str(moment)
        files = InTheMiddle(1 << 30, lambda: None)
        storage = begun(folder, files)
        done: list[object] = []

        def change(storage: CheckpointStorage = storage, done: list[object] = done) -> None:
            done.append(inner)
            try:
                CHANGES[inner](storage)
            except CheckpointFenced:
                raise
            except CheckpointStorageError as error:  # both complete checkpoint 8, or one removed it
                done.append(error)

        files._action, files._moment = change, files.calls + moment
        try:
            CHANGES[outer](storage)
        except CheckpointFenced:
            raise
        except CheckpointStorageError as error:
            done.append(error)
        if not done:
            break
        take(storage, 10)
        newest = CheckpointStorage(folder).newest()
        assert newest is not None
        assert newest.checkpoint_id == 10
    else:
        raise AssertionError("two hundred calls do not suffice")


@pytest.mark.parametrize("failure", ["write", "sync", "lock"])
def test_an_epoch_that_could_neither_be_written_nor_removed_fences_others_and_not_its_master(
    tmp_path: Path, failure: str
) -> None:
    class Broken(CheckpointFiles):
        is_broken = False

        def write(self, file: io.RawIOBase, data: memoryview) -> int:
            self._fail("write")
            return super().write(file, data)

        def sync(self, file: io.RawIOBase) -> None:
            self._fail("sync")

        def lock(self, path: str) -> int:
            self._fail("lock")
            return super().lock(path)

        def remove(self, path: str) -> None:
            if "epoch" in path:
                self._fail(failure)
            super().remove(path)

        def _fail(self, what: str) -> None:
            if self.is_broken and what == failure:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = Broken()
    earlier = CheckpointStorage(tmp_path)
    earlier.take_over()
    storage = CheckpointStorage(tmp_path, files=files)
    storage.take_over()
    storage.write_task(5, TaskSnapshot("sink", 0))
    files.is_broken = True
    storage.discard(5)
    files.is_broken = False
    assert epochs(tmp_path) == ["epoch-00000002", "epoch-00000003"]
    with pytest.raises(CheckpointFenced):
        earlier.prune()
    take(storage, 6)
    storage.discard(5)
    take(storage, 7)
    following = CheckpointStorage(tmp_path)
    assert following.take_over() > 3
    with pytest.raises(CheckpointFenced):
        storage.prune()


def test_a_master_that_was_replaced_takes_nothing_back_when_it_notes_a_number(tmp_path: Path) -> None:
    """Between the check of its epoch and the next epoch another master had come, and was fenced by the old one."""
    for moment in range(1, 100):
        folder = tmp_path / str(moment)
        following = CheckpointStorage(folder)
        files = InTheMiddle(1 << 30, lambda: None)
        old = CheckpointStorage(folder, files=files)
        old.take_over()
        old.write_task(5, TaskSnapshot("sink", 0))
        seen: list[int] = []
        files._action = lambda following=following, seen=seen: seen.append(following.take_over(steal=True))  # type: ignore[misc]
        files._moment = files.calls + moment
        old.discard(5)
        if not seen:
            break
        take(following, 10)
        with pytest.raises(CheckpointFenced):
            old.prune()
    else:
        raise AssertionError("one hundred calls do not suffice")


def test_changes_of_two_threads_take_turns(tmp_path: Path) -> None:
    threads: list[int] = []

    class Noting(InTheMiddle):
        def _count(self) -> None:
            threads.append(threading.get_ident())
            super()._count()

        def list_folder(self, path: str) -> list[tuple[str, bool]]:
            threads.append(threading.get_ident())
            return super().list_folder(path)

    files = Noting(1 << 30, lambda: None)
    storage = begun(tmp_path, files)
    other = threading.Thread(target=storage.discard, args=(9,))

    def begin() -> None:
        other.start()
        other.join(0.1)  # without turns it would end, or at least begin, within the other's change

    threads.clear()
    files._action, files._moment = begin, files.calls + 2
    storage.prune()
    other.join()
    assert len({*threads}) == 2
    assert [each for each, _ in itertools.groupby(threads)] == [threading.get_ident(), other.ident]


MASTER = """
import sys
from netstack.schedule.checkpoint.storage import CheckpointStorage
storage = CheckpointStorage(sys.argv[1], owner="job a")
print(storage.take_over(), flush=True)
for line in sys.stdin:
    try:
        print(storage.prune(), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""


@pytest.mark.slow
def test_a_master_whose_process_lives_is_not_replaced_unless_asked_for(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MASTER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "1\n"
            storage = CheckpointStorage(tmp_path, owner="job b")
            with pytest.raises(
                CheckpointFenced, match=rf"belongs to job a \(process {process.pid} on .*is still running"
            ):
                storage.prune(incomplete=True)
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(CheckpointFenced, match="is still running"):
                storage.take_over()
            assert storage.take_over(steal=True) == 2
            process.send_signal(signal.SIGCONT)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "CheckpointFenced\n"
        finally:
            process.kill()


@pytest.mark.slow
def test_the_folder_of_a_killed_master_is_free(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MASTER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.kill()
    assert CheckpointStorage(tmp_path).take_over() == 2
