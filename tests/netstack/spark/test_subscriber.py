"""A Subscriber without Spark: attempts, commits and what survives either end, over real connections."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("pyspark")  # the writers' side is Spark's

from netstack.base.errors import ConfigError, ConnectionLost, RemoteProtocolError, RequestRefused
from netstack.network.connection.authentication import Secret
from netstack.spark.consumer import StreamLocation
from netstack.spark.epoch_folder import Attempt, EpochFolder
from netstack.spark.sink import SinkSettings, StagedRows, abort, commit, stage
from netstack.spark.subscriber import Subscriber

QUERY = "0123456789abcdef"


def batch_of(*ids: int) -> Any:
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})


def ids_of(epoch: Any) -> list[int]:
    return [value for batch in epoch for value in batch.column(0).to_pylist()]


def to(subscriber: Subscriber, **more: Any) -> SinkSettings:
    location = StreamLocation(address=subscriber.address, **{"retry_s": 5.0, **more})
    return SinkSettings(location=location, stream="s")


def test_what_is_committed_is_an_epoch_and_what_is_not_is_none(tmp_path: Path) -> None:
    with Subscriber("tcp://127.0.0.1:0", "s", tmp_path) as subscriber:
        where = to(subscriber)
        lost = stage(where, QUERY, 0, iter([batch_of(9)]))  # another attempt of the same task counts
        first = stage(where, QUERY, 0, iter([batch_of(), batch_of(1, 2), batch_of(3)]))
        empty = stage(where, QUERY, 0, iter([batch_of()]))
        assert (first.rows, empty.token, lost.rows) == (3, "", 1)
        with pytest.raises(TimeoutError, match="the next epoch"):
            subscriber.next(timeout_s=0)
        commit(where, QUERY, 0, [empty, first, None])
        commit(where, QUERY, 0, [first])  # by a driver that did not hear the answer
        epoch = subscriber.next(timeout_s=120)
        assert ids_of(epoch) == ids_of(epoch) == [1, 2, 3]
        assert (epoch.number, epoch.writer, epoch.batch) == (0, QUERY, 0)
        repeated = stage(where, QUERY, 0, iter([batch_of(1, 2), batch_of(3)]))  # by one that died before it wrote it
        assert repeated == StagedRows(QUERY, 0, 0, "", 0)
        commit(where, QUERY, 0, [repeated])
        stage(where, QUERY, 1, iter([batch_of(7)]))
        abort(where, QUERY, 1)
        commit(where, QUERY, 1, [stage(where, QUERY, 1, iter([batch_of(4)]))])
        assert ids_of(subscriber.next(timeout_s=120)) == [4]
        subscriber.forget(epoch)
        assert len(list(tmp_path.glob("staged-*"))) == 1


def test_a_worker_that_comes_back_goes_on_where_its_state_is(tmp_path: Path) -> None:
    staged = []
    with Subscriber("tcp://127.0.0.1:0", "s", tmp_path) as subscriber:
        for batch in range(3):
            commit(to(subscriber), QUERY, batch, [stage(to(subscriber), QUERY, batch, iter([batch_of(batch)]))])
        staged.append(stage(to(subscriber), QUERY, 3, iter([batch_of(3)])))
        subscriber.forget(subscriber.next(timeout_s=120))
    (tmp_path / "half.arrow.part").touch()
    for resume, rows in ((None, [1]), (2, [2]), (3, [3])):
        with Subscriber("tcp://127.0.0.1:0", "s", tmp_path, resume=resume) as subscriber:
            if resume == 3:
                commit(to(subscriber), QUERY, 2, staged)  # long ago
                commit(to(subscriber), QUERY, 3, staged)
            assert ids_of(subscriber.next(timeout_s=120)) == rows
    assert not list(tmp_path.glob("*.part"))
    with pytest.raises(ConfigError, match=r"epoch 3, .* continues at 9"):
        EpochFolder(tmp_path, 9)
    with pytest.raises(ConfigError, match="ends with epoch -1"):
        EpochFolder(tmp_path / "another", 1)


def test_writers_wait_for_a_worker_that_does_not_keep_up(tmp_path: Path) -> None:
    with Subscriber("tcp://127.0.0.1:0", "s", tmp_path, max_epochs=1) as subscriber:
        where = to(subscriber)
        commit(where, QUERY, 0, [stage(where, QUERY, 0, iter([batch_of(0)]))])
        taken: list[int] = []

        def endless() -> Iterator[Any]:
            for at in range(64):
                taken.append(at)
                yield pa.RecordBatch.from_pydict({"id": pa.array(range(at << 13, (at + 1) << 13), pa.int64())})

        staged: list[StagedRows] = []
        writer = threading.Thread(target=lambda: staged.append(stage(where, QUERY, 1, endless())))
        writer.start()
        epoch = subscriber.next(timeout_s=120)
        writer.join(0.3)
        assert not staged  # 4 MiB: more than buffers hold
        assert len(taken) < 64
        subscriber.forget(epoch)
        writer.join(20)
        commit(where, QUERY, 1, staged)
        assert ids_of(subscriber.next(timeout_s=120)) == list(range(64 << 13))


def test_what_cannot_be_sent_says_why(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    secret.chmod(0o600)
    with Subscriber("tcp://127.0.0.1:0", "s", tmp_path / "f", secret=Secret(bytes(range(32)))) as subscriber:
        where = to(subscriber, secret_file=str(secret))
        with pytest.raises(RequestRefused, match="has the stream 's', not 't'"):
            stage(SinkSettings(location=where.location, stream="t"), QUERY, 0, iter([batch_of(1)]))
        with pytest.raises(RemoteProtocolError, match="requires a shared secret"):
            stage(to(subscriber, retry_s=0.0), QUERY, 0, iter([batch_of(1)]))
        with pytest.raises(RequestRefused, match="no attempt"):
            stage(where, "../../etc", 0, iter([batch_of(1)]))
        staged = stage(where, QUERY, 0, iter([batch_of(1)]))
        for path in (tmp_path / "f").glob("staged-*"):
            path.unlink()
        with pytest.raises(RequestRefused, match="Write the batch again"):
            commit(where, QUERY, 0, [staged])
    with pytest.raises(ConfigError, match="give a secret"):
        Subscriber("tcp://0.0.0.0:0", "s", tmp_path / "g")
    with pytest.raises((ConnectionLost, OSError)):
        stage(to(subscriber, retry_s=0.0), QUERY, 0, iter([batch_of(1)]))


def test_a_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def breaks() -> Iterator[Any]:
        yield batch_of(1)
        raise ValueError("row 2 is no number")

    with Subscriber("tcp://127.0.0.1:0", "s", tmp_path) as subscriber:
        with pytest.raises(ValueError, match="row 2 is no number"):
            stage(to(subscriber), QUERY, 0, breaks())
        commit(to(subscriber), QUERY, 0, [stage(to(subscriber), QUERY, 0, iter([batch_of(1)]))])
        assert ids_of(subscriber.next(timeout_s=120)) == [1]
    assert [path.suffix for path in tmp_path.glob("staged-*")] == [".arrow"]


def test_the_columns_of_a_stream_are_those_of_its_first_epoch(tmp_path: Path) -> None:
    def other(at: int) -> Any:
        return iter([pa.RecordBatch.from_pydict({"id": [at], "more": ["x"]})])

    for resume in (0, 1):
        with Subscriber("tcp://127.0.0.1:0", "s", tmp_path, resume=resume) as subscriber:
            where = to(subscriber)
            if resume == 0:
                stage(where, QUERY, 0, other(1))  # nothing is fixed by what is not committed
                late = stage(where, "f" * 16, 0, other(2))
                commit(where, QUERY, 0, [stage(where, QUERY, 0, iter([batch_of(1)]))])
                with pytest.raises(RequestRefused, match="'more', string"):
                    commit(where, "f" * 16, 0, [late])
                subscriber.forget(subscriber.next(timeout_s=120))
            with pytest.raises(RequestRefused, match="'more', string"):
                stage(where, QUERY, 1, other(3))


def committed(folder: EpochFolder, writer: str, batch: int, token: str = "0123456789abcdef") -> int | None:
    """An epoch of one row, processed at once."""
    attempt = Attempt(writer, batch, 0, token)
    with folder.staged(attempt) as file:
        file.write(batch_of(batch))
        file.finish()
    number = folder.commit(writer, batch, [attempt])
    folder.forget(folder.next_epoch)
    return number


@pytest.mark.long
def test_a_writer_is_remembered_however_many_come_after_it(tmp_path: Path) -> None:
    writers = 1500  # each is a `save`, and the log is made anew meanwhile
    folder = EpochFolder(tmp_path)
    assert committed(folder, QUERY, 7) == 0
    for at in range(writers):
        assert committed(folder, f"{at:016x}", 0) is not None
        committed(folder, QUERY, 8 + at % 2)
    (manifest,) = tmp_path.glob("epoch-*.json")
    assert manifest.stat().st_size < 200
    log = tmp_path / "committed.log"
    with log.open("a") as file:
        file.write(QUERY[:9])  # the machine went down
    for _ in range(2):
        folder = EpochFolder(tmp_path)
        assert all(folder.is_committed(f"{at:016x}", 0) for at in range(writers))
        assert [folder.is_committed(QUERY, batch) for batch in (7, 9, 10)] == [True, True, False]
        assert committed(folder, QUERY, 9) is None
    assert log.read_text().count(QUERY) >= 1
    assert committed(folder, QUERY, 10) == writers + 3


def test_a_folder_of_the_version_before_is_taken_over(tmp_path: Path) -> None:
    manifest = {"epoch": 4, "writer": QUERY, "batch": 2, "files": [], "writers": {"aaaaaaaaaaaaaaaa": 5, QUERY: 2}}
    (tmp_path / "epoch-000000000004.json").write_text(json.dumps(manifest))
    folder = EpochFolder(tmp_path)
    assert committed(folder, QUERY, 3) == 5
    for _ in range(2):
        assert committed(folder, "aaaaaaaaaaaaaaaa", 5) is None
        assert committed(folder, QUERY, 2) is None
        folder = EpochFolder(tmp_path)


@pytest.mark.long
def test_the_log_stays_as_long_as_the_writers_are_many(tmp_path: Path) -> None:
    folder = EpochFolder(tmp_path)
    for batch in range(1500):
        committed(folder, QUERY, batch)
    assert len((tmp_path / "committed.log").read_text().splitlines()) <= 1002
    assert EpochFolder(tmp_path).is_committed(QUERY, 1499)


STEPS = st.lists(
    st.sampled_from(["stage", "stage", "commit", "commit", "repeat", "abort", "next", "forget", "worker dies"]),
    max_size=40,
)


@settings(max_examples=60)
@given(steps=STEPS, data=st.data())
def test_law_every_batch_is_processed_once_whoever_dies(
    steps: list[str], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The folder against a list: what the worker stored is what was committed, in order, once."""
    path = tmp_path_factory.mktemp("folder")
    folder, stored = EpochFolder(path), 0
    processed: list[int] = []
    committed: list[int] = []
    batch, token = 0, 0
    staged: list[Attempt] = []
    read: list[int] | None = None
    for step in steps:
        if step == "stage":
            token += 1
            attempt = Attempt(QUERY, batch, data.draw(st.integers(0, 1)), f"{token:016x}")
            with folder.staged(attempt) as file:
                file.write(batch_of(token))
                if data.draw(st.booleans(), label="ends well"):
                    file.finish()
                    staged = [each for each in staged if each.partition != attempt.partition] + [attempt]
        elif step in ("commit", "repeat") and staged:
            assert folder.commit(QUERY, batch, sorted(staged)) == len(committed)
            committed.append([int(each.token, 16) for each in sorted(staged)])  # type: ignore[arg-type]
            if step == "repeat":
                assert folder.commit(QUERY, batch, staged) is None
            assert folder.is_committed(QUERY, batch)
            batch, staged = batch + 1, []
        elif step == "abort":
            folder.abort(QUERY, batch)
            staged = []
        elif step == "next" and folder.next_epoch > stored:
            read = ids_of(folder.read(stored))
        elif step == "forget" and read is not None:
            processed.append(read)  # type: ignore[arg-type]  # and stored, at once
            stored, read = stored + 1, None
            if data.draw(st.booleans(), label="in time"):
                folder.forget(stored)
        elif step == "worker dies":
            folder, read = EpochFolder(path, stored), None
            assert folder.next_epoch == len(committed)
    while stored < folder.next_epoch:
        processed.append(ids_of(folder.read(stored)))  # type: ignore[arg-type]
        stored += 1
    assert processed == committed
