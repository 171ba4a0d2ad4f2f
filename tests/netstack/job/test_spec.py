"""Jobs as plain data: what is refused, what follows from them, and the way to another process and back."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest

from netstack.checkpoint.coordinator import CheckpointSettings, JobTask
from netstack.errors import ConfigError
from netstack.job.spec import Edge, InputSpec, Job, TaskSpec
from netstack.outbound.selector import KeyGroupSelector, RebalanceSelector


def key(record: Any) -> Any:
    return record[0]


SOURCE = TaskSpec("source", "a:Source", parallelism=2)
SINK = TaskSpec("sink", "a:Sink", parallelism=3, inputs=(InputSpec("source", key),), keyed_state=True)


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        ((SOURCE, SOURCE), "no or several tasks of the name 'source'"),
        ((TaskSpec("", "a:b"),), "of the name ''"),
        ((SINK,), "reads 'source', which is no task"),
        ((TaskSpec("a", "a:b", inputs=(InputSpec("b"),)), TaskSpec("b", "a:b", inputs=(InputSpec("a"),))), "circle"),
        ((TaskSpec("a", "a:b", inputs=(InputSpec("a"),)),), "circle"),
        ((TaskSpec("a", "a:b", parallelism=0),), "0 subpartitions"),
        ((TaskSpec("a", "a:b", parallelism=129),), "129 subpartitions"),
        ((TaskSpec("a", "a:b", keyed_state=True),), "needs inputs"),
        ((SOURCE, TaskSpec("a", "a:b", inputs=(InputSpec("source"),), keyed_state=True)), "each of them a key"),
        ((SOURCE, TaskSpec("a", "a:b", inputs=(InputSpec("source", format="xml"),))), "no record format 'xml'"),
        ((TaskSpec("a", "a:b", workers=()),), r"workers=\(\)"),
        ((TaskSpec("a", "a:b", workers=(-1,)),), r"workers=\(-1,\)"),
        ((TaskSpec("a" * 250, "a:b"), TaskSpec("b", "a:b", inputs=(InputSpec("a" * 250),))), "bytes in UTF-8"),
    ],
)
def test_what_is_no_job_is_refused(tasks: tuple[TaskSpec, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Job(tasks=tasks)


def test_names_of_partitions_and_what_the_coordinator_sees() -> None:
    twice = TaskSpec("twice", "a:b", inputs=(InputSpec("source"), InputSpec("source"), InputSpec("sink")))
    job = Job(tasks=(twice, SOURCE, SINK))
    assert [edge.partition(1) for edge in job.inputs_of(twice)] == [
        "source-1>twice.0",
        "source-1>twice.1",
        "sink-1>twice.2",
    ]
    assert [(edge.consumer.name, edge.index) for edge in job.outputs_of(SOURCE)] == [
        ("twice", 0),
        ("twice", 1),
        ("sink", 0),
    ]
    assert job.coordinated_tasks() == [
        JobTask("twice", 1, ("source", "sink")),
        JobTask("source", 2),
        JobTask("sink", 3, ("source",)),
    ]
    assert job.subtasks() == [("twice", 0), ("source", 0), ("source", 1), ("sink", 0), ("sink", 1), ("sink", 2)]


def test_subtasks_take_turns_on_the_workers() -> None:
    pinned = TaskSpec("pinned", "a:b", parallelism=3, workers=(2, 0))
    job = Job(tasks=(SOURCE, SINK, pinned))
    places = job.placement(3)
    assert [places["source", index] for index in range(2)] == [0, 1]
    assert [places["sink", index] for index in range(3)] == [0, 1, 2]
    assert [places["pinned", index] for index in range(3)] == [2, 0, 2]
    with pytest.raises(ConfigError, match="'pinned' wants worker 2; there are 0 to 1"):
        job.placement(2)


def test_selectors() -> None:
    keyed, round_robin = (Edge(SOURCE, SINK, 0, spec) for spec in (InputSpec("source", key), InputSpec("source")))
    chosen = keyed.selector(0, 128)
    assert isinstance(chosen, KeyGroupSelector)
    chosen.setup(3)
    assert chosen.max_parallelism == 128
    first = set()
    for subtask in range(20):
        selector = round_robin.selector(subtask, 128)
        assert isinstance(selector, RebalanceSelector)
        selector.setup(3)
        first.add(selector.select(None))
    assert first == {0, 1, 2}  # not all producers begin with the same consumer
    assert random.Random(1).randrange(3) == random.Random(1).randrange(3)


def test_recovery_reads_the_partitions_there_were() -> None:
    job = Job(tasks=(SOURCE, SINK), max_parallelism=64)
    source, sink = job.recovery_plans({"source": 4, "sink": 1})
    assert source.exchanges == ()
    assert (sink.task, sink.parallelism, sink.keyed_state, sink.max_parallelism) == ("sink", 3, True, 64)
    (exchange,) = sink.exchanges
    assert exchange.partitions == tuple(f"source-{index}>sink.0" for index in range(4))
    assert exchange.key_of is not None
    assert exchange.key_of(msgpack.packb(["k", 1])) == "k"
    assert job.recovery_plans({})[1].exchanges[0].partitions == ("source-0>sink.0", "source-1>sink.0")


def test_a_job_goes_to_another_process_and_back() -> None:
    named = TaskSpec("sink", "a:Sink", {"x": [1, {"y": None}]}, 3, (InputSpec("source", "a:key", "str"),), True, (1, 0))
    job = Job(
        name="n",
        tasks=(SOURCE, named),
        checkpoints=CheckpointSettings(interval_s=1.0, aligned_timeout_s=2.0, unaligned=True),
        folder="/f",
        keep=7,
        max_parallelism=99,
    )
    document = msgpack.unpackb(msgpack.packb(job.document()))
    assert Job.from_document(document) == job
    assert Job.from_document(Job(tasks=(SOURCE,)).document()) == Job(tasks=(SOURCE,))


@pytest.mark.parametrize(
    "change", [{"tasks": [{"nonsense": 1}]}, {"tasks": 5}, {"network": None}, {"extra": 1}, {"checkpoints": []}]
)
def test_a_document_that_is_no_job_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="no job of this release"):
        Job.from_document({**Job(tasks=(SOURCE,)).document(), **change})
    with pytest.raises(ConfigError, match="no job of this release"):
        Job.from_document({})


def test_objects_do_not_go_to_another_process() -> None:
    with pytest.raises(ConfigError, match=r"task 'sink': <function key .* cannot be sent"):
        Job(tasks=(SOURCE, SINK)).document()
