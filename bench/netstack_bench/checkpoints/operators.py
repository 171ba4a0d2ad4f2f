"""The job of `checkpoints`: sources that never wait, a keyed exchange, throttled sinks with state."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from netstack.cluster.task.context import OperatorContext
from netstack.cluster.task.operators import Output
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings

from ..generator import filler
from ..pacing import Throttle, clock_ns
from .spec import SINKS, CheckpointsSpec, Mode

SOURCE: Final = "source"
SINK: Final = "sink"

_KEY_BYTES: Final = 4
_READ_RECORDS: Final = 128
_READS: Final = 64  # then a source repeats them: making records is not measured


TAKEN: Final = "taken"
"""First word of the lines that sinks print: `taken CLOCK_NS RECORDS`, the total of the process."""

_PRINT_NS: Final = 20_000_000


class _Taken:
    records: int = 0
    due_ns: int = 0

    @classmethod
    def add(cls, records: int) -> None:
        cls.records += records
        now_ns = clock_ns()
        if now_ns >= cls.due_ns:
            cls.due_ns = now_ns + _PRINT_NS
            sys.stdout.write(f"{TAKEN} {now_ns} {cls.records}\n")


class Flood:
    """An unlimited source that repeats a few thousand records."""

    def __init__(self, record_bytes: int, keys: int) -> None:
        self._rest = filler(record_bytes)[_KEY_BYTES:] + bytes(2 * _KEY_BYTES)
        self._keys = keys
        self._read = 0

    def open(self, context: OperatorContext) -> None:
        """Makes the records."""
        chance = random.Random(context.subtask)
        self._parts = itertools.cycle(
            [
                [chance.randrange(self._keys).to_bytes(_KEY_BYTES, "little") + self._rest for _ in range(_READ_RECORDS)]
                for _ in range(_READS)
            ]
        )

    def read(self) -> list[bytes]:
        """Returns the next records; there is no end."""
        self._read += _READ_RECORDS
        return next(self._parts)

    def snapshot(self, unsent: int) -> int:
        """Returns the number of sent records."""
        return self._read - unsent


class Tally:
    """A sink that counts by key."""

    def __init__(self, rate_per_s: float | None) -> None:
        self._throttle = None if rate_per_s is None else Throttle(rate_per_s)

    def open(self, context: OperatorContext) -> None:
        """Opens the keyed state."""
        self._counts = context.keyed_state("counts", 0)

    async def process_batch(self, records: Sequence[bytes], out: Output) -> None:
        """Counts records."""
        counts = self._counts
        for record in records:
            counts[key_of(record)] += 1
        _Taken.add(len(records))
        if self._throttle is not None:
            await self._throttle.turn(len(records))


def key_of(record: bytes) -> int:
    """The key of a record."""
    return int.from_bytes(record[:_KEY_BYTES], "little")


def job(spec: CheckpointsSpec, mode: Mode | None, *, rate_per_s: float | None, folder: Path) -> StreamEnvironment:
    """The job for one mode (None takes no checkpoints); `rate_per_s` limits all sinks together.

    Checkpoints are triggered explicitly, because some stretches have none.
    """
    settings = CheckpointSettings(
        unaligned=mode in ("unaligned", "timed"), aligned_timeout_s=spec.aligned_timeout_s if mode == "timed" else 0.0
    )
    environment = StreamEnvironment(
        f"checkpoints {mode}",
        max_parallelism=128,
        settings=StreamSettings(
            checkpoints=None if mode is None else settings,
            checkpoint_folder=None if mode is None else str(folder),
            network=spec.network(),
        ),
    )
    source: dict[str, Any] = {"record_bytes": spec.record_bytes, "keys": spec.keys}
    flood = environment.source(f"{__name__}:Flood", name=SOURCE, parameters=source)
    flood.set_parallelism(spec.channels)
    keyed = flood.key_by(f"{__name__}:key_of").with_format("bytes")
    tally = keyed.sink(f"{__name__}:Tally", name=SINK, rate_per_s=None if rate_per_s is None else rate_per_s / SINKS)
    tally.set_parallelism(SINKS)
    return environment
