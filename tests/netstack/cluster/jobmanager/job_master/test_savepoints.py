"""A savepoint is compared with the job that is to go on from it: what is refused names both sides."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from netstack.base.errors import CheckpointStorageError, ConfigError, StateMismatch
from netstack.cluster.jobmanager.job_master.savepoints import SavepointContents, adopt_savepoint, check_savepoint
from netstack.schedule import StreamEnvironment
from netstack.schedule.checkpoint.snapshot import Manifest, TaskSnapshot
from netstack.schedule.checkpoint.storage import CheckpointStorage
from netstack.schedule.descriptors.information import EdgeId
from netstack.schedule.graph.job_file import job_of, write_job
from netstack.schedule.graph.job_generator import generate_job
from netstack.schedule.graph.stream_graph import Partitioner


def job(count: str = "count", uid: str = "", *, is_keyed: bool = True, format: str = "msgpack") -> StreamEnvironment:
    made = StreamEnvironment("words")
    source: Any = made.source("m:source", name="source").with_format(format)
    if is_keyed:
        source = source.partition_by(Partitioner.HASH, "m:key" if format == "msgpack" else "")
    stream = source.process("m:Count", name=count)
    (stream.uid(uid) if uid else stream).map("m:same", name="same").sink("m:Sink", name="sink")
    return made


STATES: dict[str, Any] = {
    "source": {"own": 5},
    "count": {"keyed": {"counts": {"a": 1, "b": 2}}, "begins": {"counts": "int"}},
    "map of long ago": {},
    "sink": {"own": None},
}


def check(made: StreamEnvironment, states: Any = STATES, *, allow: bool = False, **given: Any) -> tuple[str, ...]:
    """What is left behind."""
    contents = SavepointContents.of([TaskSnapshot("task", 0, states, **given), TaskSnapshot("task", 1, {})])
    graph = job_of(write_job(made.stream_graph()))
    return check_savepoint("/chk-1", contents, graph, generate_job(graph).job, allow_missing=allow)


def test_the_same_job_goes_on() -> None:
    assert check(job()) == check(job(format="str")) == check(job("tally", uid="count")) == ()


def test_a_renamed_operator_is_refused_with_both_names() -> None:
    with pytest.raises(StateMismatch) as refused:
        check(job("tally"))
    assert str(refused.value) == (
        "/chk-1 has keyed state 'counts' of operator 'count', but job 'words' has no such operator: if it was renamed,"
        " give 'same' or 'sink' or 'tally' .uid('count'); --allow-non-restored-state drops the state"
    )
    assert check(job("tally"), allow=True) == ("count",)


def test_all_that_is_missing_is_named() -> None:
    states = {**STATES, "join": {"own": [1], "keyed": {"left": {1: 1}}}}
    with pytest.raises(StateMismatch, match="'count'; keyed state 'left', operator state of operator 'join', but"):
        check(job("tally"), states)
    assert check(job("tally"), states, allow=True) == ("count", "join")


def test_what_is_prepared_and_not_committed_is_not_lost_in_silence() -> None:
    states = {"old sink": {"own": None, "prepared": ["file 1"]}}
    with pytest.raises(StateMismatch, match="of operator 'old sink', but"):
        check(job(), states)
    assert check(job(), states, allow=True) == ("old sink",)


def test_state_that_is_empty_is_no_state() -> None:
    assert check(job("tally"), {"count": {"keyed": {"counts": {}}}, "count 2": {"keyed": {"counts": []}}}) == ()


def test_keys_that_changed_are_refused_with_both_types() -> None:
    with pytest.raises(StateMismatch, match=r"type str, .* 'words' .* int"):
        check(job(format="int64"))
    pairs = {"count": {"keyed": {"counts": [[1, 1], [1.0, 2]]}}}
    with pytest.raises(StateMismatch, match=r"type float and int, .* int"):
        check(job(format="int64"), pairs)
    check(job(), pairs)


def test_keyed_state_of_an_operator_that_is_not_keyed_any_more() -> None:
    with pytest.raises(StateMismatch, match=r"'counts' of operator 'count', .* not all inputs"):
        check(job(is_keyed=False))


def test_records_in_flight_between_operators_that_are_gone() -> None:
    channel = EdgeId("source", "old").partition(0), 0
    with pytest.raises(StateMismatch, match="in-flight records on source -> old"):
        check(job(), outputs={channel: b"1"})
    assert check(job(), outputs={channel: b""}) == ()
    assert check(job(), outputs={channel: b"1"}, allow=True) == ("source -> old",)
    mine = EdgeId("source", "count")
    assert check(job(), outputs={(mine.partition(0), 0): b"1"}) == ()
    with pytest.raises(StateMismatch, match=r"on source -> count .* int64, .* msgpack"):
        check(job(), outputs={(mine.partition(0, "int64"), 0): b"1"})
    with pytest.raises(CheckpointStorageError, match="'p', which is not an edge"):
        check(job(), outputs={("p", 0): b"1"})
    with pytest.raises(CheckpointStorageError, match="does not belong to an operator chain"):
        check(job(), states=5)


def test_records_in_flight_that_every_subtask_is_to_get() -> None:
    def made(parallelism: int) -> StreamEnvironment:
        job = StreamEnvironment("words", parallelism=parallelism)
        job.source("m:source", name="source").broadcast().sink("m:Sink", name="sink")
        return job

    states = {"source": {"own": 5}, "sink": {"own": None}}
    channel = EdgeId("source", "sink").partition(0), 0
    with pytest.raises(StateMismatch, match=r"1 subtasks, .* 'words' there are 2"):
        check(made(2), states, inputs={channel: b"1"})
    assert check(made(1), states, inputs={channel: b"1"}) == ()


def test_uids_are_unique() -> None:
    with pytest.raises(ConfigError, match=r"'source' and 'tally' .* 'source'"):
        job("tally", uid="source").stream_graph()


def complete(storage: CheckpointStorage, checkpoint_id: int) -> str:
    files = tuple(storage.write_task(checkpoint_id, TaskSnapshot("task", 0, {})) for _ in range(1))
    return storage.complete(Manifest(checkpoint_id, datetime.now(UTC), {"task": 1}, files, is_savepoint=True)).path


def test_a_savepoint_of_a_folder_that_had_many_masters_is_older_than_what_follows_it(tmp_path: Path) -> None:
    """It was newer, by its epoch: a job that went on from it went back to it whenever it was taken up again."""
    for _ in range(3):
        (before := CheckpointStorage(tmp_path / "before")).take_over()
    savepoint = complete(before, 7)
    after = CheckpointStorage(tmp_path / "after")
    after.take_over()
    graph = job_of(write_job(job().stream_graph()))
    assert adopt_savepoint(savepoint, after, graph, generate_job(graph).job) == (7, ())
    newest = after.newest()
    assert newest is not None
    assert newest.checkpoint_id == 7
    complete(after, 8)
    newest = after.newest()
    assert newest is not None
    assert newest.checkpoint_id == 8


def test_a_savepoint_is_adopted_again_where_an_earlier_job_left_its_copy(tmp_path: Path) -> None:
    graph = job_of(write_job(job().stream_graph()))
    generated = generate_job(graph).job
    savepoint = complete(CheckpointStorage(tmp_path / "before"), 7)
    after = CheckpointStorage(tmp_path / "after")
    assert adopt_savepoint(savepoint, after, graph, generated) == (7, ())
    complete(after, 8)
    assert adopt_savepoint(savepoint, after, graph, generated) == (9, ())
    assert after.read(9) == after.read(7)
    after.own_from(9)
    assert adopt_savepoint(after.path(8), after, graph, generated) == (8, ()), "it is there"
    after.remove_all()
    assert sorted(each.name for each in (tmp_path / "after").glob("chk-*")) == ["chk-00000007", "chk-00000008"]
    after.own_from(1)
    after.remove_all()
    assert [each.name for each in (tmp_path / "after").glob("chk-*")] == ["chk-00000008"], (
        "the copies were no savepoints"
    )


def test_a_checkpoint_under_another_name_is_refused(tmp_path: Path) -> None:
    graph = job_of(write_job(job().stream_graph()))
    Path(complete(CheckpointStorage(tmp_path), 7)).rename(tmp_path / "backup")
    with pytest.raises(CheckpointStorageError, match="backup is a checkpoint under another name: give"):
        adopt_savepoint(str(tmp_path / "backup"), CheckpointStorage(tmp_path / "x"), graph, generate_job(graph).job)
