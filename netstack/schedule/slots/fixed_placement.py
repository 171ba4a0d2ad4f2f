"""Which TaskManager each subtask runs on, where somebody outside has decided that: a measurement of certain hosts.

Takes: names of TaskManagers, by vertex and subtask. Gives: execution slot sharing groups, each bound to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from ...errors import ConfigError
from ..graph.job_graph import JobGraph
from ..structures.arrays import index_array
from .slot_sharing import ExecutionSlotSharingGroups


@final
@dataclass(frozen=True, slots=True)
class FixedPlacement:
    """Where the subtasks of a static job run; all of its vertices share slots.

    Attributes:
        taskmanagers: of each vertex, by its name: the TaskManager of each subtask.
    """

    taskmanagers: Mapping[str, Sequence[str]]

    def groups(self, job: JobGraph) -> ExecutionSlotSharingGroups:
        """The n-th subtask of each vertex on a TaskManager is in the n-th slot that the job has there.

        Raises:
            ConfigError: a vertex is not placed, or as many times as it has no subtasks; or the job is no such job.
        """
        if job.is_dynamic or len(job.slot_sharing_groups) > 1:
            raise ConfigError(f"job {job.name!r} cannot be placed: it is dynamic, or has several slot sharing groups")
        numbers: dict[tuple[str, int], int] = {}
        of_vertex = []
        for vertex in job.vertices:
            names = self.taskmanagers.get(vertex.name, ())
            if len(names) != vertex.parallelism:
                raise ConfigError(f"vertex {vertex.name!r} has {vertex.parallelism} subtasks, and {len(names)} places")
            taken: dict[str, int] = {}
            groups = []
            for name in names:
                taken[name] = taken.get(name, 0) + 1
                groups.append(numbers.setdefault((name, taken[name]), len(numbers)))
            of_vertex.append(index_array(groups))
        return ExecutionSlotSharingGroups(
            tuple(of_vertex), index_array([0] * len(numbers)), tuple(name for name, _ in numbers)
        )
