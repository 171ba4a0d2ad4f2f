"""What the subtasks of an adaptive vertex read of each input, so that each gets about equally many bytes.

Rules:
- Keys that are correlated between inputs (both sides of a join) bind subpartition i of one input to subpartition i of
  the others: such inputs are cut together. Others are cut one by one.
- Keys that are correlated within an input (an aggregation) bind subpartition i of all its partitions together.
- A subpartition that is much larger than the others is cut across partitions if nothing binds it together; what is
  bound to it in another input is then read by several subtasks.
- Every combination of pieces that are bound to each other meets in exactly one subtask.
- If no cut by bytes is legal, the pieces, or the subpartitions, are divided by number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import final

import numpy as np
from numpy.typing import NDArray

from ...base.errors import ConfigError
from ..graph.job_graph import DistributionPattern
from ..graph.settings import CutSettings
from ..structures import index_array
from ..topology.distribution import InputInfo, Piece, dynamic_input
from .cut import ByteArray, DatasetSizes, PairedRow, PlainRow, Row, cut_by_number, cut_by_size


@final
@dataclass(frozen=True, slots=True, eq=False)
class VertexInput:
    """A complete input.

    Attributes:
        sizes: what its producers wrote.
        is_broadcast: whether every subtask reads all of it.
        input_number: of the vertex, from 1; the edges of a union share one.
        binds_keys: whether all records of one key must reach one subtask.
        binds_inputs: whether records of one key in different inputs must reach the same subtask.
    """

    sizes: DatasetSizes
    pattern: DistributionPattern = DistributionPattern.ALL_TO_ALL
    is_broadcast: bool = False
    input_number: int = 1
    binds_keys: bool = True
    binds_inputs: bool = True


def even_input(given: VertexInput, parallelism: int) -> InputInfo:
    """Divides subpartitions evenly, whatever their sizes.

    Raises:
        ConfigError: there are more subtasks than subpartitions.
    """
    return dynamic_input(
        given.pattern,
        given.sizes.partitions,
        parallelism,
        given.sizes.subpartitions,
        is_broadcast=given.is_broadcast,
        reads_all=given.is_broadcast,
    )


def bound_inputs(
    inputs: Sequence[VertexInput], volume_bytes: int, least: int, most: int, fallback: int, settings: CutSettings
) -> list[InputInfo]:
    """Cuts all-to-all inputs together; every subtask reads broadcast inputs whole.

    Args:
        inputs: at least one.
        volume_bytes: wanted bytes of them per subtask.
        least: fewest subtasks.
        most: most subtasks.
        fallback: number of subtasks if no cut by bytes is legal.
        settings: limits.

    Raises:
        ConfigError: inputs differ in their number of subpartitions, inputs of one number bind keys differently, or
            there are fewer subpartitions than `fallback`.
    """
    cut_up = [given for given in inputs if not given.is_broadcast]
    if not cut_up:
        return [even_input(given, fallback) for given in inputs]
    unions = _unions(cut_up, settings)
    longest = settings.max_channels_per_task // max(union.partitions for union in unions.values())
    if any(union.is_cut.any() for union in unions.values()):
        slices = _combined(unions, volume_bytes)
        row: Row = _row(list(slices.values()), longest)
    else:
        slices = {}
        row = PlainRow(np.sum([union.totals for union in unions.values()], axis=0).tolist(), longest)
    starts = cut_by_size(row, volume_bytes, least, most)
    if starts is None and len(slices) < 2:
        starts = cut_by_number(len(row), fallback)
    if starts is None:
        return [even_input(given, fallback) for given in inputs]
    stops = [*starts[1:], len(row)]
    infos = []
    for given in inputs:
        partitions = given.sizes.partitions
        if given.is_broadcast:
            infos.append(even_input(given, len(starts)))
        elif slices:
            mine = slices[given.input_number]
            read = [_pieces(mine[start:stop], partitions) for start, stop in zip(starts, stops, strict=True)]
            infos.append(InputInfo.of_pieces(read))
        else:
            infos.append(_whole_columns(starts, stops, partitions))
    return infos


def single_input(given: VertexInput, volume_bytes: int, parallelism: int, settings: CutSettings) -> InputInfo:
    """Cuts an input that is not bound to another for a given number of subtasks.

    Raises:
        ConfigError: it cannot be cut by bytes, and has fewer subpartitions than there are subtasks.
    """
    if given.is_broadcast or (given.binds_keys and given.pattern is DistributionPattern.POINTWISE):
        return even_input(given, parallelism)
    sizes = given.sizes
    if given.binds_keys:
        row = PlainRow(sizes.by_subpartition().tolist(), settings.max_channels_per_task // sizes.partitions)
    else:
        row = PlainRow(sizes.by_partition().ravel().tolist(), settings.max_channels_per_task)
    starts = cut_by_size(row, volume_bytes, parallelism, parallelism) or cut_by_number(len(row), parallelism)
    if starts is None:
        return even_input(given, parallelism)
    stops = [*starts[1:], len(row)]
    if given.binds_keys:
        return _whole_columns(starts, stops, sizes.partitions)
    read = [_rows(start, stop, sizes.subpartitions) for start, stop in zip(starts, stops, strict=True)]
    return InputInfo.of_pieces(read)


@final
@dataclass(frozen=True, slots=True)
class _Slice:
    subpartition: int
    partitions: range
    size_bytes: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Union:
    """The inputs of one number, read as one.

    Attributes:
        inputs: themselves.
        totals: bytes by subpartition.
        is_cut: by subpartition, whether it is so large that it is cut across partitions.
        partitions: the largest number of partitions among them.
    """

    inputs: list[VertexInput]
    totals: ByteArray
    is_cut: NDArray[np.bool_]
    partitions: int

    def slices(self, volume_bytes: int) -> list[list[_Slice]]:
        everyone = range(self.partitions)
        slices = [[_Slice(column, everyone, size)] for column, size in enumerate(self.totals.tolist())]
        if self.is_cut.any():
            others = self.totals[~self.is_cut]
            target = max(volume_bytes, int(others.sum()) // others.size if others.size else 0)
            sizes = np.sum([given.sizes.by_partition() for given in self.inputs], axis=0)
            for column in np.flatnonzero(self.is_cut).tolist():
                slices[column] = _cut_across(column, sizes[:, column].tolist(), target)
        return slices


def _unions(inputs: Sequence[VertexInput], settings: CutSettings) -> dict[int, _Union]:
    """Inputs by their number, in order.

    Raises:
        ConfigError: inputs differ in their number of subpartitions, or inputs of one number bind keys differently.
    """
    widths = sorted({given.sizes.subpartitions for given in inputs})
    if len(widths) != 1:
        raise ConfigError(f"inputs with correlated keys have {widths} subpartitions; give them equally many")
    unions = {}
    for number in sorted({given.input_number for given in inputs}):
        members = [given for given in inputs if given.input_number == number]
        if len({given.binds_keys for given in members}) != 1:
            raise ConfigError(f"only some edges of input {number} bind keys, but a union is read as one input")
        totals = np.sum([given.sizes.by_subpartition() for given in members], axis=0)
        median = max(int(np.median(totals)), 1)
        is_cut = totals > max(median * settings.skewed_factor, settings.skewed_threshold_bytes)
        if members[0].binds_keys or len({given.sizes.partitions for given in members}) != 1:
            is_cut[:] = False
        unions[number] = _Union(members, totals, is_cut, max(given.sizes.partitions for given in members))
    return unions


def _cut_across(column: int, sizes: Sequence[int], target_bytes: int) -> list[_Slice]:
    """Cuts one subpartition between partitions, into slices below the target size if possible."""
    slices, start, total = [], 0, 0
    for partition, size in enumerate(sizes):
        if partition > start and total + size >= target_bytes:
            slices.append(_Slice(column, range(start, partition), total))
            start, total = partition, 0
        total += size
    slices.append(_Slice(column, range(start, len(sizes)), total))
    return slices


def _combined(unions: dict[int, _Union], volume_bytes: int) -> dict[int, list[_Slice]]:
    """For each input number its slice in each element of the row: every slice meets all slices that it is bound to."""
    combined: dict[int, list[_Slice]] = {number: [] for number in unions}
    for column in zip(*(union.slices(volume_bytes) for union in unions.values()), strict=True):
        for combination in product(*column):
            for number, one in zip(unions, combination, strict=True):
                combined[number].append(one)
    return combined


def _row(combined: Sequence[Sequence[_Slice]], longest: int) -> PairedRow:
    """The combined slices as a row; a slice that occurs again counts once per subtask."""
    pieces, sizes = [], []
    for slices in combined:
        numbers: dict[tuple[int, int], int] = {}
        pieces.append([numbers.setdefault((one.subpartition, one.partitions.start), len(numbers)) for one in slices])
        by_number = [0] * len(numbers)
        for one, number in zip(slices, pieces[-1], strict=True):
            by_number[number] = one.size_bytes
        sizes.append(by_number)
    return PairedRow([one.subpartition for one in combined[0]], pieces, sizes, longest)


def _pieces(slices: Sequence[_Slice], partitions: int) -> list[Piece]:
    """The pieces of an input that a subtask reads: its slices, neighbours joined."""
    of_column: dict[int, list[range]] = {}
    for one in slices:
        of_column.setdefault(one.subpartition, []).append(
            range(one.partitions.start, min(one.partitions.stop, partitions))
        )
    pieces: list[Piece] = []
    open_pieces: dict[tuple[int, int], int] = {}
    for column, ranges in of_column.items():
        for joined in _joined(ranges):
            key = joined.start, joined.stop
            at = open_pieces.get(key, -1)
            if at >= 0 and pieces[at].subpartitions.stop == column:
                pieces[at] = Piece(joined, range(pieces[at].subpartitions.start, column + 1))
            else:
                open_pieces[key] = len(pieces)
                pieces.append(Piece(joined, range(column, column + 1)))
    return pieces


def _joined(ranges: Sequence[range]) -> list[range]:
    """Sorted ranges, with touching or overlapping ones joined."""
    joined: list[range] = []
    for one in sorted(ranges, key=lambda one: one.start):
        if joined and one.start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, one.stop))
        else:
            joined.append(one)
    return joined


def _rows(start: int, stop: int, columns: int) -> list[Piece]:
    """Elements start to stop of all subpartitions in a row, partition after partition, as rectangles."""
    pieces = []
    first, begin = divmod(start, columns)
    last, end = divmod(stop, columns)
    if first == last:
        return [Piece(range(first, first + 1), range(begin, end))]
    if begin:
        pieces.append(Piece(range(first, first + 1), range(begin, columns)))
        first += 1
    if first < last:
        pieces.append(Piece(range(first, last), range(columns)))
    if end:
        pieces.append(Piece(range(last, last + 1), range(end)))
    return pieces


def _whole_columns(starts: Sequence[int], stops: Sequence[int], partitions: int) -> InputInfo:
    """Every subtask reads a stretch of subpartitions of every partition."""
    count = len(starts)
    return InputInfo(
        index_array(np.arange(count + 1)),
        index_array(np.zeros(count)),
        index_array(np.full(count, partitions)),
        index_array(starts),
        index_array(stops),
    )
