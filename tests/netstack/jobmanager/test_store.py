"""What was put into the folder is there after any kill, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from netstack.errors import ConfigError
from netstack.jobmanager.store import JobStore, JobStoreError, StoredJob, open_job_store

JOB = StoredJob("0123456789abcdef", {"name": "words", "operators": []}, 17.5, 3, {"pack": "a" * 64}, {"pack": "b"})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    with open_job_store(tmp_path) as opened:
        yield opened


def test_jobs_come_back_as_they_were(store: JobStore) -> None:
    store.put(JOB)
    assert store.jobs() == ([JOB], [])
    store.put_end(JOB.job_id, {"state": "finished"})
    (found,), _ = store.jobs()
    assert found.end == {"format": 1, "state": "finished"}
    store.forget(JOB.job_id)
    assert store.jobs() == ([], [])


def test_results_that_are_no_json_come_back_as_they_were(store: JobStore) -> None:
    results = {"sink": {"0": {b"word": 1, 7: [b"\xff", None, 1.5]}}}
    store.put(JOB)
    store.put_end(JOB.job_id, {"state": "finished", "results": results})
    (found,), _ = store.jobs()
    assert found.end == {"format": 1, "state": "finished", "results": results}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"format": 9}', "another format"),
        ('{"format": 1}', "does not describe a job"),
        (
            json.dumps(
                {
                    "format": 1,
                    "job_id": "x",
                    "document": {},
                    "submitted_at": 1,
                    "restore": None,
                    "code": {},
                    "builds": {},
                }
            ),
            "another job",
        ),
    ],
)
def test_a_damaged_job_is_named_and_hides_no_other(store: JobStore, text: str, reason: str) -> None:
    store.put(JOB)
    folder = store.folder / "jobs" / "fedcba9876543210"
    folder.mkdir()
    (folder / "job.json").write_text(text)
    found, damaged = store.jobs()
    assert found == [JOB]
    assert reason in damaged[0]
    assert str(folder / "job.json") in damaged[0]


def test_a_folder_counts_the_jobmanagers_it_had(tmp_path: Path) -> None:
    for life in range(3):
        with open_job_store(tmp_path) as opened:
            assert opened.life == life
    (tmp_path / "life.json").write_text("{}")
    with (
        pytest.raises(JobStoreError, match=r"life\.json does not say how many JobManagers had the folder"),
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
    assert store.code(digest) == b"package"
    (store.folder / "code" / f"{digest}.zip").write_bytes(b"other")
    with pytest.raises(JobStoreError, match="is damaged"):
        store.code(digest)
    with pytest.raises(JobStoreError, match="submit the job again"):
        store.code("0" * 64)
    with pytest.raises(JobStoreError, match="no SHA-256"):
        store.code("../../etc/passwd")


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    in_use = pytest.raises(ConfigError, match="in use by another JobManager")
    with open_job_store(tmp_path), in_use, open_job_store(tmp_path):
        pass
    with open_job_store(tmp_path):
        pass


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JobStoreError, match="cannot be the folder"), open_job_store(tmp_path / "file"):
        pass
