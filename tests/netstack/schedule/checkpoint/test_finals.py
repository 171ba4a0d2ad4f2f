"""The final state of an ended task counts in later checkpoints, also when its process is gone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from netstack.base.errors import CheckpointError, CheckpointStorageError
from netstack.schedule.checkpoint.finals import FinalStates
from netstack.schedule.checkpoint.snapshot import Manifest, TaskFile, TaskSnapshot
from netstack.schedule.checkpoint.storage import CheckpointStorage


def test_a_final_state_becomes_part_of_a_checkpoint(tmp_path: Path) -> None:
    written = FinalStates(tmp_path).write(TaskSnapshot("source -> map", 1, {"source": 7}))
    storage = CheckpointStorage(tmp_path)
    copied = FinalStates(tmp_path).copy(written, 5, storage)
    assert (copied.task, copied.subtask) == ("source -> map", 1)
    assert storage.next_id() == 6  # its own folder is no checkpoint
    assert (tmp_path / "chk-00000005" / copied.name).stat().st_size == copied.size_bytes


def test_attempts_do_not_write_over_each_other(tmp_path: Path) -> None:
    finals, storage = FinalStates(tmp_path), CheckpointStorage(tmp_path)
    first = finals.write(TaskSnapshot("a", 0, 1))
    finals.write(TaskSnapshot("a", 0, 2))
    file = finals.copy(first, 1, storage)
    storage.complete(Manifest(1, datetime.now(UTC), {"a": 1}, (file,)))
    assert storage.read(1) == [TaskSnapshot("a", 0, 1)]


def test_what_is_gone_or_damaged_is_refused(tmp_path: Path) -> None:
    finals, storage = FinalStates(tmp_path), CheckpointStorage(tmp_path)
    file = finals.write(TaskSnapshot("a", 0, 1))
    (path,) = (tmp_path / "finals").rglob("*.state")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointStorageError, match="CRC"):
        finals.copy(file, 1, storage)
    finals.clear()
    with pytest.raises(CheckpointStorageError, match="missing"):
        finals.copy(file, 1, storage)
    with pytest.raises(CheckpointStorageError, match="missing"):
        finals.copy(TaskFile("b", 0, 1, 2), 1, storage)


def test_a_state_that_is_no_plain_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be stored"):
        FinalStates(tmp_path).write(TaskSnapshot("a", 0, object()))
