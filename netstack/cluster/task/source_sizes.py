"""Estimates the sizes of sources before an adaptive job runs, in the process that submits it.

Takes: a stream graph whose parallelism is chosen at run time. Gives: the same graph with the sizes of its sources.

A source may have two methods (of a class: static or class methods):

    estimated_bytes(**parameters)   size of all its records
    splits(**parameters)            number of pieces of its input; a subtask reads at least one

Rules: both are called with the operator's parameters. None or an exception means that the size is unknown, and so does
code that is not available in this process.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Final

from ...base.errors import ConfigError
from ...base.text.safe_text import safe_error
from ...schedule.graph.job_graph import UNDECIDED, SourceSize
from ...schedule.graph.stream_graph import StreamGraph, StreamNode
from ..function_loading import load

LOGGER: Final = logging.getLogger("netstack")


def with_source_sizes(graph: StreamGraph) -> StreamGraph:
    """Adds the sizes of sources without parallelism and size. Imports user code, so call it in a thread.

    Raises:
        ConfigError: a source returned an invalid size.
    """
    if not graph.settings.is_dynamic:
        return graph
    return replace(graph, nodes=tuple(_with_size(node) for node in graph.nodes))


def _with_size(node: StreamNode) -> StreamNode:
    if not node.is_source or node.parallelism != UNDECIDED or node.source_size is not None or not node.function:
        return node
    try:
        source = load(node.function)
    except Exception:  # the code exists on TaskManagers only, or is broken, which they report better
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
    estimate = getattr(source, method, None)
    if not callable(estimate):
        return None
    try:
        return estimate(**node.parameters)
    except Exception as error:  # user code may raise anything; its data may be on other hosts
        LOGGER.warning("%s of source %r failed, its size is unknown: %s", method, node.name, safe_error(error))
        return None
