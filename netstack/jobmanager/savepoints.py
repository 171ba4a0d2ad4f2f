"""A savepoint of one job as the beginning of another.

Takes: the folder of a savepoint or checkpoint, the job, and the folder of its checkpoints. Gives: its number there.

Rules: it is read and verified, and compared with the job, before it is copied, and copied before the job is accepted;
the job never looks at the original again. The calls block. Nothing of the job is imported: what only its functions tell
(how a keyed state begins, the type of a key that they make) is compared where they run, before the first record.
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

from ..checkpoint.folders import MANIFEST_NAME
from ..checkpoint.snapshot import TaskSnapshot, decode_manifest, encode_manifest
from ..checkpoint.storage import CheckpointStorage
from ..errors import CheckpointError, CheckpointStorageError, StateMismatch
from ..schedule.descriptors.information import EdgeId, JobInformation, edge_id
from ..schedule.graph.job_graph import JobEdge, JobGraph
from ..schedule.graph.stream_graph import Partitioner, StreamGraph, StreamNode

_FOLDER: Final = re.compile(r"chk-(\d{8,18})")
_TYPE_OF_FORMAT: Final = {"int64": "int", "str": "str", "bytes": "bytes", "float64": "float"}
_KEYED: Final = frozenset({Partitioner.HASH, Partitioner.FORWARD_CONSECUTIVE_HASH})
_SHOWN: Final = 8
"""Of operators that may have been meant."""


@final
@dataclass(slots=True)
class OperatorState:
    """What a savepoint holds of one operator.

    Attributes:
        has_own: whether a subtask has state of its own.
        has_prepared: whether a subtask has prepared what is to be committed.
        keyed: its keyed states that are not empty, and the types of their keys.
    """

    has_own: bool = False
    has_prepared: bool = False
    keyed: dict[str, set[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        states = [f"keyed state {name!r}" for name in sorted(self.keyed)]
        states += ["state of its own"] if self.has_own else []
        return ", ".join([*states, *(["prepared commits"] if self.has_prepared else [])])


@final
@dataclass(slots=True)
class SavepointContents:
    """What a savepoint holds, without the values.

    Attributes:
        operators: that have state, by their uid, else their name.
        parallelism: how many subtasks each operator had, with state or without.
        in_flight: the edges that have records in flight.
    """

    operators: dict[str, OperatorState] = field(default_factory=dict)
    parallelism: Counter[str] = field(default_factory=Counter)
    in_flight: set[EdgeId] = field(default_factory=set)

    @classmethod
    def of(cls, snapshots: Iterable[TaskSnapshot]) -> SavepointContents:
        """What snapshots hold; one of them is looked at at a time.

        Raises:
            CheckpointStorageError: they are not of chains of operators, or cannot be read.
        """
        contents = cls()
        for snapshot in snapshots:
            if not isinstance(snapshot.operator, dict):
                raise CheckpointStorageError(
                    f"its state of {snapshot.task}-{snapshot.subtask} is not of a chain of operators"
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
                contents.in_flight.update(_edge_of(partition) for (partition, _), data in channels.items() if data)
        return contents


def check_savepoint(
    savepoint: str, contents: SavepointContents, graph: StreamGraph, job: JobGraph, *, allow_missing: bool
) -> tuple[str, ...]:
    """Refuses what a job could not go on with.

    Args:
        savepoint: its folder, for messages.
        contents: of it.
        graph: the job.
        job: the same, as vertices.
        allow_missing: state of operators that the job does not have is left behind, and records in flight on edges that
            it does not have.

    Returns:
        What is left behind: operators, and edges as `source -> target`.

    Raises:
        StateMismatch: the text names what is in the savepoint, and what is in the job.
    """
    nodes = {node.state_id: node for node in graph.nodes}
    missing = sorted(contents.operators.keys() - nodes.keys())
    if missing and not allow_missing:
        held = "; ".join(f"{contents.operators[operator]} of operator {operator!r}" for operator in missing[:_SHOWN])
        raise StateMismatch(
            f"{savepoint} holds {held}, which job {graph.name!r} does not have:"
            f" if it was renamed, give {_candidates(contents, nodes)} .uid({missing[0]!r});"
            " --allow-non-restored-state leaves the state behind"
        )
    for operator, state in sorted(contents.operators.items()):
        if operator in nodes and state.keyed:
            _check_keys(savepoint, state, nodes[operator], graph)
    return *missing, *_check_in_flight(savepoint, contents, job, allow_missing=allow_missing)


def _candidates(contents: SavepointContents, nodes: dict[str, StreamNode]) -> str:
    """The operators that have no state in a savepoint yet: one that was renamed is among them."""
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
    missing = sorted(str(edge) for edge in contents.in_flight - edges.keys())
    if missing and not allow_missing:
        raise StateMismatch(
            f"{savepoint} holds records in flight on {missing[0]}, and in job {job.name!r} this edge is inside of a"
            " chain, or gone: begin from a savepoint, which has nothing in flight; --allow-non-restored-state drops"
            " these records"
        )
    for edge in sorted(contents.in_flight & edges.keys(), key=str):
        before, now = contents.parallelism[edge.target], job.vertices[edges[edge].consumer].parallelism
        if edges[edge].partitioner == "broadcast" and before != now:
            raise StateMismatch(
                f"{savepoint} holds records in flight on {edge}, which every one of {before} subtasks is to get, and in"
                f" job {job.name!r} there are {now}: change the parallelism from a savepoint, which has nothing in"
                " flight"
            )
    return tuple(missing)


def _check_keys(savepoint: str, state: OperatorState, node: StreamNode, graph: StreamGraph) -> None:
    edges = graph.inputs_of(graph.named(node.name))
    if not edges or any(edge.partitioner not in _KEYED for edge in edges):
        raise StateMismatch(
            f"{savepoint} holds {state} of operator {node.state_id!r}, and in job {graph.name!r} not all inputs of"
            f" {node.name!r} are keyed: put key_by in front of it, or leave the state behind: another uid, and"
            " --allow-non-restored-state"
        )
    allowed = {None if edge.function else _TYPE_OF_FORMAT.get(edge.format) for edge in edges}
    if None in allowed:
        return
    for name, types in sorted(state.keyed.items()):
        if not types <= allowed:
            raise StateMismatch(
                f"{savepoint} holds keyed state {name!r} of operator {node.state_id!r} with keys of type"
                f" {' and '.join(sorted(types))}, and in job {graph.name!r} they are of type"
                f" {' and '.join(sorted(filter(None, allowed)))}, by the format of {graph.describe(edges[0])}: keep the"
                " format, or leave the state behind: another uid, and --allow-non-restored-state"
            )


def _edge_of(partition: str) -> EdgeId:
    try:
        return EdgeId.of_partition(partition)[0]
    except (ValueError, TypeError) as error:
        raise CheckpointStorageError(f"it holds records in flight in {partition[:80]!r}, which is no edge") from error


def adopt_savepoint(
    savepoint: str, folder: str, graph: StreamGraph, job: JobGraph, *, allow_missing: bool = False
) -> tuple[int, tuple[str, ...]]:
    """Copies a savepoint among a job's checkpoints.

    Args:
        savepoint: its folder, as `netstack savepoint` tells it; or a folder of checkpoints, of which the newest counts.
        folder: of the new job.
        graph: the new job.
        job: the same, as vertices.
        allow_missing: see `check_savepoint`.

    Returns:
        The number under which it is there, and what of it is left behind.

    Raises:
        CheckpointStorageError: it is no complete checkpoint, damaged, or cannot be copied; the text says which and why.
        StateMismatch: the job could not go on with it.
    """
    path = Path(savepoint)
    match = _FOLDER.fullmatch(path.name)
    if match is None:
        newest = CheckpointStorage(path).newest() if path.is_dir() else None
        if newest is None:
            raise CheckpointStorageError(
                f"{savepoint} holds no complete savepoint; give the folder that `netstack savepoint` told"
            )
        path, checkpoint_id = Path(newest.path), newest.checkpoint_id
    else:
        checkpoint_id = int(match[1])
    try:
        contents = SavepointContents.of(CheckpointStorage(path.parent).snapshots(checkpoint_id))
    except CheckpointError as error:
        raise CheckpointStorageError(f"{savepoint} is no complete savepoint: {error}") from error
    left = check_savepoint(str(path), contents, graph, job, allow_missing=allow_missing)
    target = Path(CheckpointStorage(folder).path(checkpoint_id))
    if target.exists() and target.samefile(path):
        return checkpoint_id, left
    part = target.with_name(f".{target.name}.part")
    try:
        os.makedirs(target.parent, exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(path, part)
        manifest = decode_manifest((part / MANIFEST_NAME).read_bytes(), checkpoint_id)
        # Of another folder's epoch, it would count as newer than all that is to follow here.
        (part / MANIFEST_NAME).write_bytes(encode_manifest(replace(manifest, epoch=0)))
        os.replace(part, target)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise CheckpointStorageError(f"{savepoint} cannot be copied to {target}: {error}") from error
    return checkpoint_id, left
