"""Sources that tell how much they will read, and those that cannot."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from netstack.base.errors import ConfigError
from netstack.cluster.task.source_sizes import with_source_sizes
from netstack.schedule.graph.job_file import job_of, write_job
from netstack.schedule.graph.job_generator import _source_size, generate_job
from netstack.schedule.graph.job_graph import SourceSize
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamGraph, StreamSettings


class Tells:
    """Parameters in, sizes out."""

    def __init__(self, size: Any = None, pieces: Any = None) -> None:
        raise AssertionError("nobody makes one to ask")

    @staticmethod
    def estimated_bytes(size: Any = None, pieces: Any = None) -> Any:
        if size == "lost":
            raise FileNotFoundError("no such folder here")
        return size

    @classmethod
    def splits(cls, size: Any = None, pieces: Any = None) -> Any:
        return pieces


def says_nothing(count: int = 3) -> range:
    return range(count)


def source(function: Any, *, is_dynamic: bool = True, parallelism: int | None = None, **parameters: Any) -> StreamGraph:
    job = StreamEnvironment(settings=StreamSettings(is_batch=True, is_dynamic=is_dynamic))
    stream = job.source(function, name="source", parameters=parameters)
    if parallelism is not None:
        stream.set_parallelism(parallelism)
    stream.rebalance().sink(print)
    return job.stream_graph()


def told(graph: StreamGraph) -> SourceSize | None:
    asked = with_source_sizes(graph)
    assert job_of(write_job(asked)) == asked
    return generate_job(asked).job.vertices[0].source_size


def test_a_source_is_asked_with_its_parameters() -> None:
    assert told(source(Tells, size=10)) == SourceSize(bytes=10)
    assert told(source(Tells, pieces=3)) == SourceSize(splits=3)
    assert told(source(Tells, size=10, pieces=0)) == SourceSize(bytes=10, splits=0)


def test_who_cannot_tell_is_as_before(caplog: pytest.LogCaptureFixture) -> None:
    assert told(source(Tells)) is None
    assert told(source(says_nothing, count=4)) is None
    assert told(source("not.there:Source")) is None
    assert told(source(Tells, size=1, parallelism=2)) is None  # nobody wants to know
    assert told(source(Tells, size=1, is_dynamic=False)) is None
    with caplog.at_level(logging.WARNING):
        assert told(source(Tells, size="lost", pieces=2)) == SourceSize(splits=2)
    assert (
        "estimated_bytes of source 'source' failed, its size is unknown: FileNotFoundError: no such folder"
        in caplog.text
    )


@pytest.mark.parametrize("size", [-1, 1.5, True, "10"])
def test_what_is_no_size_is_refused(size: Any) -> None:
    graph = source(Tells, size=size)
    with pytest.raises(ConfigError, match=r"source 'source' \(.*test_source_sizes:Tells\): source_size bytes="):
        with_source_sizes(graph)


def test_sources_of_one_chain_are_added_up() -> None:
    def made(first: SourceSize | None, second: SourceSize | None) -> SourceSize | None:
        nodes = source(Tells).nodes[:1] * 2
        return _source_size([replace(nodes[0], source_size=first), replace(nodes[1], source_size=second)])

    assert made(SourceSize(bytes=1, splits=2), SourceSize(bytes=3, splits=5)) == SourceSize(bytes=4, splits=5)
    assert made(SourceSize(bytes=1, splits=2), SourceSize(splits=5)) == SourceSize(splits=5)
    assert made(SourceSize(bytes=1), None) is None
