"""What a job is made of: operators and sources as plain classes, and what the runtime gives them.

Takes: classes, or their names (`package.module:attribute`). Gives: their methods with defaults for those left out.

Every method may be an ordinary one or `async def`. What is left out does nothing, except `read`, `process` (or
`process_batch`) and the `snapshot` of a source, which have to be there. Nothing is pickled: processes exchange names.

Rules for operators:
- One record at a time, never two methods at once. A checkpoint is taken between two records, so what a method leaves in
  the operator is in the next checkpoint, whole.
- `snapshot` gives plain data (see `checkpoint.snapshot`) that is not changed afterwards: a copy.
- An ordinary method that computes for long holds up everything else in its process; give it a thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

from ..errors import ConfigError
from ..function_names import Named
from ..runtime.names import load

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(slots=True)
class TaskContext:
    """Who an operator is; given to `open`.

    Attributes:
        task: the task's name.
        subtask: which of its subtasks, from 0.
        parallelism: how many there are.
        max_parallelism: number of key groups.
        attempt: which run of the job this is, from 1; it grows with every restart by one master.
        input: which of the task's inputs the record in hand came from.
    """

    task: str
    subtask: int
    parallelism: int
    max_parallelism: int
    attempt: int
    input: int = 0

    def __str__(self) -> str:
        return f"{self.task}-{self.subtask}"


class Output(Protocol):
    """Where an operator's records go: to every task that reads this one."""

    def collect(self, record: Any) -> None:
        """Writes a record; never waits.

        What finds no buffer is kept, as it is, and written before the next record is processed; so do not change it.

        Raises:
            RecordError: it does not fit the format.
            LocalProtocolError: no task reads this one.
        """

    async def emit(self, record: Any) -> None:
        """Writes a record, waiting for a buffer if it must. Raises as `collect`. For async operators."""

    async def emit_batch(self, array: npt.NDArray[Any]) -> None:
        """Writes an array of fixed-width records, as if each had been emitted alone; see `RecordWriter.emit_batch`."""


class Operator(Protocol):
    """Processes records. Beyond `process`, all of these may be left out."""

    def open(self, context: TaskContext) -> None:
        """The first call."""

    def restore(self, states: list[Any]) -> None:
        """After `open`, when there is state to go on with.

        Args:
            states: what `snapshot` gave in the checkpoint. Of an operator with keyed state one dict with the keys that
                are this subtask's now. Of others one for each old subtask whose work this one goes on with: exactly
                one, as long as the parallelism stays.
        """

    def process(self, record: Any, out: Output) -> None:
        """One record. An operator may have `process_batch(records, out)` instead: several, in order, of one input."""

    def finish(self, out: Output) -> None:
        """Every record was processed: emits what is left.

        What was emitted here must be gone from the operator's state: after a recovery this may be called again.
        """

    def snapshot(self) -> Any:
        """The state after the last record: plain data, a copy. With keyed state a dict by key."""

    def close(self) -> None:
        """The last call, however the task ends."""


class Source(Protocol):
    """Makes records, and can make them again from any position. Beyond `read` and `snapshot` all may be left out."""

    def open(self, context: TaskContext) -> None:
        """The first call."""

    def restore(self, states: list[Any]) -> None:
        """As of an operator: go on from these positions."""

    async def read(self) -> list[Any] | npt.NDArray[np.generic] | None:
        """The next records, at least one, in a list or in an array (written with `emit_batch`); None at the end.

        May wait. When a checkpoint is due it is cancelled while it waits, and called again afterwards: whatever it
        waited for must not be lost.
        """

    def snapshot(self, unsent: int) -> Any:
        """The position: plain data.

        Args:
            unsent: so many records at the end of what `read` gave last were not sent: they come again from here.
        """

    def close(self) -> None:
        """The last call, however the task ends."""


@final
class BoundOperator:
    """The methods of one operator or source, as the runtime calls them.

    Attributes:
        is_batched: records come in lists.
        is_async: `process`, `process_batch` or `read` have to be awaited.
        process: that method.
    """

    __slots__ = ("_operator", "is_async", "is_batched", "process")

    def __init__(self, operator: Any, *, is_source: bool, name: str) -> None:
        """Finds the methods.

        Raises:
            ConfigError: one that must be there is missing; the text names it.
        """
        self._operator = operator
        self.is_batched = not is_source and hasattr(operator, "process_batch")
        wanted = "read" if is_source else "process_batch" if self.is_batched else "process"
        for method in (wanted, "snapshot") if is_source else (wanted,):
            if not callable(getattr(operator, method, None)):
                raise ConfigError(
                    f"task {name!r}: {type(operator).__qualname__} has no method {method}; a task without inputs needs"
                    " read and snapshot, every other needs process or process_batch"
                )
        self.process: Callable[..., Any] = getattr(operator, wanted)
        self.is_async = inspect.iscoroutinefunction(self.process)

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls one of its methods, and awaits it if it wants that; None where it has none of this name."""
        found = getattr(self._operator, method, None)
        if found is None:
            return None
        result = found(*arguments)
        return await result if isinstance(result, Awaitable) else result


def make_operator(name: Named, arguments: Mapping[str, Any], *, is_source: bool, task: str) -> BoundOperator:
    """Makes the operator of a subtask.

    Raises:
        ConfigError: it is not there, does not take these arguments, or lacks a method.
    """
    factory = load(name)
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"task {task!r}: {name!r} cannot be called with {dict(arguments)!r}: {error}") from error
    except ValueError:
        pass  # a built-in without signature: it will say itself
    return BoundOperator(factory(**arguments), is_source=is_source, name=task)
