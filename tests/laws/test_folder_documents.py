"""Each bit of each document in a JobManager's folder, flipped: it is noticed and named, and costs nothing else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from netstack.cluster.jobmanager.store import JobStore, StoredJob, open_job_store
from netstack.cluster.jobmanager.stored_files import JobStoreError

pytestmark = pytest.mark.slow
RUNS = StoredJob("0" * 16, {"name": "runs"}, 17.5, 3, {"pack": "a"})
ENDED, COMMITS = replace(RUNS, job_id="1" * 16), replace(RUNS, job_id="2" * 16)
END = {"state": "finished", "reason": "", "ended_at": 18.5, "results": {"sink": {"0": {b"word": 1}}}}
DATASET = {
    "dataset_id": "set",
    "job_id": ENDED.job_id,
    "job_name": "runs",
    "created_at": 1.5,
    "format": "str",
    "partitions": [],
}
JOBS = {RUNS.job_id, ENDED.job_id, COMMITS.job_id}


def contents(folder: Path) -> dict[str, bytes]:
    """All files that somebody may miss."""
    own = ("lock", "known.json", "life.json")
    actual = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in actual.items() if name not in own}


def fill(folder: Path) -> None:
    for _ in range(2):  # the second one knows the jobs
        with open_job_store(folder) as store:
            for job in (RUNS, ENDED, COMMITS):
                if not (folder / "jobs" / job.job_id).exists():
                    store.put(job)
                store.put_taken_up(job.job_id)
            store.put_end(ENDED.job_id, END)
            store.put_committing(COMMITS.job_id)
            store.put_dataset("set", DATASET)
            assert store.jobs()[1] == []


DOCUMENTS = [
    "known.json",
    f"jobs/{RUNS.job_id}/job.json",
    f"jobs/{RUNS.job_id}/life.json",
    f"jobs/{ENDED.job_id}/end.json",
    f"jobs/{ENDED.job_id}/life.json",
    f"jobs/{COMMITS.job_id}/committing.json",
    "datasets/*.json",
    "life.json",
]


@pytest.mark.whole
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_flipped_bit_is_named_and_costs_nothing_else(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # nobody cuts the power here
    fill(tmp_path)
    (path,) = tmp_path.glob(name)
    whole = path.read_bytes()
    known = (tmp_path / "known.json").read_bytes()
    before = contents(tmp_path)
    hurt = {path.parent.name} & JOBS
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        if name == "life.json":
            with pytest.raises(JobStoreError, match=r"life\.json.*stop all TaskManagers"), open_job_store(tmp_path):
                pass
        else:
            store = JobStore(tmp_path, life=7)
            jobs, texts = store.jobs()
            datasets, more = store.datasets()
            assert {job.job_id for job in jobs} == JOBS - hurt, bit
            assert [(job.end is not None, job.is_committing) for job in jobs] == [
                (job_id == ENDED.job_id, job_id == COMMITS.job_id) for job_id in sorted(JOBS - hurt)
            ], bit
            assert datasets == ([] if name.startswith("datasets") else [DATASET]), bit
            assert store.may_have_dataset("set")
            assert [str(path) in text for text in (*texts, *more)] == [True], bit
        path.write_bytes(whole)
        (tmp_path / "known.json").write_bytes(known)
    assert contents(tmp_path) == before


def test_each_document_of_a_folder_is_in_the_law(tmp_path: Path) -> None:
    fill(tmp_path)
    flipped = {path for name in DOCUMENTS for path in tmp_path.glob(name)}
    kinds = {path.name if path.parent.name != "datasets" else "datasets" for path in flipped}
    others = [
        path
        for path in tmp_path.rglob("*.json")
        if path not in flipped and (path.name if path.parent.name != "datasets" else "datasets") not in kinds
    ]
    assert others == []
