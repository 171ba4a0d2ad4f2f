"""What `netstack-bench jobs` measures.

Takes: values. Gives: frozen settings.
"""

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
        taskmanagers: processes they are started on.
        kills: of a TaskManager, to time how long its region takes to run again.
        records: that go through the chain.
        operators: of the chain, between its source and its sink.
        rounds: of the chain's four ways, by turns; the median counts.

    Raises:
        ConfigError: a number that cannot be.
    """

    tasks: tuple[int, ...] = (250, 500, 1000)
    taskmanagers: int = 2
    kills: int = 5
    records: int = 300_000
    operators: int = 4
    rounds: int = 3

    def __post_init__(self) -> None:
        """Refuses what cannot be."""
        for name in ("taskmanagers", "records", "operators", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: give at least 1")
        if self.kills < 0:
            raise ConfigError(f"--kills {self.kills}: give 0 or more")
        for tasks in self.tasks:
            if tasks < 2 or tasks % 2:
                raise ConfigError(f"--tasks {tasks}: give even numbers, 2 or more")
