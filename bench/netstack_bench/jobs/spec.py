"""The settings of `jobs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from netstack.base.errors import ConfigError

from ..spec import Settings, refuse_below


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSpec(Settings):
    """The settings of the command; each field is a flag.

    `tasks` are the sizes of the jobs whose start is timed; of the rounds of a chain the median counts.
    """

    tasks: tuple[int, ...] = (250, 500, 1000)
    all_to_all: tuple[int, ...] = ()
    taskmanagers: int = 2
    kills: int = 5
    records: int = 300_000
    operators: int = 4
    rounds: int = 3

    def __post_init__(self) -> None:
        refuse_below(
            *((f"--{name}", getattr(self, name), 1) for name in ("taskmanagers", "records", "operators")),
            *((f"--{name}", getattr(self, name), 0) for name in ("kills", "rounds")),
            *(("--all-to-all", parallelism, 1) for parallelism in self.all_to_all),
        )
        for tasks in self.tasks:
            if tasks < 2 or tasks % 2:
                raise ConfigError(f"--tasks {tasks}: give even numbers, 2 or more")
