"""The settings of `jobs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from netstack.errors import ConfigError


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSpec:
    """What is measured.

    Attributes:
        tasks: sizes of the jobs whose start is timed; each even.
        all_to_all: parallelisms of the all-to-all jobs.
        taskmanagers: processes that they start on.
        kills: of a TaskManager, to time the recovery of its region.
        records: through the chain.
        operators: of the chain, between source and sink.
        rounds: of the chain's four variants; the median counts. 0 leaves the chain out.

    Raises:
        ConfigError: a number is out of range.
    """

    tasks: tuple[int, ...] = (250, 500, 1000)
    all_to_all: tuple[int, ...] = ()
    taskmanagers: int = 2
    kills: int = 5
    records: int = 300_000
    operators: int = 4
    rounds: int = 3

    def __post_init__(self) -> None:
        for name in ("taskmanagers", "records", "operators"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: give at least 1")
        for name in ("kills", "rounds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"--{name} {getattr(self, name)}: give 0 or more")
        for parallelism in self.all_to_all:
            if parallelism < 1:
                raise ConfigError(f"--all-to-all {parallelism}: give at least 1")
        for tasks in self.tasks:
            if tasks < 2 or tasks % 2:
                raise ConfigError(f"--tasks {tasks}: give even numbers, 2 or more")
