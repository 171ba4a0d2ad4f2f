"""Starts a job from the savepoint of another one: verifies, compares and copies it.

Takes: the folder of a savepoint or checkpoint, the job, the folder of the job's checkpoints. Gives: the checkpoint id
in that folder.

Rules: the savepoint is verified and compared with the job before it is copied, and copied before the job is accepted;
the job never reads the original afterwards. The calls block. No code of the job is imported: properties that only its
functions define (initial values of keyed state, the type of computed keys) are compared where the functions run, before
the first record.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, final

from ....base.errors import CheckpointError, CheckpointStorageError, StateMismatch
from ....schedule.checkpoint.folders import MANIFEST_NAME
from ....schedule.checkpoint.snapshot import Manifest, TaskSnapshot, decode_manifest, encode_manifest
from ....schedule.checkpoint.storage import CheckpointStorage
from ....schedule.descriptors.information import WITH_HEADS, EdgeId, JobInformation, edge_id
from ....schedule.graph.job_graph import JobEdge, JobGraph
from ....schedule.graph.stream_graph import Partitioner, StreamGraph, StreamNode

_FOLDER: Final = re.compile(r"chk-(\d{8,18})")
_TYPE_OF_FORMAT: Final = {"int64": "int", "str": "str", "bytes": "bytes", "float64": "float"}
_KEYED: Final = frozenset({Partitioner.HASH, Partitioner.FORWARD_CONSECUTIVE_HASH})
_SHOWN: Final = 8
"""Number of candidate operators in an error text."""


@final
@dataclass(slots=True)
class OperatorState:
    """The kinds of state of one operator in a savepoint.

    Attributes:
        has_prepared: whether a subtask has prepared output to commit.
        keyed: the key types of its non-empty keyed states.
    """

    has_own: bool = False
    has_prepared: bool = False
    keyed: dict[str, set[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        states = [f"keyed state {name!r}" for name in sorted(self.keyed)]
        states += ["operator state"] if self.has_own else []
        return ", ".join([*states, *(["prepared commits"] if self.has_prepared else [])])


@final
@dataclass(slots=True)
class SavepointContents:
    """The contents of a savepoint without the values.

    Attributes:
        operators: operators with state, by uid or name.
        in_flight: formats of the edges with in-flight records.
    """

    operators: dict[str, OperatorState] = field(default_factory=dict)
    parallelism: Counter[str] = field(default_factory=Counter)
    in_flight: dict[EdgeId, str] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshots: Iterable[TaskSnapshot]) -> SavepointContents:
        """Summarises snapshots, one at a time.

        Raises:
            CheckpointStorageError: a snapshot cannot be read, or is not of an operator chain.
        """
        contents = cls()
        for snapshot in snapshots:
            if not isinstance(snapshot.operator, dict):
                raise CheckpointStorageError(
                    f"its state of {snapshot.task}-{snapshot.subtask} does not belong to an operator chain"
                )
            contents.parallelism.update(snapshot.operator.keys())
            for operator, state in snapshot.operator.items():
                keyed = {name: values for name, values in state.get("keyed", {}).items() if values}
                has_own = state.get("own") is not None
                has_prepared = bool(state.get("prepared"))
                if not keyed and not has_own and not has_prepared:
                    continue
                mine = contents.operators.setdefault(operator, OperatorState())
                mine.has_own = mine.has_own or has_own
                mine.has_prepared = mine.has_prepared or has_prepared
                for name, values in keyed.items():
                    keys = values if isinstance(values, dict) else (key for key, _ in values)
                    mine.keyed.setdefault(name, set()).update({type(key).__name__ for key in keys})
            for channels in (snapshot.inputs, snapshot.outputs):
                contents.in_flight |= dict(_edge_of(partition) for (partition, _), data in channels.items() if data)
        return contents


def check_savepoint(
    savepoint: str, contents: SavepointContents, graph: StreamGraph, job: JobGraph, *, allow_missing: bool
) -> tuple[str, ...]:
    """Checks that a job can start from a savepoint.

    Args:
        savepoint: folder of the savepoint, for error texts.
        contents: contents of the savepoint.
        graph: stream graph of the job.
        job: job graph of the job.
        allow_missing: whether state of missing operators and in-flight records of missing edges may be dropped.

    Returns:
        What is dropped: operators, and edges as `source -> target`.

    Raises:
        StateMismatch: the job does not fit; the text names both sides.
    """
    nodes = {node.state_id: node for node in graph.nodes}
    missing = sorted(contents.operators.keys() - nodes.keys())
    if missing and not allow_missing:
        held = "; ".join(f"{contents.operators[operator]} of operator {operator!r}" for operator in missing[:_SHOWN])
        raise StateMismatch(
            f"{savepoint} has {held}, but job {graph.name!r} has no such operator:"
            f" if it was renamed, give {_candidates(contents, nodes)} .uid({missing[0]!r});"
            " --allow-non-restored-state drops the state"
        )
    for operator, state in sorted(contents.operators.items()):
        if operator in nodes and state.keyed:
            _check_keys(savepoint, state, nodes[operator], graph)
    return *missing, *_check_in_flight(savepoint, contents, job, allow_missing=allow_missing)


def _candidates(contents: SavepointContents, nodes: dict[str, StreamNode]) -> str:
    """Lists the job's operators without state in the savepoint; a renamed one is among them."""
    names = sorted(nodes[each].name for each in nodes.keys() - contents.operators.keys())
    if not names:
        return "the operator"
    more = f" or one of {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return " or ".join(map(repr, names[:_SHOWN])) + more


def _check_in_flight(
    savepoint: str, contents: SavepointContents, job: JobGraph, *, allow_missing: bool
) -> tuple[str, ...]:
    information = JobInformation.of("", job)
    edges: dict[EdgeId, JobEdge] = {}
    for vertex in range(len(job.vertices)):
        edges |= {information.kept_edge(edge_id(job, edge)): edge for edge in job.inputs_of(vertex)}
    missing = sorted(str(edge) for edge in contents.in_flight.keys() - edges.keys())
    if missing and not allow_missing:
        raise StateMismatch(
            f"{savepoint} has in-flight records on {missing[0]}, but in job {job.name!r} this edge is inside a chain or"
            " missing: start from a savepoint, which has no in-flight records; --allow-non-restored-state drops these"
            " records"
        )
    for edge in sorted(contents.in_flight.keys() & edges.keys(), key=str):
        written, read = contents.in_flight[edge], edges[edge].format
        if written != read:
            raise StateMismatch(
                f"{savepoint} has in-flight records on {edge} in format {written}, but in job {job.name!r} the format"
                f" is {read}: keep the format, or start from a savepoint, which has no in-flight records"
            )
        before, now = contents.parallelism[edge.target], job.vertices[edges[edge].consumer].parallelism
        if edges[edge].partitioner == "broadcast" and before != now:
            raise StateMismatch(
                f"{savepoint} has in-flight records on {edge} for each of {before} subtasks, but in job {job.name!r}"
                f" there are {now}: change the parallelism with a savepoint, which has no in-flight records"
            )
    return tuple(missing)


def _check_keys(savepoint: str, state: OperatorState, node: StreamNode, graph: StreamGraph) -> None:
    edges = graph.inputs_of(graph.named(node.name))
    if not edges or any(edge.partitioner not in _KEYED for edge in edges):
        raise StateMismatch(
            f"{savepoint} has {state} of operator {node.state_id!r}, but in job {graph.name!r} not all inputs of"
            f" {node.name!r} are keyed: put key_by in front of it, or drop the state with another uid and"
            " --allow-non-restored-state"
        )
    allowed = {None if edge.function else _TYPE_OF_FORMAT.get(edge.format) for edge in edges}
    if None in allowed:
        return
    for name, types in sorted(state.keyed.items()):
        if not types <= allowed:
            raise StateMismatch(
                f"{savepoint} has keyed state {name!r} of operator {node.state_id!r} with keys of type"
                f" {' and '.join(sorted(types))}, but in job {graph.name!r} the format of {graph.describe(edges[0])}"
                f" makes them {' and '.join(sorted(filter(None, allowed)))}: keep the format, or drop the state with"
                " another uid and --allow-non-restored-state"
            )


def _edge_of(partition: str) -> tuple[EdgeId, str]:
    try:
        edge, _, format = EdgeId.of_partition(partition)
        return edge, format.removesuffix(WITH_HEADS)
    except (ValueError, TypeError) as error:
        raise CheckpointStorageError(f"it has in-flight records in {partition[:80]!r}, which is not an edge") from error


def adopt_savepoint(
    savepoint: str, storage: CheckpointStorage, graph: StreamGraph, job: JobGraph, *, allow_missing: bool = False
) -> tuple[int, tuple[str, ...]]:
    """Copies a savepoint into a job's checkpoint folder, if it is elsewhere.

    Args:
        savepoint: folder printed by `netstack savepoint`; or a folder of checkpoints, of which the newest is used.
        storage: the checkpoints of the new job, which it owns.
        graph: stream graph of the new job.
        job: job graph of the new job.
        allow_missing: as in `check_savepoint`.

    Returns:
        The checkpoint id of the copy, which is above those of earlier jobs, or of the savepoint itself if it is in this
        folder; and what is dropped.

    Raises:
        CheckpointStorageError: the savepoint is incomplete, damaged, or cannot be copied; the text contains the reason.
        StateMismatch: the job does not fit.
    """
    path = Path(savepoint)
    match = _FOLDER.fullmatch(path.name)
    if match is None:
        if (path / MANIFEST_NAME).exists():
            raise CheckpointStorageError(
                f"{savepoint} is a checkpoint under another name: give it back its name, chk- and the eight digits of"
                f" checkpoint_id in its {MANIFEST_NAME}"
            )
        newest = CheckpointStorage(path).newest() if path.is_dir() else None
        if newest is None:
            raise CheckpointStorageError(
                f"{savepoint} has no complete savepoint; give the folder that `netstack savepoint` printed"
            )
        path, checkpoint_id = Path(newest.path), newest.checkpoint_id
    else:
        checkpoint_id = int(match[1])
    try:
        contents = SavepointContents.of(CheckpointStorage(path.parent).snapshots(checkpoint_id))
    except CheckpointError as error:
        raise CheckpointStorageError(f"{savepoint} is not a complete savepoint: {error}") from error
    left = check_savepoint(str(path), contents, graph, job, allow_missing=allow_missing)
    target = Path(storage.path(checkpoint_id))
    if checkpoint_id < storage.next_id():
        is_there = target.exists() and target.samefile(path)
        return checkpoint_id if is_there else _renumbered(path, checkpoint_id, storage), left
    part = target.with_name(f".{target.name}.part")
    try:
        os.makedirs(target.parent, exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(path, part)
        manifest = _of_the_job(decode_manifest((part / MANIFEST_NAME).read_bytes(), checkpoint_id))
        # The epoch of another folder would make it newer than all later checkpoints.
        (part / MANIFEST_NAME).write_bytes(encode_manifest(replace(manifest, epoch=0)))
        os.replace(part, target)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise CheckpointStorageError(f"{savepoint} cannot be copied to {target}: {error}") from error
    return checkpoint_id, left


def _renumbered(path: Path, checkpoint_id: int, storage: CheckpointStorage) -> int:
    """Copies a checkpoint under the next id, and returns it."""
    number = storage.next_id()
    manifest = _of_the_job(decode_manifest((path / MANIFEST_NAME).read_bytes(), checkpoint_id))
    snapshots = CheckpointStorage(path.parent).snapshots(checkpoint_id)
    files = tuple(storage.write_task(number, snapshot) for snapshot in snapshots)
    storage.complete(replace(manifest, checkpoint_id=number, files=files))
    return number


def _of_the_job(manifest: Manifest) -> Manifest:
    """The manifest of a copy: a checkpoint like others, which is removed when it is no longer needed."""
    return replace(manifest, is_savepoint=False, job_goes_on=False)
