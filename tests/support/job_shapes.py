"""Job graphs from a line of text, for tests of scheduling.

Takes: vertices with their parallelism, and arrows: `source(2) -pointwise,pipelined-> map(2) -all,blocking-> sink(2)`.
Gives: a `JobGraph`.

Rules: `;` separates statements. The first mention of a vertex sets its parallelism; the order of first mentions must be
topological, so a vertex may be mentioned alone before it is used. An arrow is `pointwise` or `all`, then a type, then
optionally `=name`: arrows of one producer with one name share a dataset.
"""

from __future__ import annotations

import re
from typing import Final

from netstack.base.errors import ConfigError
from netstack.base.ids import ResultPartitionType
from netstack.schedule.graph.job_generator import generate_job
from netstack.schedule.graph.job_graph import UNDECIDED, Dataset, DistributionPattern, JobEdge, JobGraph, JobVertex
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import GlobalExchangeMode, StreamGraph, StreamSettings

_PATTERNS: Final = {"pointwise": DistributionPattern.POINTWISE, "all": DistributionPattern.ALL_TO_ALL}
_VERTEX: Final = re.compile(r"\s*(\w+)(?:\((-?\d+)\))?\s*")
_ARROW: Final = re.compile(r"-(\w+),(\w+?)(?:=(\w+))?->")
_MAX_PARALLELISM: Final = 32768


def job_of(
    text: str, *, name: str = "job", is_dynamic: bool = False, max_parallelism: int = _MAX_PARALLELISM
) -> JobGraph:
    """Returns the job that a text describes.

    Args:
        text: see the module; a parallelism of -1 is undecided.
        name: of the job.
        is_dynamic: whether vertices may be undecided.
        max_parallelism: of every vertex.

    Raises:
        ConfigError: the text is not valid, or describes no job.
    """
    parallelisms: dict[str, int] = {}
    datasets: dict[str, Dataset] = {}
    edges: list[JobEdge] = []
    for statement in text.split(";"):
        position, producer = 0, -1
        arrow: re.Match[str] | None = None
        while position < len(statement.rstrip()):
            vertex = _VERTEX.match(statement, position)
            if vertex is None:
                raise ConfigError(
                    f"{statement.strip()!r}: no vertex at {statement[position:]!r}; write name(parallelism)"
                )
            consumer = _numbered(vertex, parallelisms)
            if arrow is not None:
                edges.append(JobEdge(_dataset(arrow, producer, datasets), consumer, _PATTERNS[arrow[1]]))
            producer, position = consumer, vertex.end()
            arrow = _ARROW.match(statement, position)
            if arrow is None and statement[position:].strip():
                raise ConfigError(f"{statement.strip()!r}: no arrow at {statement[position:]!r}; write -all,blocking->")
            position = arrow.end() if arrow is not None else position
    read = {edge.consumer for edge in edges}
    vertices = tuple(
        JobVertex(vertex, parallelism, max_parallelism=max_parallelism, is_source=number not in read)
        for number, (vertex, parallelism) in enumerate(parallelisms.items())
    )
    return JobGraph(name, vertices, tuple(datasets.values()), tuple(edges), is_dynamic=is_dynamic)


def _numbered(vertex: re.Match[str], parallelisms: dict[str, int]) -> int:
    """Returns the index of a vertex; the first mention adds it."""
    if vertex[1] not in parallelisms:
        parallelisms[vertex[1]] = int(vertex[2] or UNDECIDED)
    return list(parallelisms).index(vertex[1])


def _dataset(arrow: re.Match[str], producer: int, datasets: dict[str, Dataset]) -> int:
    """The index of what an arrow stands for."""
    name = f"{producer}.{arrow[3]}" if arrow[3] else f"{producer}:{len(datasets)}"
    datasets.setdefault(name, Dataset(name, producer, ResultPartitionType(arrow[2])))
    return list(datasets).index(name)


def nightly_join() -> StreamEnvironment:
    """A batch job: cleans orders and customers, joins them by customer and writes twice; regions run in turn."""
    settings = StreamSettings(is_batch=True, exchange_mode=GlobalExchangeMode.FORWARD_EDGES_PIPELINED)
    job = StreamEnvironment("nightly join", parallelism=6, settings=settings)
    orders = job.source("shop:read_orders", name="orders").filter("shop:is_paid", name="paid")
    customers = job.source("shop:read_customers", name="customers").set_parallelism(2)
    joined = orders.key_by("shop:customer").connect(
        customers.map("shop:clean", name="clean").set_parallelism(2).key_by("shop:customer"), "shop:Join", name="join"
    )
    joined.forward().sink("shop:archive", name="archive").start_new_chain()
    joined.key_by("shop:region").process("shop:Sum", name="sums").set_parallelism(3).sink(
        "shop:report", name="report"
    ).set_parallelism(3)
    return job


def job_graph(graph: StreamGraph) -> JobGraph:
    return generate_job(graph).job
