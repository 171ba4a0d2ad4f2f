"""A job as a JSON file; `job_file.schema.json` beside this module is its schema.

Takes: the text of a job file. Gives: a `StreamGraph`.

    {"name": "words", "parallelism": 4, "operators": [
      {"name": "lines", "parallelism": 1},
      {"name": "split", "inputs": ["lines"]},
      {"name": "count", "inputs": [{"from": "split", "partitioner": "hash"}]}]}

Rules: operators may come in any order. An operator without inputs is a source. Functions are names, and not imported.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final

from ...errors import ConfigError
from ...function_names import name_of
from .job_graph import ResourceProfile
from .json_schema import check
from .stream_builder import DataStream, OperatorStream, StreamEnvironment
from .stream_graph import (
    ChainingStrategy,
    ExchangeMode,
    GlobalExchangeMode,
    Partitioner,
    StreamGraph,
    StreamNode,
    StreamSettings,
)

_SETTINGS: Final = (
    "is_batch",
    "is_dynamic",
    "is_chaining_enabled",
    "chains_different_max_parallelism",
    "shares_slots_by_default",
)
_ENVIRONMENT: Final = ("parallelism", "max_parallelism", "buffer_timeout_s")


@cache
def job_file_schema() -> Mapping[str, Any]:
    """The JSON schema of job files."""
    text = resources.files(__package__).joinpath("job_file.schema.json").read_text("utf-8")
    schema: Mapping[str, Any] = json.loads(text)
    return schema


def read_job(text: str, *, name: str = "job") -> StreamGraph:
    """The job that a file describes.

    Args:
        text: of the file.
        name: of the job, if the file gives none.

    Raises:
        ConfigError: it is no JSON, not what the schema says, or no job; the text says where.
    """
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"this is no JSON: {error}") from error
    except RecursionError as error:
        raise ConfigError("this is no job file: it is nested too deeply") from error
    check(job_file_schema(), document)
    mode = document.get("exchange_mode")
    job = StreamEnvironment(
        document.get("name", name),
        settings=StreamSettings(
            exchange_mode=None if mode is None else GlobalExchangeMode(mode),
            **{key: document[key] for key in _SETTINGS if key in document},
        ),
        group_profiles={
            group: ResourceProfile("concrete", **profile)
            for group, profile in document.get("slot_sharing_groups", {}).items()
        },
        **{key: document[key] for key in _ENVIRONMENT if key in document},
    )
    streams: dict[str, OperatorStream] = {}
    for operator in _in_order(document["operators"]):
        streams[operator["name"]] = _add(job, operator, streams)
    return job.stream_graph()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a name that is there twice the first would be lost without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"property {twice!r} is given twice in one object; remove one")
    return found


def _no_number(text: str) -> Any:
    raise ConfigError(f"{text} is no number; give a finite one")


def _inputs(operator: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"from": given} if isinstance(given, str) else given for given in operator.get("inputs", ())]


def _in_order(operators: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each operator behind those it reads, otherwise as in the file."""
    indices: dict[str, int] = {}
    for index, operator in enumerate(operators):
        if operator["name"] in indices:
            raise ConfigError(f"operators[{index}]: the name {operator['name']!r} was given before; rename one")
        indices[operator["name"]] = index
    waiting = [0] * len(operators)
    readers: list[list[int]] = [[] for _ in operators]
    for index, operator in enumerate(operators):
        for given in _inputs(operator):
            if given["from"] not in indices:
                raise ConfigError(
                    f"operators[{index}] ({operator['name']}) reads {given['from']!r}, which is not there"
                )
            readers[indices[given["from"]]].append(index)
            waiting[index] += 1
    ready = deque(index for index, count in enumerate(waiting) if not count)
    ordered = []
    while ready:
        index = ready.popleft()
        ordered.append(operators[index])
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    if len(ordered) < len(operators):
        stuck = ", ".join(str(operators[index]["name"]) for index, count in enumerate(waiting) if count)
        raise ConfigError(f"operators {stuck} read each other in a circle, or what such a circle emits")
    return ordered


def _add(job: StreamEnvironment, operator: Mapping[str, Any], streams: Mapping[str, OperatorStream]) -> OperatorStream:
    inputs = _inputs(operator)
    profile = operator.get("profile")
    node = StreamNode(
        name=operator["name"],
        function=name_of(operator["function"]) if "function" in operator else "",
        has_operator=operator.get("has_operator", True),
        max_parallelism=operator.get("max_parallelism"),
        co_location_group=operator.get("co_location_group"),
        strategy=ChainingStrategy(operator.get("chaining", "always")),
        is_source=not inputs,
        is_legacy_source=operator.get("is_legacy_source", False),
        is_yielding=operator.get("is_yielding", False),
        emits_at_end_only=operator.get("emits_at_end_only", False),
        parameters=operator.get("parameters", {}),
    )
    stream = job.add(node, *_streams(operator["name"], inputs, streams))
    if "parallelism" in operator:
        stream.set_parallelism(operator["parallelism"])
    if "slot_sharing_group" in operator:
        stream.slot_sharing_group(operator["slot_sharing_group"])
    if "buffer_timeout_s" in operator:
        stream.set_buffer_timeout(operator["buffer_timeout_s"])
    if profile is not None:
        stream.set_profile(ResourceProfile("concrete", **profile))
    return stream


def _streams(name: str, inputs: Sequence[Mapping[str, Any]], streams: Mapping[str, OperatorStream]) -> list[DataStream]:
    """A stream for each input number; several edges of one number are a union."""
    by_number: dict[int, list[DataStream]] = {}
    for given in inputs:
        stream: DataStream = streams[given["from"]]
        if "side_output" in given:
            stream = streams[given["from"]].side_output(given["side_output"])
        if "partitioner" in given:
            function = name_of(given["function"], what="key or partitioner") if "function" in given else ""
            stream = stream.partition_by(Partitioner(given["partitioner"]), function)
        elif "function" in given:
            raise ConfigError(f"operator {name!r}: an input has a function, and no partitioner to use it: add hash")
        if "mode" in given:
            stream = stream.exchange(ExchangeMode(given["mode"]))
        if "dataset_id" in given:
            stream = stream.persist(given["dataset_id"])
        by_number.setdefault(given.get("input", 1), []).append(stream)
    if sorted(by_number) != list(range(1, len(by_number) + 1)):
        raise ConfigError(f"operator {name!r} has inputs {sorted(by_number)}; number them 1, 2 and so on")
    return [streams[0].union(*streams[1:]) for _, streams in sorted(by_number.items())]
