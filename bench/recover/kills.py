"""When which process is killed: seeded, and aimed at the moments that are hard.

Takes: a seed, the number of a run, the folder of its checkpoints. Gives: the kills planned for it, and how far the
newest checkpoint on the disk is.

Rules: moments go round, so that a few runs have all of them; which process and how long after the moment is chance, and
the same chance for the same seed. What the machine does in between is not repeatable.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from netstack.checkpoint.folders import MANIFEST_NAME

Moment = Literal["starting", "running", "anytime", "checkpoint", "files"]

MOMENTS: Final[dict[Moment, float]] = {
    "starting": 0.6,  # from the start of the processes on: most are killed before the job runs
    "running": 0.03,  # since all tasks run: before a first checkpoint
    "anytime": 0.6,
    "checkpoint": 0.01,  # since the folder of a checkpoint was there
    "files": 0.002,  # since the first of its files was there, and no manifest
}
"""After what a process is killed, and within how many seconds of it."""

_MOST_PASSED: Final = 5


@dataclass(frozen=True, slots=True)
class Kill:
    """One planned SIGKILL.

    Attributes:
        moment: what is waited for first.
        delay_s: how long after that.
        victim: 0 to 1, picks one of the processes.
        passed: `checkpoint`, `files`: so many checkpoints are let pass first, or every restart would be from the start.
    """

    moment: Moment
    delay_s: float
    victim: float
    passed: int = 0

    def of(self, processes: Sequence[str]) -> str:
        """The process it hits."""
        return processes[int(self.victim * len(processes))]


def plan(seed: int, run: int, kills: int) -> list[Kill]:
    """The kills of one run, in order."""
    moments = [*MOMENTS]
    random.Random(seed).shuffle(moments)
    chance = random.Random(f"{seed} {run}")
    planned = []
    for number in range(run * kills, (run + 1) * kills):
        moment = moments[number % len(moments)]
        delay_s, victim = chance.uniform(0, MOMENTS[moment]), chance.random()
        planned.append(Kill(moment, delay_s, victim, chance.randrange(_MOST_PASSED)))
    return planned


@dataclass(frozen=True, slots=True)
class OnDisk:
    """The newest checkpoint of which there is a file.

    Attributes:
        number: of the checkpoint; 0 without any.
        files: state files.
        is_complete: whether its manifest is there.
    """

    number: int = 0
    files: int = 0
    is_complete: bool = False

    @property
    def is_half_written(self) -> bool:
        """Whether a kill right now leaves a checkpoint that must not be used."""
        return self.files > 0 and not self.is_complete


def on_disk(folder: Path) -> OnDisk:
    """Looks at the newest checkpoint that has files; quick, because somebody is aiming."""
    try:
        names = sorted((name for name in os.listdir(folder) if name.startswith("chk-")), reverse=True)
        for name in names:
            files = os.listdir(folder / name)
            if files:
                return OnDisk(
                    int(name.rpartition("-")[2]), sum(file.endswith(".state") for file in files), MANIFEST_NAME in files
                )
    except FileNotFoundError:
        pass  # not made yet, or removed while we looked
    return OnDisk()
