"""What sources can tell of their records before they are read: asked where a job is submitted.

Takes: a stream graph whose parallelism is decided while it runs. Gives: the same with the sizes of its sources.

A source tells with two methods, either of which may be left out, of a class static or class methods:

    estimated_bytes(**parameters)   of all of its records together
    splits(**parameters)            of how many pieces they are, of which a subtask reads at least one

Rules: both are called with the operator's parameters, in the process that submits the job; None, or an exception, is
"cannot tell". A source whose code is not there is not asked.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Final

from ..errors import ConfigError
from ..runtime.names import load
from ..schedule.graph.job_graph import UNDECIDED, SourceSize
from ..schedule.graph.stream_graph import StreamGraph, StreamNode
from ..shown import shown_error

LOGGER: Final = logging.getLogger("netstack")


def with_source_sizes(graph: StreamGraph) -> StreamGraph:
    """Asks every source that nobody has given a parallelism or a size. Imports code: call it in a thread.

    Raises:
        ConfigError: a source says something that is no size.
    """
    if not graph.settings.is_dynamic:
        return graph
    return replace(graph, nodes=tuple(_asked(node) for node in graph.nodes))


def _asked(node: StreamNode) -> StreamNode:
    if not node.is_source or node.parallelism != UNDECIDED or node.source_size is not None or not node.function:
        return node
    try:
        source = load(node.function)
    except Exception:  # only TaskManagers have it; or it is broken, which they will say better
        return node
    answer = {
        name: _answer(source, method, node) for name, method in (("bytes", "estimated_bytes"), ("splits", "splits"))
    }
    if all(value is None for value in answer.values()):
        return node
    try:
        return replace(node, source_size=SourceSize(**answer))
    except ConfigError as error:
        raise ConfigError(f"source {node.name!r} ({node.function}): {error}") from error


def _answer(source: Any, method: str, node: StreamNode) -> Any:
    ask = getattr(source, method, None)
    if not callable(ask):
        return None
    try:
        return ask(**node.parameters)
    except Exception as error:  # user code raises what it likes; its data may be on other hosts
        LOGGER.warning("source %r cannot tell its %s here: %s", node.name, method, shown_error(error))
        return None
