"""Why a vertex of an adaptive job has so many subtasks: the bytes it was decided by, and the formula's steps, in words.

Takes: the inputs, the settings, what was decided. Gives: a `ParallelismExplanation`, for people and for JSON.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from ..graph.adaptive_settings import AdaptiveSettings
from ..graph.job_graph import SourceSize

if TYPE_CHECKING:
    from .parallelism import Decision
    from .skew import VertexInput

MAX_BROADCAST_RATIO = 0.5
"""In the rounded formula, the most of a subtask's volume that broadcast inputs may take."""


@final
@dataclass(frozen=True, slots=True)
class ParallelismExplanation:
    """How a vertex was decided.

    Attributes:
        input_bytes: of each input, all producers together.
        broadcast: which of them every subtask reads whole.
        steps: of the formula, in order.
        bytes_per_subtask: what each subtask reads, broadcasts included.
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
    """The numbers behind a decision.

    Args:
        inputs: all finished.
        settings: that it was made with.
        max_parallelism: the most subtasks that the vertex can have.
        decision: what came out.
        source: what a source will read.
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
    everybody = sum(given.sizes.total_bytes for given in inputs if given.is_broadcast)
    least, most = (min(bound, max_parallelism) for bound in settings.bounds)
    steps = [f"{shared} bytes to share out, {everybody} for everybody, {volume} a subtask"]
    if settings.is_rounded:
        capped = min(everybody, math.ceil(volume * MAX_BROADCAST_RATIO))
        wanted = -(-shared // max(volume - capped, 1))
        steps.append(f"broadcasts count with min({everybody}, {volume} x {MAX_BROADCAST_RATIO:g}) = {capped}")
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
