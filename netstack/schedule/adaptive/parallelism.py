"""The parallelism of a vertex of an adaptive batch job, what each subtask reads, and why.

Rules: a parallelism that is set stays. Broadcast inputs, which every subtask reads whole, do not count. If all inputs
that belong together can be cut freely, the cut decides the number of subtasks, not bytes divided by volume.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from ..graph.job_graph import DistributionPattern, SourceSize
from ..graph.settings import AdaptiveSettings
from ..topology.distribution import InputInfo
from .skew import VertexInput, bound_inputs, even_input, single_input

if TYPE_CHECKING:
    from .skew import VertexInput


MAX_BROADCAST_RATIO = 0.5
"""In the rounded formula, the largest share of a subtask's volume that broadcast inputs count for."""


@final
@dataclass(frozen=True, slots=True)
class ParallelismExplanation:
    """How the parallelism of a vertex was decided, for people and for JSON.

    Attributes:
        input_bytes: of each input, all producers together.
        broadcast: whether every subtask reads the whole input.
        steps: of the formula, in order.
        bytes_per_subtask: bytes that each subtask reads, broadcasts included.
    """

    input_bytes: tuple[int, ...]
    broadcast: tuple[bool, ...]
    steps: tuple[str, ...]
    bytes_per_subtask: tuple[int, ...]


def explain(
    inputs: Sequence[VertexInput],
    settings: AdaptiveSettings,
    max_parallelism: int,
    decision: Decision,
    source: SourceSize | None = None,
) -> ParallelismExplanation:
    """Explains a decision.

    Args:
        inputs: all complete.
        settings: the decision's.
        max_parallelism: the largest parallelism of the vertex.
        decision: to be explained.
        source: the size of a source.
    """
    volume = settings.data_volume_per_task_bytes
    if not inputs:
        most = settings.default_source_parallelism
        steps = [f"default_source_parallelism {most}" if most else f"max_parallelism {settings.max_parallelism}"]
        steps[0] += f", at most {max_parallelism}"
        if source is not None and source.bytes is not None:
            steps.append(f"ceil({source.bytes} / {volume}) = {-(-source.bytes // volume)}")
        if source is not None and source.splits is not None:
            steps.append(f"{source.splits} splits")
        return ParallelismExplanation((), (), (f"a source: {'; '.join(steps)}: {decision.parallelism}",), ())
    shared = sum(given.sizes.total_bytes for given in inputs if not given.is_broadcast)
    broadcast = sum(given.sizes.total_bytes for given in inputs if given.is_broadcast)
    least, most = (min(bound, max_parallelism) for bound in settings.bounds)
    steps = [f"{shared} bytes to divide, {broadcast} broadcast bytes, {volume} per subtask"]
    if settings.is_rounded:
        capped = min(broadcast, math.ceil(volume * MAX_BROADCAST_RATIO))
        wanted = -(-shared // max(volume - capped, 1))
        steps.append(f"broadcasts count with min({broadcast}, {volume} x {MAX_BROADCAST_RATIO:g}) = {capped}")
        steps.append(f"ceil({shared} / ({volume} - {capped})) = {wanted}")
        steps.append(f"the nearest power of two, from {least} to {most}: {decision.parallelism}")
    else:
        steps.append(f"ceil({shared} / {volume}) = {-(-shared // volume)}, from {least} to {most}")
        steps.append(f"cut by bytes, subpartition by subpartition: {decision.parallelism}")
    return ParallelismExplanation(
        tuple(given.sizes.total_bytes for given in inputs),
        tuple(given.is_broadcast for given in inputs),
        tuple(steps),
        _bytes_per_subtask(inputs, decision),
    )


def _bytes_per_subtask(inputs: Sequence[VertexInput], decision: Decision) -> tuple[int, ...]:
    totals = [0] * decision.parallelism
    for given, info in zip(inputs, decision.inputs, strict=True):
        sizes = given.sizes.by_partition()
        for subtask in range(decision.parallelism):
            for piece in info.pieces_of(subtask):
                rows = sizes[piece.partitions.start : piece.partitions.stop]
                totals[subtask] += int(rows[:, piece.subpartitions.start : piece.subpartitions.stop].sum())
    return tuple(totals)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """How a vertex will run.

    Attributes:
        inputs: what each of them reads, input by input.
        explanation: why, if requested.
    """

    parallelism: int
    inputs: tuple[InputInfo, ...] = ()
    explanation: ParallelismExplanation | None = None


def decide(
    inputs: Sequence[VertexInput],
    settings: AdaptiveSettings,
    *,
    max_parallelism: int = 1 << 15,
    source: SourceSize | None = None,
) -> Decision:
    """Decides the parallelism of one vertex.

    Args:
        inputs: all complete, in the vertex's order; none for a source.
        settings: the job's.
        max_parallelism: the largest possible parallelism.
        source: the size of a source.

    Raises:
        ConfigError: there are fewer subpartitions than subtasks, or inputs that belong together cannot be cut together.
    """
    if not inputs:
        return Decision(source_parallelism(settings, max_parallelism, source or SourceSize()))
    least, most = (min(bound, max_parallelism) for bound in settings.bounds)
    if not settings.is_rounded:
        # A subtask reads at least a subpartition, or at least whatever must stay in one piece.
        most = max(least, min([most, *(_capacity(given) for given in inputs if not _is_bound(given))]))
    wanted = _wanted(inputs, settings, least, most)
    if settings.is_rounded:
        return Decision(wanted, tuple(even_input(given, wanted) for given in inputs))
    if any(given.pattern is DistributionPattern.POINTWISE for given in inputs):
        least = most = wanted
    return _cut_inputs(inputs, settings, least, most, wanted)


def source_parallelism(settings: AdaptiveSettings, max_parallelism: int, source: SourceSize) -> int:
    """The parallelism of a source: by its bytes and splits if known, else the largest possible."""
    most = min(settings.default_source_parallelism or settings.max_parallelism, max_parallelism)
    wanted = most if source.bytes is None else -(-source.bytes // settings.data_volume_per_task_bytes)
    return max(1, min([wanted, most] if source.splits is None else [wanted, most, source.splits]))


def rounded_parallelism(
    volume_bytes: int, broadcast_bytes: int, other_bytes: int, min_parallelism: int, max_parallelism: int
) -> int:
    """The formula of Flink 1.15: a power of two, so that each subtask gets 0.75 to 1.5 times the volume.

    Args:
        volume_bytes: wanted bytes per subtask.
        broadcast_bytes: what every subtask reads; it counts up to half of the volume.
        other_bytes: what is divided among subtasks.
        min_parallelism: a power of two.
        max_parallelism: a power of two.
    """
    capped = min(broadcast_bytes, math.ceil(volume_bytes * MAX_BROADCAST_RATIO))
    subtasks = -(-other_bytes // max(volume_bytes - capped, 1))
    return min(max(nearest_power_of_two(subtasks), min_parallelism), max_parallelism)


def nearest_power_of_two(number: int) -> int:
    """The nearest power of two, the larger if two are equally near; 1 for 0."""
    if number < 1:
        return 1
    down = 1 << number.bit_length() - 1
    up = down if down == number else 2 * down
    return down if number < (down + up) // 2 else up


def _is_bound(given: VertexInput) -> bool:
    """Whether an input is cut together with others."""
    return given.binds_inputs and given.pattern is DistributionPattern.ALL_TO_ALL


def _capacity(given: VertexInput) -> int:
    """The largest number of subtasks that can each read a part of an input."""
    if given.is_broadcast:
        return 1 << 30
    stays_together = given.pattern is DistributionPattern.ALL_TO_ALL and (given.binds_keys or given.binds_inputs)
    return given.sizes.subpartitions * (1 if stays_together else given.sizes.partitions)


def _wanted(inputs: Sequence[VertexInput], settings: AdaptiveSettings, least: int, most: int) -> int:
    """The parallelism by bytes and volume alone, within bounds."""
    shared = [given for given in inputs if not given.is_broadcast]
    if not shared:
        return least
    volume, total = settings.data_volume_per_task_bytes, sum(given.sizes.total_bytes for given in shared)
    if settings.is_rounded:
        broadcast = sum(given.sizes.total_bytes for given in inputs if given.is_broadcast)
        return rounded_parallelism(volume, broadcast, total, least, most)
    return min(max(min([-(-total // volume), *map(_capacity, shared)]), least), most)


def _cut_inputs(
    inputs: Sequence[VertexInput], settings: AdaptiveSettings, least: int, most: int, wanted: int
) -> Decision:
    """Cuts the inputs that belong together first: their cut decides into how many parts the others are cut."""
    together = [number for number, given in enumerate(inputs) if _is_bound(given)]
    total = sum(given.sizes.total_bytes for given in inputs)

    def volume(part_bytes: int) -> int:
        """The part of a subtask's volume for inputs of this size."""
        whole = settings.data_volume_per_task_bytes
        return whole * part_bytes // total if total else whole

    infos: dict[int, InputInfo] = {}
    if together:
        bound = [inputs[number] for number in together]
        volume_bytes = volume(sum(given.sizes.total_bytes for given in bound))
        cut = bound_inputs(bound, volume_bytes, least, most, wanted, settings.cut)
        infos.update(zip(together, cut, strict=True))
        wanted = cut[0].parallelism
    for number, given in enumerate(inputs):
        if number not in infos:
            infos[number] = single_input(given, volume(given.sizes.total_bytes), wanted, settings.cut)
    return Decision(wanted, tuple(infos[number] for number in range(len(inputs))))
