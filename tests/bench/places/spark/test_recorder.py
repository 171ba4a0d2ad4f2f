"""The journal of nodes: kept from session to session, whole or not at all, and in step with the rows of runs."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from netstack_bench.grid import Grid, PlannedRun
from netstack_bench.places.spark.spec import SparkSpec
from netstack_bench.places.spark.sweep import Recorder
from netstack_bench.store import Store, StoreError

(RUN,) = Grid(timeouts_s=(0.0,), record_sizes=(8,), channels=(1,), latency_seconds=0).with_spec(SparkSpec).plan()


def add(recorder: Recorder, run: PlannedRun = RUN, **facts: object) -> None:
    recorder.begin(run)
    recorder.add([{"run_id": run.spec.run_id, "rank": rank, "kind": "ok", "error": None, **facts} for rank in (0, 1)])


def finish(store: Store, error: str | None = None) -> None:
    row = {"run_id": RUN.spec.run_id, "repeat": 0, "started_at": "2026-01-01T00:00:00Z"}
    store.append({**row, "error": error, "delivered": error is None})


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """A disk with so much room in each file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_sweep_keeps_its_name_and_shares_it_with_no_other(tmp_path: Path) -> None:
    with Store(tmp_path / "a" / "my sweep") as store:
        first = Recorder(store, None)
        add(first)
        again = Recorder(store, None)
    with Store(tmp_path / "b" / "my sweep") as store:
        other = Recorder(store, None)
    assert first.sweep_id == again.sweep_id != other.sweep_id
    assert first.sweep_id.startswith("my-sweep-")


def test_only_runs_that_the_store_has_count_and_the_last_of_each(tmp_path: Path) -> None:
    with Store(tmp_path / "sweep") as store:
        recorder = Recorder(store, None)
        add(recorder, records=1)
        assert recorder.rows() == []  # its process was killed before the run's own row
        add(recorder, records=2)
        finish(store)
        rows = recorder.rows()
    assert [(row["rank"], row["records"]) for row in rows] == [(0, 2), (1, 2)]
    assert {row["started_at"] for row in rows} == {"2026-01-01T00:00:00Z"}
    assert {row["buffer_timeout_s"] for row in rows} == {0.0}


def test_what_is_wrong_with_a_run_is_wrong_with_its_nodes(tmp_path: Path) -> None:
    with Store(tmp_path / "sweep") as store:
        recorder = Recorder(store, None)
        add(recorder)
        finish(store, error := "not delivered: 3 records were sent, 2 arrived")
        assert {row["error"] for row in recorder.rows()} == {error}


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    with Store(tmp_path / "sweep") as store:
        recorder = Recorder(store, None)
        add(recorder)
        finish(store)
        recorder.path.write_bytes(recorder.path.read_bytes()[:-20])
        assert [row["rank"] for row in Recorder(store, None).rows()] == [0]
        add(recorder)  # of a session that came after
        assert [row["rank"] for row in Recorder(store, None).rows()] == [0, 1]


def test_a_full_disk_leaves_the_journal_as_it_was_and_says_what_to_do(tmp_path: Path) -> None:
    with Store(tmp_path / "sweep") as store:
        recorder = Recorder(store, None)
        add(recorder)
        before = recorder.path.read_bytes()
        with files_of_at_most(len(before) + 100), pytest.raises(StoreError, match="free disk space, and run the same"):
            add(recorder)
        assert recorder.path.read_bytes() == before
