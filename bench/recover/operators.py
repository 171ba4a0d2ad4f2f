"""The job of `recover`: sources that can start again at any record, sinks that count by key and are not too fast.

Takes: a `RecoverSpec` as plain values. Gives: the job, and its operators by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from netstack.job.operators import Output, TaskContext
from netstack.job.spec import InputSpec, Job, TaskSpec

from ..throttle import Throttle
from .counts import KeyCounts, count
from .records import split_records
from .spec import RecoverSpec

SINK: Final = "sink"
SOURCE: Final = "source"

_READ_RECORDS: Final = 64
_BUFFER_TIMEOUT_S: Final = 0.01


class Hooks:
    """What a worker process wants to be told; operators are made by name, so there is no other way to tell it.

    Attributes:
        on_first_record: called when a sink has counted its first record after a start.
    """

    on_first_record: Callable[[], None] | None = None


class Generator:
    """A source: makes the records of one split, the same ones whenever it starts again."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = RecoverSpec.from_dict(spec)
        self._split = self._next = self._end = 0

    def open(self, context: TaskContext) -> None:
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

    def open(self, context: TaskContext) -> None:
        """Its share of the rate."""
        self._throttle = Throttle(self._spec.rate_per_s / context.parallelism)

    def restore(self, states: list[Any]) -> None:
        """Goes on from the counts of the checkpoint."""
        for counts in states:
            self._counts.update({key: list(state) for key, state in counts.items()})

    async def process_batch(self, records: Sequence[bytes], out: Output) -> None:
        """Counts some records."""
        counts, splits, check = self._counts, self._spec.sources, self._stream.check
        for record in records:
            count(counts, splits, *check(record))
        if self._is_new and Hooks.on_first_record is not None:
            Hooks.on_first_record()
        self._is_new = False
        await self._throttle.turn(len(records))

    def snapshot(self) -> KeyCounts:
        """A copy of all counts."""
        return {key: list(state) for key, state in self._counts.items()}


def job(spec: RecoverSpec, *, sinks: int, folder: Path) -> Job:
    """The job of a run, or of what is left of it.

    Args:
        spec: the settings.
        sinks: subtasks that count.
        folder: of its checkpoints.
    """
    arguments = {"spec": spec.as_dict()}
    return Job(
        name="recover",
        tasks=(
            TaskSpec(
                SOURCE,
                f"{__name__}:Generator",
                parallelism=spec.sources,
                arguments=arguments,
                workers=tuple(range(spec.sources)),
            ),
            TaskSpec(
                SINK,
                f"{__name__}:Sink",
                parallelism=sinks,
                arguments=arguments,
                inputs=(
                    InputSpec(
                        SOURCE,
                        key="bench.recover.records:key_of",
                        format="bytes",
                        buffer_timeout_s=_BUFFER_TIMEOUT_S,
                    ),
                ),
                keyed_state=True,
                workers=tuple(range(spec.sources, spec.sources + spec.sinks)),
            ),
        ),
        checkpoints=spec.checkpoints(),
        folder=str(folder),
        network=spec.network(),
    )
