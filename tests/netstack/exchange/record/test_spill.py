"""Temporary files for large records."""

from __future__ import annotations

import errno
import io
import mmap
import os
import stat
import tempfile
from pathlib import Path

import pytest

from netstack.base.errors import ConfigError, LocalProtocolError, SpillError
from netstack.exchange.record.spill import ATTEMPTS, FileSystem, SpillDirectory


class RecordingFiles(FileSystem):
    """The real system calls; remembers what was made and how it looked while it had a name."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.modes: list[int] = []

    def create(self, path: str) -> io.FileIO:
        self.paths.append(path)
        file = super().create(path)
        self.modes.append(stat.S_IMODE(os.stat(path).st_mode))
        return file


class FullDisk(RecordingFiles):
    """Takes `room_bytes`, at most `step_bytes` a call, then has no space."""

    def __init__(self, room_bytes: int, step_bytes: int = 1 << 20) -> None:
        super().__init__()
        self.room_bytes = room_bytes
        self.step_bytes = step_bytes
        self.files: list[io.FileIO] = []

    def create(self, path: str) -> io.FileIO:
        file = super().create(path)
        self.files.append(file)
        return file

    def write(self, file: io.FileIO, data: memoryview) -> int:
        if not self.room_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = super().write(file, data[: min(self.step_bytes, self.room_bytes)])
        self.room_bytes -= count
        return count


class RefusedDirectories(RecordingFiles):
    """Creates nothing in some directories."""

    def __init__(self, *refused: str) -> None:
        super().__init__()
        self.refused = refused

    def create(self, path: str) -> io.FileIO:
        if os.path.dirname(path) in self.refused:
            self.paths.append(path)
            raise PermissionError(errno.EACCES, "Permission denied")
        return super().create(path)


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_what_was_written_can_be_read_and_mapped(tmp_path: Path) -> None:
    file = SpillDirectory([str(tmp_path)]).create(8)
    file.append(memoryview(b"abc"))
    assert file.read() == b"abc"
    file.append(memoryview(b"defgh"))
    assert (file.size_bytes, file.wanted_bytes) == (8, 8)
    mapped = file.map()
    file.close()
    file.close()
    assert mapped[:] == b"abcdefgh"
    with pytest.raises(TypeError):
        mapped[0] = 1
    mapped.close()


def test_the_file_is_private_and_has_no_name_afterwards(tmp_path: Path) -> None:
    files = RecordingFiles()
    directory = SpillDirectory([str(tmp_path)], files=files)
    some = [directory.create(1) for _ in range(3)]
    assert list(tmp_path.iterdir()) == []
    names = {os.path.basename(path) for path in files.paths}
    assert len(names) == 3
    for name in names:
        stem, _, suffix = name.partition(".")
        assert suffix == "inputchannel"
        assert len(bytes.fromhex(stem)) == 20
    assert files.modes == [0o600] * 3
    for file in some:
        file.close()


def test_none_is_the_systems_directory() -> None:
    assert SpillDirectory().directories == (tempfile.gettempdir(),)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        SpillDirectory([])


def test_a_name_in_use_is_not_overwritten(tmp_path: Path) -> None:
    taken = tmp_path / ("00" * 20 + ".inputchannel")
    taken.write_bytes(b"mine")
    draws = iter([b"\0" * 4, b"\0" * 20, b"\0" * 4, b"\1" * 20])
    file = SpillDirectory([str(tmp_path)], random_bytes=lambda _: next(draws)).create(1)
    file.append(memoryview(b"x"))
    file.close()
    assert taken.read_bytes() == b"mine"


def test_names_that_never_get_free_end_after_ten_attempts(tmp_path: Path) -> None:
    (tmp_path / ("00" * 20 + ".inputchannel")).write_bytes(b"")
    files = RecordingFiles()
    with pytest.raises(SpillError, match="File exists"):
        SpillDirectory([str(tmp_path)], files=files, random_bytes=bytes).create(1)
    assert len(files.paths) == ATTEMPTS


def test_a_failing_directory_is_dropped_while_another_is_left(tmp_path: Path) -> None:
    bad, good = str(tmp_path / "bad"), str(tmp_path)
    files = RefusedDirectories(bad)
    directory = SpillDirectory([bad, good], files=files, random_bytes=bytes)  # zeros: the first one left
    directory.create(1).close()
    assert directory.directories == (good,)
    assert [os.path.dirname(path) for path in files.paths] == [bad, good]
    directory.create(1).close()
    assert len(files.paths) == 3


def test_every_directory_is_chosen_sometimes(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    files = RecordingFiles()
    draws = (index.to_bytes(4, "big") for index in range(6))
    directory = SpillDirectory(
        [str(tmp_path / name) for name in "abc"],
        files=files,
        random_bytes=lambda count: next(draws) if count == 4 else os.urandom(count),
    )
    for _ in range(6):
        directory.create(1).close()
    assert [os.path.basename(os.path.dirname(path)) for path in files.paths] == list("abcabc")


def test_the_last_directory_is_kept_and_its_error_told(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    directory = SpillDirectory([missing])
    with pytest.raises(SpillError, match=r"record of 123 bytes in .*missing.*No such file.*spill_directory") as caught:
        directory.create(123)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert directory.directories == (missing,)
    Path(missing).mkdir()
    directory.create(123).close()  # mended meanwhile


def test_all_directories_failing(tmp_path: Path) -> None:
    some = [str(tmp_path / str(index)) for index in range(3)]
    directory = SpillDirectory(some)
    with pytest.raises(SpillError):
        directory.create(1)
    assert len(directory.directories) == 1


def test_a_full_disk_says_how_much_was_wanted_and_closes_the_file(tmp_path: Path) -> None:
    before = open_descriptors()
    files = FullDisk(10, step_bytes=4)  # also: writes that take less than asked for
    file = SpillDirectory([str(tmp_path)], files=files).create(30)
    file.append(memoryview(b"1234567"))
    assert file.read() == b"1234567"
    with pytest.raises(SpillError, match=r"record of 30 bytes .* failed after 10: .*No space left.*spill_directory"):
        file.append(memoryview(b"890123"))
    assert files.files[0].closed
    with pytest.raises(LocalProtocolError, match="closed"):
        file.append(memoryview(b"1"))
    assert open_descriptors() == before


def test_a_name_that_cannot_be_removed_is_an_error_and_leaks_nothing(tmp_path: Path) -> None:
    class Sticky(FileSystem):
        def unlink(self, path: str) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

    before = open_descriptors()
    with pytest.raises(SpillError, match="not permitted"):
        SpillDirectory([str(tmp_path)], files=Sticky()).create(1)
    assert open_descriptors() == before


def test_disks_that_cannot_be_read_back(tmp_path: Path) -> None:
    class Unreadable(FileSystem):
        def read(self, file: io.FileIO, count: int, offset: int) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        def map(self, file: io.FileIO, size_bytes: int) -> mmap.mmap:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

    class Short(FileSystem):
        def read(self, file: io.FileIO, count: int, offset: int) -> bytes:
            return super().read(file, 1, offset) if offset < 2 else b""

    file = SpillDirectory([str(tmp_path)], files=Unreadable()).create(3)
    file.append(memoryview(b"abc"))
    with pytest.raises(SpillError, match="Input/output error"):
        file.read()
    with pytest.raises(SpillError, match="Cannot allocate memory"):
        file.map()
    file.close()
    short = SpillDirectory([str(tmp_path)], files=Short()).create(3)
    short.append(memoryview(b"abc"))
    with pytest.raises(SpillError, match="ends after 2"):
        short.read()
    short.close()


def test_closed_files_are_not_used(tmp_path: Path) -> None:
    file = SpillDirectory([str(tmp_path)]).create(3)
    file.close()
    with pytest.raises(LocalProtocolError):
        file.read()
    with pytest.raises(LocalProtocolError):
        file.map()
