"""The job of a `Case`: its result shows every lost, repeated or wrong record.

Takes: a case. Gives: the job, and what is wrong with its results and commits.

`source -> [the edge of the case] -> middle -> key_by() -> sink`. Every subtask gets the records of a broadcast, and one
handles them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ...base.config import NetworkConfig
from ...schedule.checkpoint.instructions import CheckpointSettings
from ...schedule.graph.settings import AdaptiveSettings, RestartSettings
from ...schedule.graph.stream_builder import DataStream, OperatorStream, StreamEnvironment
from ...schedule.graph.stream_graph import ExchangeMode, GlobalExchangeMode, StreamSettings
from .feature_operators import (
    KEY_FUNCTIONS,
    Middle,
    MiddleOfArrays,
    MiddleOfTwo,
    Sink,
    Source,
    Split,
    TwoPhaseSink,
    to_subtask,
)
from .features import NUMBERS, Case
from .operators import SINK

MIDDLE: Final = "middle"
_FORMATS: Final = {"tuples": "msgpack", "named tuples": "msgpack", "maps": "msgpack"}
_MODES: Final = {
    "pipelined": GlobalExchangeMode.ALL_EDGES_PIPELINED,
    "one blocking edge": GlobalExchangeMode.ALL_EDGES_PIPELINED,
    "blocking": GlobalExchangeMode.ALL_EDGES_BLOCKING,
    "hybrid": GlobalExchangeMode.ALL_EDGES_HYBRID_FULL,
}


def network(case: Case) -> NetworkConfig:
    """The network of the job. Raises ConfigError if its features do not go together."""
    return NetworkConfig.acting_as(
        case.dialect,
        segment_size_bytes=512,
        memory_bytes=1 << 20,
        credit_based=case.credit == "on",
        heartbeat_interval_s=2.0 if case.credit == "on" else None,
        debloat_target_s=0.2 if case.debloating == "on" else None,
        debloat_min_buffer_bytes=64,
        checksum=case.checksum == "on",
        sort_buffer_bytes=64 * 1024,
    )


def job(case: Case, name: str, widths: Sequence[int], world: str = "", pace_s: float = 0.1) -> StreamEnvironment:
    """Builds the job of a case.

    Args:
        case: its features.
        name: name of the job.
        widths: parallelism of source, middle and sink; sources have as many splits as the case says.
        world: folder of marks and commits; empty: in memory.
        pace_s: pause of a source before each few records.

    Raises:
        ConfigError: its features do not go together.
    """
    settings = StreamSettings(
        is_batch=case.is_batch,
        is_dynamic=case.plan == "adaptive",
        adaptive=AdaptiveSettings(max_parallelism=3, data_volume_per_task_bytes=500)
        if case.plan == "adaptive"
        else None,
        exchange_mode=_MODES[case.exchange],
        checkpoints=CheckpointSettings(
            interval_s=0.3,
            unaligned=case.checkpoints != "aligned",
            aligned_timeout_s=0.05 if case.checkpoints == "timed" else 0.0,
        )
        if case.checkpoints != "none"
        else None,
        restart=RestartSettings(kind="fixed_delay", delay_s=0.2, attempts=20),
        network=network(case),
    )
    environment = StreamEnvironment(name, max_parallelism=32, settings=settings)
    inputs = 2 if case.edge in ("union", "connect") else 1
    arrays = case.shape == "arrays"
    sources = [
        environment.source(
            Source,
            name=f"source-{number}",
            format=case.format,
            arrays=arrays,
            pace_s=pace_s,
            first_split=number * case.width,
            splits=case.width,
        ).set_parallelism(widths[0])
        for number in range(inputs)
    ]
    parameters = {
        "format": case.format,
        "job": name,
        "world": world,
        "records": NUMBERS * inputs,
        "fails": case.failure == "user code",
        "shares": case.edge == "broadcast",
        "keyed": case.edge == "key_by",
    }
    middle = _middle(case, sources, widths[0], parameters).disable_chaining()
    if case.plan == "static" or case.edge in ("forward", "custom"):
        middle.set_parallelism(widths[1])
    keyed = middle.key_by()
    if case.sink == "two-phase":
        sink = keyed.sink(TwoPhaseSink, name=SINK, job=name, world=world, fails=case.takes_checkpoints)
    else:
        sink = keyed.sink(Sink, name=SINK)
    sink.set_parallelism(widths[2]).disable_chaining()
    return environment


def _middle(case: Case, sources: Sequence[OperatorStream], width: int, parameters: Mapping[str, Any]) -> OperatorStream:
    operator: Any = MiddleOfArrays if case.shape == "arrays" else Middle

    def sent(stream: DataStream) -> DataStream:
        stream = stream.with_format(_FORMATS.get(case.format, case.format))
        return stream.exchange(ExchangeMode.BATCH) if case.exchange == "one blocking edge" else stream

    first = sources[0]
    match case.edge:
        case "forward":
            stream = first.forward()
        case "rescale":
            stream = first.rescale()
        case "key_by":
            stream = first.key_by(KEY_FUNCTIONS[case.format])
        case "broadcast":
            stream = first.broadcast()
        case "custom":
            stream = first.partition_custom(to_subtask)
        case "prompt":
            stream = first.rebalance().prompt()
        case "side output":
            split = first.process(Split, name="split").set_parallelism(width)
            stream = split.rebalance().union(split.side_output("odd").rebalance())
        case "union":
            stream = first.rebalance().union(sources[1].rescale())
        case "connect":
            operator = MiddleOfTwo if case.shape == "records" else MiddleOfArrays
            second = sent(sources[1].rebalance())
            return sent(first.rebalance()).connect(second, operator, name=MIDDLE, **parameters)
        case _:
            stream = first.rebalance()
    return sent(stream).process(operator, name=MIDDLE, **parameters)


def expected(case: Case) -> set[int]:
    """The numbers of all records."""
    splits = case.width * (2 if case.edge in ("union", "connect") else 1)
    return {split * 1000 + number for split in range(splits) for number in range(NUMBERS)}


def problems(case: Case, results: Mapping[str, Any], commits: Counter[int]) -> str:
    """Returns what is wrong with the results and commits of a finished job; empty if nothing is."""
    right = Counter(dict.fromkeys(expected(case), 1))
    counts: Counter[int] = Counter()
    for rows in results.get(SINK, {}).values():
        for number, count in rows:
            counts[number] += count
    return _difference("counted", right, counts) or (
        _difference("committed", right, commits) if case.sink == "two-phase" else ""
    )


def commits_of(rows: Iterable[Iterable[Sequence[int]]]) -> Counter[int]:
    """How often each number was committed in a simulation."""
    return Counter(number for each in rows for number, _ in each)


def _difference(what: str, right: Counter[int], counts: Counter[int]) -> str:
    wrong = {number: counts[number] for number in {*right, *counts} if right[number] != counts[number]}
    if not wrong:
        return ""
    number = min(wrong)
    lost, more = sum(not count for count in wrong.values()), sum(count > 1 for count in wrong.values())
    return f"{len(wrong)} of {len(right)} numbers were not {what} once ({lost} never, {more} more often): {number}"
