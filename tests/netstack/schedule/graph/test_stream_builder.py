"""Writing a job: defaults, names, inputs, and what is refused."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netstack.base.errors import ConfigError
from netstack.base.function_names import name_of
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import (
    UNSET,
    Partitioner,
    StreamEdge,
    StreamGraph,
    StreamNode,
    StreamSettings,
)

F = "jobs:function"


def test_functions_are_known_by_name() -> None:
    assert name_of(json.dumps) == "json:dumps"
    assert name_of(json.JSONDecoder.decode) == "json.decoder:JSONDecoder.decode"
    assert name_of(str) == "builtins:str"
    assert name_of("a.b:c.d") == "a.b:c.d"
    job = StreamEnvironment()
    job.source(json.loads)
    assert job.stream_graph().nodes[0].function == "json:loads"


def test_a_source_takes_parameters_like_any_operator() -> None:
    job = StreamEnvironment()
    job.source(F, name="read", path="words", parameters={"name": "words of mine"}).map(F, name="split", at=" ")
    assert [dict(node.parameters) for node in job.stream_graph().nodes] == [
        {"path": "words", "name": "words of mine"},
        {"at": " "},
    ]


def _inner() -> Callable[..., Any]:
    def inside() -> None: ...

    return inside


@functools.wraps(json.dumps)
def _wrapped() -> None: ...


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: None, "a lambda .* define a function at the top"),
        (_inner(), "defined inside a function"),
        (functools.partial(print), "has no name that another process could import"),
        (_wrapped, "json:dumps refers to <function dumps"),
        ("words", "write it like package.module:attribute"),
        ("words:", "write it like package.module:attribute"),
    ],
)
def test_what_has_no_name_is_refused(function: Any, text: str) -> None:
    job = StreamEnvironment()
    with pytest.raises(ConfigError, match=text):
        job.source(function)


def test_the_default_partitioner() -> None:
    job = StreamEnvironment(parallelism=2)
    job.source(F).map(F).sink(F).set_parallelism(3)
    assert [edge.partitioner for edge in job.stream_graph().edges] == [Partitioner.FORWARD, Partitioner.REBALANCE]


def test_forward_needs_one_parallelism() -> None:
    job = StreamEnvironment()
    job.source(F).set_parallelism(2).forward().sink(F)
    with pytest.raises(ConfigError, match=r"'source' -> 'sink' is forward, .* 2 subtasks to 1"):
        job.stream_graph()


def test_inputs_of_unions_and_of_two_streams() -> None:
    job = StreamEnvironment()
    a, b, c = (job.source(F, name=name) for name in "abc")
    a.union(b.rebalance()).connect(c.broadcast(), F)
    assert [(edge.source, edge.input_number, edge.partitioner) for edge in job.stream_graph().edges] == [
        (0, 1, Partitioner.FORWARD),
        (1, 1, Partitioner.REBALANCE),
        (2, 2, Partitioner.BROADCAST),
    ]


def test_names() -> None:
    job = StreamEnvironment()
    stream = job.source(F).map(F).map(F).map(F, name="count")
    assert [node.name for node in job.stream_graph().nodes] == ["source", "map", "map 2", "count"]
    with pytest.raises(ConfigError, match="already has an operator 'count'"):
        stream.filter(F, name="count")


def test_what_belongs_to_one_operator_only() -> None:
    job = StreamEnvironment()
    stream = job.source(F)
    with pytest.raises(ConfigError, match="parallelism 0"):
        stream.set_parallelism(0)
    none = StreamEnvironment(parallelism=0)
    none.source(F)
    with pytest.raises(ConfigError, match="'source': parallelism -2; give at least 1, or -1"):
        stream.set_parallelism(-2)
    with pytest.raises(ConfigError, match="'source': parallelism 0;"):
        none.stream_graph()
    with pytest.raises(ConfigError, match="a side output needs a tag"):
        stream.side_output("")
    with pytest.raises(ConfigError, match="job 'other' cannot be joined"):
        stream.union(StreamEnvironment("other").source(F))


def test_batch_has_no_buffer_timeout_unless_an_operator_sets_one() -> None:
    job = StreamEnvironment(settings=StreamSettings(is_batch=True))
    job.source(F).sink(F).set_buffer_timeout(1.0)
    graph = job.stream_graph()
    assert graph.buffer_timeout_s is None
    assert [node.buffer_timeout_s for node in graph.nodes] == [UNSET, 1.0]


@pytest.mark.parametrize(
    ("nodes", "edges", "text"),
    [
        ((StreamNode(name=""),), (), "operator name '' is empty or used twice"),
        ((StreamNode(name="a"),), (), "'a' has no input but is not a source"),
        ((StreamNode(name="a", is_source=True, parallelism=0),), (), "parallelism 0; give at least 1"),
        ((StreamNode(name="a", is_source=True, parallelism=-1),), (), "no parallelism, but the job is not dynamic"),
        ((StreamNode(name="a", is_source=True, parallelism=3, max_parallelism=2),), (), "more than its max"),
        ((StreamNode(name="a", is_source=True),), (StreamEdge(source=0, target=0),), "topological order"),
    ],
)
def test_what_is_no_graph(nodes: tuple[StreamNode, ...], edges: tuple[StreamEdge, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        StreamGraph(name="bad", nodes=nodes, edges=edges)


def test_edges_that_cannot_be() -> None:
    nodes = (StreamNode(name="a", is_source=True), StreamNode(name="b", is_source=True), StreamNode(name="c"))
    for edge, text in (
        (StreamEdge(source=0, target=1), "source 'b' has 1 inputs"),
        (StreamEdge(source=0, target=2, input_number=0), "inputs count from 1"),
        (StreamEdge(source=0, target=2, partitioner=Partitioner.FORWARD_UNSPECIFIED), "for dynamic graphs only"),
    ):
        with pytest.raises(ConfigError, match=text):
            StreamGraph(name="bad", nodes=nodes, edges=(edge,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "name"), [(["words.py"], "words:split"), (["-m", "words"], "words:split"), (["-"], "no other process")]
)
def test_a_program_that_is_run_is_named_by_its_file(words: list[str], name: str, tmp_path: Path) -> None:
    program = (
        "from netstack.base.errors import ConfigError\n"
        "from netstack.base.function_names import name_of\n"
        "def split(): ...\n"
        "try:\n    print(name_of(split))\n"
        "except ConfigError as error:\n    print(error)\n"
    )
    (tmp_path / "words.py").write_text(program)
    displayed = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True, input=program
    )
    assert name in displayed.stdout


def test_several_channels_are_between_invokables_that_are_all_connected() -> None:
    job = StreamEnvironment()
    job.invokable(F, job.invokable(F).rebalance().with_channels(3))
    assert [edge.channels for edge in job.stream_graph().edges] == [3]
    for wrong in (
        lambda job: job.invokable(F).rebalance().with_channels(3).map(F),
        lambda job: job.invokable(F, job.source(F).rebalance().with_channels(3)),
        lambda job: job.invokable(F, job.invokable(F).rescale().with_channels(3)),
        lambda job: job.invokable(F, job.invokable(F).rebalance().with_channels(0)),
    ):
        job = StreamEnvironment()
        wrong(job)
        with pytest.raises(ConfigError, match=r"[03] channels; .* rebal"):
            job.stream_graph()


@pytest.mark.parametrize("default", [None, -1, 3])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_parallelism_of_minus_one_is_not_set(default: int | None, is_dynamic: bool) -> None:
    """As in Flink, of an operator and of the whole job."""
    settings = StreamSettings(is_batch=is_dynamic, is_dynamic=is_dynamic)
    job = StreamEnvironment(parallelism=default, settings=settings)
    job.source(F).set_parallelism(-1).rebalance().sink(F)
    expected = 3 if default == 3 else -1 if is_dynamic else 1
    assert [node.parallelism for node in job.stream_graph().nodes] == [expected] * 2


def test_a_dynamic_job_is_a_batch_job() -> None:
    with pytest.raises(ConfigError, match="is_dynamic is for batch jobs"):
        StreamSettings(is_dynamic=True)
