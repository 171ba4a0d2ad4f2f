"""The job of `recover`: sources that can start again at any record, sinks that count by key and are not too fast.

Takes: a `RecoverSpec` as plain values. Gives: the job, and its operators by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from netstack.schedule.graph.restart_settings import RestartSettings
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings
from netstack.task.context import OperatorContext
from netstack.task.operators import Output

from ..pacing import clock_ns
from ..throttle import Throttle
from .counts import KeyCounts, count
from .records import split_records
from .spec import RecoverSpec

SINK: Final = "sink"
SOURCE: Final = "source"

RESTART_DELAY_S: Final = 0.05
"""Of the job, after every failure; it never gives up."""

_READ_RECORDS: Final = 64
_BUFFER_TIMEOUT_S: Final = 0.01


class Hooks:
    """What a worker process wants to be told; operators are made by name, so there is no other way to tell it.

    Attributes:
        on_first_record: called with the time in ns at which a sink was opened, when it has counted its first record.
    """

    on_first_record: Callable[[int], None] | None = None


class Generator:
    """A source: makes the records of one split, the same ones whenever it starts again."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = RecoverSpec.from_dict(spec)
        self._split = self._next = self._end = 0

    def open(self, context: OperatorContext) -> None:
        """A subtask, a split."""
        self._split = context.subtask
        self._end = split_records(self._split, self._spec.sources, self._spec.records)

    def restore(self, states: list[Any]) -> None:
        """Goes on where the checkpoint was."""
        (self._next,) = states

    def read(self) -> list[bytes] | None:
        """The next few records."""
        if self._next == self._end:
            return None
        first, self._next = self._next, min(self._next + _READ_RECORDS, self._end)
        return [*self._spec.stream.stream(self._split, first, self._next)]

    def snapshot(self, unsent: int) -> int:
        """The number of the first record that is not in the checkpoint."""
        return self._next - unsent


class Sink:
    """Counts by key, after a look at every byte of the record; all sinks together take `rate_per_s`."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = RecoverSpec.from_dict(spec)
        self._stream = self._spec.stream
        self._counts: KeyCounts = {}
        self._is_new = True
        self._opened_ns = 0

    def open(self, context: OperatorContext) -> None:
        """Its counts, and its share of the rate."""
        self._opened_ns = clock_ns()
        self._counts = context.keyed_state("counts")
        self._throttle = Throttle(self._spec.rate_per_s / context.parallelism)

    async def process_batch(self, records: Sequence[bytes], out: Output) -> None:
        """Counts some records."""
        counts, splits, check = self._counts, self._spec.sources, self._stream.check
        for record in records:
            count(counts, splits, *check(record))
        if self._is_new and Hooks.on_first_record is not None:
            Hooks.on_first_record(self._opened_ns)
        self._is_new = False
        await self._throttle.turn(len(records))

    def finish(self, out: Output) -> KeyCounts:
        """All counts are the result."""
        return dict(self._counts)


def job(spec: RecoverSpec, name: str, *, sinks: int, folder: Path) -> StreamEnvironment:
    """The job of a run, or of what is left of it.

    Args:
        spec: the settings.
        name: of the job.
        sinks: subtasks that count.
        folder: of its checkpoints.
    """
    environment = StreamEnvironment(
        name,
        max_parallelism=128,
        settings=StreamSettings(
            checkpoints=spec.checkpoints(),
            checkpoint_folder=str(folder),
            restart=RestartSettings(kind="fixed_delay", delay_s=RESTART_DELAY_S),
            network=spec.network(),
        ),
    )
    records = environment.source(f"{__name__}:Generator", name=SOURCE, parameters={"spec": spec.as_dict()})
    records.set_parallelism(spec.sources).slot_sharing_group(SOURCE).set_buffer_timeout(_BUFFER_TIMEOUT_S)
    keyed = records.key_by("bench.recover.records:key_of").with_format("bytes")
    keyed.sink(f"{__name__}:Sink", name=SINK, spec=spec.as_dict()).set_parallelism(sinks).slot_sharing_group(SINK)
    return environment
