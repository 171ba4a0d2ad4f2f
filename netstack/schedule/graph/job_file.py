"""Job files: a job as JSON; `job_file.schema.json` beside this module is the schema.

`job_of` makes a `StreamGraph` of a document, `write_job` a document of a graph: so jobs are submitted and stored.

    {"name": "words", "parallelism": 4, "operators": [
      {"name": "lines", "parallelism": 1},
      {"name": "split", "inputs": ["lines"]},
      {"name": "count", "inputs": [{"from": "split", "partitioner": "hash"}]}]}

Rules: operators may come in any order; one without inputs is a source. Functions are names and are not imported.
`check` rejects schema keywords that it does not implement. Texts and sizes of submitted jobs are limited
(`check_limits`): everybody who looks at a cluster receives its names, and one process schedules all jobs.
"""

from __future__ import annotations

import dataclasses
import difflib
import heapq
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final, TypeVar

import msgpack

from ...base.config import NetworkConfig
from ...base.errors import ConfigError
from ...base.function_names import name_of
from ...base.text.safe_text import safe_repr, type_text
from ...base.units import format_size
from ..checkpoint.instructions import CheckpointSettings
from .job_graph import UNDECIDED, UNKNOWN_PROFILE, OperatorKind, ResourceProfile, SourceSize
from .settings import AdaptiveSettings, CutSettings, RestartSettings, SpeculationSettings
from .stream_builder import DataStream, OperatorStream, StreamEnvironment
from .stream_graph import (
    DEFAULT_BUFFER_TIMEOUT_S,
    ChainingStrategy,
    ExchangeMode,
    GlobalExchangeMode,
    Partitioner,
    StreamEdge,
    StreamGraph,
    StreamNode,
    StreamSettings,
    Unset,
)

MAX_NAME: Final = 256
"""Characters of a name: of the job, an operator, a uid, a slot sharing group, a side output, a key."""

MAX_TEXT: Final = 4096
"""Characters of any other text, such as a path."""

MAX_PARAMETERS_BYTES: Final = 1 << 20
"""Size of one operator's parameters, packed."""

MAX_OPERATORS: Final = 4096
"""Operators of a job."""

MAX_EDGES: Final = 8192
"""Edges between operators of a job. A JobManager needs about 0.3 ms for each before the job runs."""

MAX_SUBTASKS: Final = 1 << 18
"""Subtasks of a job. A JobManager needs about 200 bytes and 2 us for each before the job runs."""

_NAMES: Final = frozenset({"name", "uid", "from", "slot_sharing_group", "side_output", "tag"})


def check_limits(document: Mapping[str, Any]) -> None:
    """Checks every text of a job. Raises ConfigError for the first one that is too long."""
    waiting: list[tuple[str, str, Any]] = [("", "", document)]  # place, field, value
    while waiting:
        place, field, value = waiting.pop()
        if isinstance(value, str):
            most = MAX_NAME if field in _NAMES else MAX_TEXT
            if len(value) > most:
                raise ConfigError(
                    f"{place} has {len(value)} characters ({safe_repr(value, 40)}); the maximum is {most}"
                )
        elif isinstance(value, Mapping):
            for key, each in value.items():
                if not isinstance(key, str) or len(key) > MAX_NAME:
                    raise ConfigError(f"{place}: {safe_repr(key, 40)} is no name of at most {MAX_NAME} characters")
                inside = f"{place}.{key}" if place else key
                if key == "parameters":
                    _check_parameters(inside, each)
                else:
                    waiting.append((inside, key, each))
        elif isinstance(value, list | tuple):
            waiting += [(f"{place}[{number}]", field, each) for number, each in enumerate(value)]


def check_counts(document: Mapping[str, Any]) -> None:
    """Checks how many operators and edges a job file has, before anything is made of them; other values pass.

    Raises:
        ConfigError: there are too many.
    """
    operators = document.get("operators")
    if not isinstance(operators, list):
        return
    _check_operators(len(operators))
    inputs = (each.get("inputs") for each in operators if isinstance(each, Mapping))
    edges = sum(len(each) for each in inputs if isinstance(each, list))
    if edges > MAX_EDGES:
        raise ConfigError(f"the job has {edges:,} edges between operators; the maximum is {MAX_EDGES:,}")


def check_size(operators: int, parallelisms: Iterable[int]) -> int:
    """Checks how much a job makes a JobManager schedule.

    Args:
        operators: number of its operators.
        parallelisms: of its vertices; those that are decided at run time count as 1.

    Returns:
        The number of its subtasks.

    Raises:
        ConfigError: the job is too large.
    """
    _check_operators(operators)
    subtasks = sum(max(1, each) for each in parallelisms)
    if subtasks > MAX_SUBTASKS:
        raise ConfigError(
            f"the job has {subtasks:,} subtasks; the maximum is {MAX_SUBTASKS:,}: chain more operators, or give some a"
            " lower parallelism"
        )
    return subtasks


def _check_operators(count: int) -> None:
    if count > MAX_OPERATORS:
        raise ConfigError(f"the job has {count:,} operators; the maximum is {MAX_OPERATORS:,}")


def shortened_name(name: str) -> str:
    """Returns a name within the limit: jobs of earlier releases may have longer ones."""
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 3] + "..."


def _check_parameters(place: str, parameters: Any) -> None:
    try:
        size_bytes = len(msgpack.packb(parameters))
    except (ValueError, TypeError, OverflowError):
        return  # no plain data: the job is refused for that
    if size_bytes > MAX_PARAMETERS_BYTES:
        raise ConfigError(
            f"{place} have {format_size(size_bytes)}; the maximum is {format_size(MAX_PARAMETERS_BYTES)}: let the"
            " function read larger data from a file"
        )


_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_ARTICLES: Final = {"object": "an object", "array": "an array", "integer": "a whole number", "null": "null"}
_KEYWORDS: Final = (
    "type enum required properties additionalProperties items minItems minLength minimum title description"
)
_KNOWN: Final = frozenset(_KEYWORDS.split(" "))
_MOST_SHOWN: Final = 60


def check(schema: Mapping[str, Any], document: Any, where: str = "") -> None:
    """Rejects a document that does not match the schema.

    Args:
        schema: of the document.
        document: as `json.loads` returns it.
        where: path of the document for messages, such as `operators[2].name`.

    Raises:
        ConfigError: it does not match; the text has the path, the value and what is accepted.
        ValueError: the schema has an unknown keyword.
    """
    unknown = {word for word in schema if not word.startswith("$")} - _KNOWN
    if unknown:
        raise ValueError(f"the schema of {where or 'the document'} has unknown keywords: {', '.join(unknown)}")
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(_TYPES[name](document) for name in types):
        raise _wrong(where, document, " or ".join(_ARTICLES.get(name, f"a {name}") for name in types))
    if "enum" in schema and document not in schema["enum"]:
        raise _wrong(where, document, "one of " + ", ".join(map(str, schema["enum"])))
    if _TYPES["number"](document) and document < schema.get("minimum", document):
        raise _wrong(where, document, f"at least {schema['minimum']}")
    if isinstance(document, str) and len(document) < schema.get("minLength", 0):
        raise _wrong(where, document, "a text that is not empty")
    if isinstance(document, list):
        if len(document) < schema.get("minItems", 0):
            raise _wrong(where, document, f"at least {schema['minItems']} of them")
        for index, item in enumerate(document if "items" in schema else ()):
            check(schema["items"], item, f"{where}[{index}]")
    if isinstance(document, dict):
        _check_object(schema, document, where)


def _check_object(schema: Mapping[str, Any], document: Mapping[str, Any], where: str) -> None:
    missing = [name for name in schema.get("required", ()) if name not in document]
    if missing:
        raise ConfigError(f"{where or 'the document'} has no {' and no '.join(map(repr, missing))}; add it")
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, value in document.items():
        inside = f"{where}.{name}" if where else name
        if name in known:
            check(known[name], value, inside)
        elif others is False:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"{inside}: there is no such property; {hint}")
        elif isinstance(others, dict):
            check(others, value, inside)


def _wrong(where: str, document: Any, wanted: str) -> ConfigError:
    label = repr(document)
    label = label if len(label) <= _MOST_SHOWN else label[:_MOST_SHOWN] + "..."
    return ConfigError(f"{where or 'the document'} is {label}; give {wanted}")


_SETTINGS: Final = (
    "is_batch",
    "is_dynamic",
    "is_chaining_enabled",
    "chains_different_max_parallelism",
    "shares_slots_by_default",
    "checkpoint_folder",
    "keep",
    "retain",
    "scheduling",
    "input_constraint",
    "latency_interval_s",
)
_ENVIRONMENT: Final = ("parallelism", "max_parallelism", "buffer_timeout_s")


@cache
def job_file_schema() -> Mapping[str, Any]:
    """The JSON schema of job files."""
    text = resources.files(__package__).joinpath("job_file.schema.json").read_text("utf-8")
    schema: Mapping[str, Any] = json.loads(text)
    return schema


def read_job(text: str, *, name: str = "job") -> StreamGraph:
    """The job of a job file.

    Args:
        text: of the file.
        name: of the job, if the file has none.

    Raises:
        ConfigError: it is not JSON, does not match the schema, or is no valid job; the text has the path.
    """
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"this is not JSON: {error}") from error
    except RecursionError as error:
        raise ConfigError("this is not a job file: it is nested too deeply") from error
    return job_of(document, name=name)


def job_of(document: Any, *, name: str = "job") -> StreamGraph:
    """The job of a document, from `write_job` or a file.

    Args:
        document: plain data.
        name: of the job, if the document has none.

    Raises:
        ConfigError: it does not match the schema, or is no valid job; the text has the path.
    """
    check(job_file_schema(), document)
    mode = document.get("exchange_mode")
    job = StreamEnvironment(
        document.get("name", name),
        settings=StreamSettings(
            exchange_mode=None if mode is None else GlobalExchangeMode(mode),
            checkpoints=_settings(CheckpointSettings, document, "checkpoints"),
            restart=_settings(RestartSettings, document, "restart"),
            network=_settings(NetworkConfig, document, "network"),
            adaptive=_settings(_adaptive, document, "adaptive"),
            speculation=_settings(SpeculationSettings, document, "speculation"),
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


_Settings = TypeVar("_Settings")


def _settings(made: Callable[..., _Settings], document: Mapping[str, Any], name: str) -> _Settings | None:
    given = document.get(name)
    if given is None:
        return None
    try:
        return made(**given)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from error


def _adaptive(*, cut: Mapping[str, Any] | None = None, **given: Any) -> AdaptiveSettings:
    return AdaptiveSettings(cut=CutSettings(**(cut or {})), **given)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; rejects repeated names, of which `json` would silently drop the first."""
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"property {twice!r} occurs twice in one object; remove one")
    return document


def _no_number(text: str) -> Any:
    raise ConfigError(f"{text} is not a number; give a finite one")


def _inputs(operator: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"from": given} if isinstance(given, str) else given for given in operator.get("inputs", ())]


def _in_order(operators: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each operator after those that it reads, otherwise in the order of the file."""
    indices: dict[str, int] = {}
    for index, operator in enumerate(operators):
        if operator["name"] in indices:
            raise ConfigError(f"operators[{index}]: the name {operator['name']!r} is taken; rename one")
        indices[operator["name"]] = index
    waiting = [0] * len(operators)
    readers: list[list[int]] = [[] for _ in operators]
    for index, operator in enumerate(operators):
        for given in _inputs(operator):
            if given["from"] not in indices:
                raise ConfigError(
                    f"operators[{index}] ({operator['name']}) reads {given['from']!r}, which does not exist"
                )
            readers[indices[given["from"]]].append(index)
            waiting[index] += 1
    ready = [index for index, count in enumerate(waiting) if not count]  # a heap: the first in the file comes first
    ordered = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(operators[index])
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(ordered) < len(operators):
        stuck = ", ".join(str(operators[index]["name"]) for index, count in enumerate(waiting) if count)
        raise ConfigError(f"operators {stuck} are in a cycle, or read from one")
    return ordered


def _add(job: StreamEnvironment, operator: Mapping[str, Any], streams: Mapping[str, OperatorStream]) -> OperatorStream:
    inputs = _inputs(operator)
    profile = operator.get("profile")
    kind = OperatorKind(operator.get("kind", "process" if inputs else "source"))
    if not inputs and kind not in (OperatorKind.SOURCE, OperatorKind.INVOKABLE):
        raise ConfigError(f"operator {operator['name']!r} is of kind {kind.value} but has no inputs")
    node = StreamNode(
        name=operator["name"],
        kind=kind,
        function=name_of(operator["function"]) if "function" in operator else "",
        strategy=ChainingStrategy(operator.get("chaining", "never" if kind is OperatorKind.INVOKABLE else "always")),
        is_source=not inputs,
        parameters=operator.get("parameters", {}),
        source_size=_settings(SourceSize, operator, "source_size"),
        **{name: operator[name] for name in _NODE_FIELDS & operator.keys()},
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
            raise ConfigError(f"operator {name!r}: an input has a function but no partitioner: add hash")
        if "mode" in given:
            stream = stream.exchange(ExchangeMode(given["mode"]))
        for word, set_option in _INPUT_OPTIONS.items():
            if word in given:
                stream = set_option(stream, given[word])
        by_number.setdefault(given.get("input", 1), []).append(stream)
    if sorted(by_number) != list(range(1, len(by_number) + 1)):
        raise ConfigError(f"operator {name!r} has inputs {sorted(by_number)}; number them from 1 without gaps")
    return [streams[0].union(*streams[1:]) for _, streams in sorted(by_number.items())]


_INPUT_OPTIONS: Final[Mapping[str, Callable[[DataStream, Any], DataStream]]] = {
    "dataset_id": DataStream.persist,
    "format": DataStream.with_format,
    "buffer_timeout_s": DataStream.with_buffer_timeout,
    "channels": DataStream.with_channels,
    "is_prompt": DataStream.prompt,
}


# From a graph to a document.


def write_job(graph: StreamGraph) -> dict[str, Any]:
    """The document of a job, as plain JSON data; `job_of` returns the same job.

    Raises:
        ConfigError: a parameter cannot be represented in JSON; the text has the path.
    """
    settings = graph.settings
    document: dict[str, Any] = {"name": graph.name}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value != field.default:
            document[field.name] = _plain(value)
    if graph.buffer_timeout_s != DEFAULT_BUFFER_TIMEOUT_S:
        document["buffer_timeout_s"] = graph.buffer_timeout_s
    if graph.group_profiles:
        document["slot_sharing_groups"] = {name: _profile(each) for name, each in graph.group_profiles.items()}
    document["operators"] = [_written(graph, index) for index in range(len(graph.nodes))]
    _check_json(document, "job")
    return document


def _written(graph: StreamGraph, index: int) -> dict[str, Any]:
    node = graph.nodes[index]
    operator: dict[str, Any] = {"name": node.name, "kind": node.kind.value}
    if node.function:
        operator["function"] = node.function
    if node.parallelism != UNDECIDED:
        operator["parallelism"] = node.parallelism
    operator["slot_sharing_group"] = node.slot_sharing_group
    if not isinstance(node.buffer_timeout_s, Unset):
        operator["buffer_timeout_s"] = node.buffer_timeout_s
    if node.strategy is not ChainingStrategy.ALWAYS:
        operator["chaining"] = node.strategy.value
    operator |= _changed_fields(node, _NODE_FIELDS)
    if node.profile != UNKNOWN_PROFILE:
        operator["profile"] = _profile(node.profile)
    if node.source_size is not None:
        operator["source_size"] = dataclasses.asdict(node.source_size)
    if node.parameters:
        operator["parameters"] = dict(node.parameters)
    if graph.inputs_of(index):
        operator["inputs"] = [_written_input(graph, edge) for edge in graph.inputs_of(index)]
    return operator


_NODE_FIELDS: Final = frozenset(
    {
        "has_operator",
        "max_parallelism",
        "co_location_group",
        "is_legacy_source",
        "is_yielding",
        "emits_at_end_only",
        "supports_concurrent_attempts",
        "uid",
    }
)


_EDGE_FIELDS: Final = frozenset({"function", "side_output", "dataset_id", "format", "channels", "is_prompt"})


def _written_input(graph: StreamGraph, edge: StreamEdge) -> dict[str, Any]:
    given: dict[str, Any] = {"from": graph.nodes[edge.source].name, "partitioner": edge.partitioner.value}
    if edge.input_number != 1:
        given["input"] = edge.input_number
    if edge.mode is not ExchangeMode.UNDEFINED:
        given["mode"] = edge.mode.value
    if not isinstance(edge.buffer_timeout_s, Unset):
        given["buffer_timeout_s"] = edge.buffer_timeout_s
    return given | _changed_fields(edge, _EDGE_FIELDS)


def _changed_fields(value: StreamNode | StreamEdge, names: frozenset[str]) -> dict[str, Any]:
    """The fields of these names that do not have their default."""
    fields = [field for field in dataclasses.fields(value) if field.name in names]
    return {each.name: getattr(value, each.name) for each in fields if getattr(value, each.name) != each.default}


def _plain(value: Any) -> Any:
    if isinstance(value, GlobalExchangeMode):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        defaults = {
            field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            for field in dataclasses.fields(value)
        }
        return {name: _plain(each) for name, each in fields.items() if each != defaults[name] or name == "kind"}
    return value


def _profile(profile: ResourceProfile) -> dict[str, Any]:
    return {"cpu_cores": profile.cpu_cores, "memory_bytes": profile.memory_bytes}


def _check_json(value: Any, where: str) -> None:
    """Rejects what JSON cannot represent: tuples, bytes, keys that are not strings, numbers that are not finite."""
    stack = [(value, where)]
    while stack:
        value, where = stack.pop()
        if isinstance(value, dict):
            for key, inner in value.items():
                if type(key) is not str:
                    raise ConfigError(f"{where}: the key {key!r} is not a string, but a job is stored as JSON")
                stack.append((inner, f"{where}[{key!r}]"))
        elif isinstance(value, list):
            stack += [(inner, f"{where}[{index}]") for index, inner in enumerate(value)]
        elif value is not None and type(value) not in (bool, int, float, str):
            raise ConfigError(
                f"{where} is {type_text(value)}, but a job is stored as JSON: give None, bool, int, float, str,"
                " list or dict"
            )
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise ConfigError(f"{where} is {safe_repr(value)}, which does not fit 64 bits: give it as a str")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{where} is {value}, but JSON has no such number")
