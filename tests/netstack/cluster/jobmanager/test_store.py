"""What was put into the folder is there after any kill, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from jobmanager.scripted_taskmanager import at_once
from trio.testing import MockClock

from netstack.base.errors import ConfigError
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.service import LEASE_S, keep_folder, open_jobmanager, wait_for_folder
from netstack.cluster.jobmanager.store import JobStore, JobStoreFenced, StoredJob, open_job_store
from netstack.cluster.jobmanager.stored_files import JobStoreError, encoded

JOB = StoredJob("0123456789abcdef", {"name": "words", "operators": []}, 17.5, 3, {"pack": "a" * 64}, {"pack": "b"})
END = {"state": "finished", "reason": "", "ended_at": 18.5, "results": {}}
OLD = {
    "format": 1,
    "job_id": "x",
    "document": {},
    "submitted_at": 1,
    "restore": None,
    "code": {},
    "builds": {},
}
"""A document of 0.4.0, which has no checksum."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    with open_job_store(tmp_path) as opened:
        yield opened


def test_jobs_come_back_as_they_were(store: JobStore) -> None:
    store.put(JOB)
    assert store.jobs() == ([JOB], [])
    store.put_end(JOB.job_id, END)
    (actual,), _ = store.jobs()
    assert actual.end == {"format": 2, **END}
    left = replace(JOB, not_restored=("count",))
    store.put(left)
    (actual,), _ = store.jobs()
    assert actual.not_restored == left.not_restored
    store.forget(JOB.job_id)
    assert store.jobs() == ([], [])


def test_results_that_are_no_json_come_back_as_they_were(store: JobStore) -> None:
    results = {"sink": {"0": {b"word": 1, 7: [b"\xff", None, 1.5]}}}
    store.put(JOB)
    store.put_end(JOB.job_id, {**END, "results": results})
    (actual,), _ = store.jobs()
    assert actual.end == {"format": 2, **END, "results": results}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"format": 9}', "checksum is wrong"),
        ('{"format": 2}', "checksum is wrong"),
        ("[]", "checksum is wrong"),
        (encoded({"format": 9}).decode(), "another format"),
        ('{"format": 1}', "has no field 'job_id'"),
        (json.dumps({**OLD, "document": []}), "the field 'document' is a list"),
        (json.dumps({**OLD, "restore": "x"}), "the field 'restore' is a str"),
        (json.dumps({**OLD, "submitted_at": True}), "the field 'submitted_at' is a bool"),
        (json.dumps({**OLD, "code": {"pack": 1}}), "does not describe a job"),
        (json.dumps(OLD), "another job"),
    ],
)
def test_a_damaged_job_is_named_and_hides_no_other(store: JobStore, text: str, reason: str) -> None:
    store.put(JOB)
    folder = store.folder / "jobs" / "fedcba9876543210"
    folder.mkdir()
    (folder / "job.json").write_text(text)
    actual, damaged = store.jobs()
    assert actual == [JOB]
    assert reason in damaged[0]
    assert str(folder / "job.json") in damaged[0]


def test_a_folder_counts_the_jobmanagers_it_had(tmp_path: Path) -> None:
    for life in range(3):
        with open_job_store(tmp_path) as opened:
            assert opened.life == life
    (tmp_path / "life.json").write_text("{}")
    with (
        pytest.raises(JobStoreError, match=r"life\.json is damaged: .* stop all TaskManagers"),
        open_job_store(tmp_path),
    ):
        pass


def test_a_submission_that_was_cut_short_is_no_job(store: JobStore) -> None:
    folder = store.folder / "jobs" / "fedcba9876543210"
    folder.mkdir(parents=True)
    (folder / "job.json.part").write_text("{")
    assert store.jobs() == ([], [])


def test_code_is_kept_by_its_hash(store: JobStore) -> None:
    digest = store.put_code(b"package")
    assert store.code_bytes(digest) == 7
    assert [store.code_part(digest, offset, 4) for offset in (0, 4, 8)] == [b"pack", b"age", b""]
    path = Path(store.code_path(digest))
    os.truncate(path, 1 << 40)
    assert store.code_bytes(digest) == 1 << 40
    assert store.code_part(digest, 1 << 39, 4) == bytes(4)  # and no more of it is read
    os.truncate(path, 0)
    path.write_bytes(b"damaged")
    store.put_code(b"package")
    assert path.read_bytes() == b"package"
    for read in (store.code_bytes, lambda digest: store.code_part(digest, 0, 4)):
        with pytest.raises(JobStoreError, match="submit the job again"):
            read("0" * 64)
        with pytest.raises(JobStoreError, match="not the SHA-256"):
            read("../../etc/passwd")


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    in_use = pytest.raises(ConfigError, match="another JobManager")
    with open_job_store(tmp_path), in_use, open_job_store(tmp_path):
        pass
    with open_job_store(tmp_path):
        pass


def test_who_was_replaced_writes_nothing_that_counts(tmp_path: Path) -> None:
    with open_job_store(tmp_path) as first:
        first.put(JOB)
        first.renew()
        with open_job_store(tmp_path, steal=True) as second:
            assert (second.is_stolen, second.life) == (True, 1)
            ((actual,), _) = second.jobs()
            assert actual.end is None
            second.put_taken_up(JOB.job_id)
            for step in (
                first.renew,
                lambda: first.put_end(JOB.job_id, END),
                lambda: first.put_committing(JOB.job_id),
            ):
                with pytest.raises(JobStoreFenced, match="took over"):
                    step()
            second.renew()
            ((actual,), _) = second.jobs()
            assert (actual.end, actual.is_committing) == (None, False)
            with pytest.raises(ConfigError, match="in use"), open_job_store(tmp_path):
                pass
            second.put_end(JOB.job_id, {**END, "state": "failed"})
    with open_job_store(tmp_path) as third:
        assert (third.is_stolen, third.life) == (False, 2)
        ((actual,), _) = third.jobs()
        assert actual.end is not None
        assert actual.end["state"] == "failed"


async def test_a_folder_whose_lock_was_removed_is_taken_from_its_holder(tmp_path: Path) -> None:
    """Its jobs failed, because their checkpoint folders belonged to the holder, which then ended."""
    with open_job_store(tmp_path) as first:
        (tmp_path / "lock").unlink()
        assert await wait_for_folder(str(tmp_path), at_once) is False
        with open_job_store(tmp_path) as second:
            assert second.is_stolen
            with pytest.raises(JobStoreFenced):
                first.renew()


def test_a_job_stored_by_a_replaced_jobmanager_is_moved_aside_by_the_next_one(tmp_path: Path) -> None:
    """Its submission was refused, and the user submitted it again: it ran, and committed, twice."""
    with open_job_store(tmp_path) as first, open_job_store(tmp_path, steal=True) as second:
        assert second.jobs() == ([], [])
        with pytest.raises(JobStoreFenced):
            first.put(JOB)
        second.put(replace(JOB, job_id="fedcba9876543210"))
    with open_job_store(tmp_path) as third:
        ((job,), (text,)) = third.jobs()
        assert job.job_id == "fedcba9876543210"
        assert JOB.job_id in text
        assert str(tmp_path / "aside" / JOB.job_id) in text
        assert not (tmp_path / "jobs" / JOB.job_id).exists()
        assert (tmp_path / "aside" / JOB.job_id / "job.json").exists()
        assert third.jobs() == ([job], [])


def test_a_job_that_could_not_be_read_for_a_while_runs_when_it_can(tmp_path: Path) -> None:
    """It was not among the known jobs then, and was removed when its file was repaired."""
    with open_job_store(tmp_path) as first:
        first.put(JOB)
        digest = first.put_code(b"package")
    path = tmp_path / "jobs" / JOB.job_id / "job.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with open_job_store(tmp_path) as second:
        actual, (text,) = second.jobs()
        assert (actual, "neither run nor shown" in text) == ([], True)
        second.prune_code((), -1.0, 0)
        assert second.code_bytes(digest) == 7, "the job may use it"
    path.write_bytes(whole)
    with open_job_store(tmp_path) as third:
        assert third.jobs() == ([JOB], [])
        third.prune_code((), -1.0, 0)
        with pytest.raises(JobStoreError):
            third.code_bytes(digest)


def test_documents_of_0_4_0_are_read_and_written_with_a_checksum(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "x").mkdir(parents=True)
    (tmp_path / "life.json").write_text('{"format": 1, "life": 4}')
    (tmp_path / "known.json").write_text('{"format": 1, "jobs": ["x"], "life": 4}')
    (tmp_path / "jobs" / "x" / "job.json").write_text(json.dumps({**OLD, "life": 3}))
    with open_job_store(tmp_path) as store:
        ((job,), texts) = store.jobs()
        assert (store.life, job.job_id, job.life, texts) == (5, "x", 3, [])
    for name in ("life.json", "known.json"):
        assert (tmp_path / name).read_bytes().startswith(b'{"crc32": "')


def test_other_users_read_nothing_and_cannot_hold_the_lock(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "jobs"
    (tmp_path / "above").mkdir()
    with open_job_store(folder) as store:
        store.put(JOB)
        store.put_end(JOB.job_id, END)
        store.put_code(b"package")
        modes = {path: path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}
        assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
        assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    (folder / "lock").chmod(0o666)  # as 0.4.0 left it, less the umask
    with open_job_store(folder):
        assert (folder / "lock").stat().st_mode & 0o777 == 0o600
        with (
            pytest.raises(ConfigError, match=rf"process {os.getpid()}, \S+, of user {os.getuid()}"),
            open_job_store(folder),
        ):
            pass


def test_a_pipe_in_the_place_of_a_document_holds_up_nobody(store: JobStore) -> None:
    store.put(JOB)
    folder = store.folder / "jobs" / "fedcba9876543210"
    folder.mkdir()
    os.mkfifo(folder / "job.json")
    actual, (text,) = store.jobs()
    assert actual == [JOB]
    assert "not a regular file" in text


def test_jobs_stay_when_the_next_jobmanager_did_not_get_as_far_as_reading_them(tmp_path: Path) -> None:
    with open_job_store(tmp_path) as first:
        first.put(JOB)
        assert first.jobs() == ([JOB], [])
    for _ in range(2):
        with open_job_store(tmp_path):
            pass
    with open_job_store(tmp_path) as fourth:
        assert fourth.jobs() == ([JOB], [])


def test_what_was_there_before_the_folder_was_taken_counts(tmp_path: Path) -> None:
    with open_job_store(tmp_path) as first:
        first.put(JOB)
        first.put_end(JOB.job_id, END)
        with open_job_store(tmp_path, steal=True) as second:
            ((actual,), _) = second.jobs()
            assert actual.end is not None
            assert actual.end["state"] == "finished"


async def test_a_standby_waits_as_long_as_the_holder_shows_itself(autojump_clock: MockClock, tmp_path: Path) -> None:
    assert await wait_for_folder(str(tmp_path / "nobody"), at_once) is False
    with open_job_store(tmp_path) as holder:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_folder, holder, at_once)
            with trio.move_on_after(60.0) as waited:
                await wait_for_folder(str(tmp_path), at_once)
            assert waited.cancelled_caught
            nursery.cancel_scope.cancel()
        began_s = trio.current_time()
        assert await wait_for_folder(str(tmp_path), at_once) is True
        assert LEASE_S < trio.current_time() - began_s < LEASE_S + 2.0
    assert await wait_for_folder(str(tmp_path), at_once) is False


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JobStoreError, match="cannot be the folder"), open_job_store(tmp_path / "file"):
        pass


async def test_a_temporary_folder_that_a_killed_jobmanager_left_is_removed_by_the_next_one(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names = left, alive, other = "netstack-jobmanager-left", "netstack-jobmanager-alive", "netstack-other"
    with open_job_store(tmp_path / alive):
        for name in (left, other):
            with open_job_store(tmp_path / name):
                pass
        config = JobManagerConfig(listen="memory://jobmanager-with-a-temporary-folder")
        async with open_jobmanager(config, in_thread=at_once):
            there = {*os.listdir(tmp_path)}
            assert there & {*names} == {alive, other}
            assert len(there) == 3
        assert {*os.listdir(tmp_path)} == {alive, other}
