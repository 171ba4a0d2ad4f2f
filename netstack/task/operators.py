"""What a job is made of: functions and classes of the user's, and how the runtime calls them.

Takes: functions and classes, by the kind of their operator. Gives: their methods, with defaults for those left out.

| kind | a function | a class |
|---|---|---|
| source | gives an iterable of records; its position is their number (see below) | `read`, `snapshot` |
| map, filter, flat_map | `(record)` to a record, to yes or no, to an iterable | `map`, `filter`, `flat_map` |
| process | `(record, out)` | `process`, or `process_batch` |
| connect | `(record, out)` | `process` (`context.input` is 1 or 2), or `process1` and `process2` |
| sink | `(record)` | `process`, or `process_batch`; what `finish` returns is the operator's result |

A class may have any of `open(context)`, `restore(states)`, `finish(out)`, `snapshot()`, `checkpoint_completed(id)`,
`prepare_commit()` with `commit(committables)`, and `close()` too. Parameters of the job are keyword arguments: of a
class when it is made, of a function at every call. A function with an argument `context` is given its
`OperatorContext`.

`process_batch` is given lists. With `takes_arrays = True` in its class, records of the formats bytes, int64 and float64
that come over the network are given as arrays of shape (records, bytes of a record) or (records,), of many buffers at
once where no checkpoint can come between; in a list only where they differ in length. An array is the operator's own.

Every method may be an ordinary one or `async def`, except those of map, filter and flat_map.

`read` gives the next records, at least one, in a list or an array; None at the end. An async one may wait, and is never
interrupted but by the end of the task: a checkpoint, a savepoint too, waits until it has returned, or for its own
timeout; so a source that waits for long returns now and then, or can be interrupted. With `can_be_interrupted = True`
in its class, `read` is cancelled when a checkpoint is due, and called again afterwards: whatever it waited for must not
be lost, nor what it has advanced by. `snapshot` of a source gets a number: so many records at the end of the last
`read` were not sent, and come again.

A function that is a source is called again after a restart. A range, a list, an array or another sequence goes on at
its position; any other iterable is gone through from its start, a millisecond at a time, until what was sent before was
skipped. For a long one make it a class with `restore`.

A class that is a source may have static or class methods `estimated_bytes` and `splits`, which are asked with the
job's parameters where it is submitted: from them follows the parallelism of a source in an adaptive job
(`task.source_sizes`).

After a restart `restore` is called behind `open`, in every subtask of an operator that had state of its own: with what
`snapshot` gave in each subtask whose work it goes on with. That is exactly one as long as the parallelism stays; with
fewer subtasks it may be several, with more of them none, and a source must then have nothing to read.

How effects outside happen exactly once: `prepare_commit` is called in front of each `snapshot` and gives plain data
that names what is to become visible (a file, a transaction), or None. When the checkpoint is complete, and stored,
`commit` gets a list of these. It must be idempotent: after a restart it is called again with what the checkpoint holds.
`checkpoint_completed(id)` is called behind it. A job's last records are no exception: when `finish` has returned the
task waits for a checkpoint that began behind it, and ends when that was committed. In a job without checkpoints
`prepare_commit` is called behind `finish`, and `commit` when every task that runs with this one has come to its end; if
one of these fails after that, the job fails instead of running again.

`finish` is called once: after a restart from a checkpoint that began behind it, it is not called again.

Rules for operators:
- One record at a time, never two methods at once. A checkpoint is taken between two records, so what a method leaves in
  the operator is in the next checkpoint, whole.
- `snapshot` gives plain data (see `checkpoint.snapshot`) that is not changed afterwards: a copy. State by key is better
  kept in `context.keyed_state`.
- Inside a chain records are handed on as they are: an operator that changes one changes it for all who are given it.
  Where they go over the network they become what their format makes of them: tuples come out of msgpack as lists.
- An ordinary method that computes for long holds up everything else in its process; give it a thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from ..errors import ConfigError, NetstackError
from ..schedule.descriptors.information import OperatorInformation
from ..schedule.graph.job_graph import OperatorKind
from .commits import Commits
from .context import OperatorContext
from .iterable_source import IterableSource
from .permanent import OF_THE_WORLD, operator_failed

if TYPE_CHECKING:
    import numpy.typing as npt


class Output(Protocol):
    """Where an operator's records go: to every operator that reads this one."""

    def collect(self, record: Any) -> None:
        """Emits a record; never waits.

        It may be changed afterwards as far as the network goes; the operators of the same chain are given it as it is.

        Raises:
            RecordError: it does not fit the format. Of str, int64 and float64 the task fails with that a little later,
                when what was emitted is written.
        """

    def collect_to(self, tag: str, record: Any) -> None:
        """Emits a record to a side output; nowhere if nobody reads it. Raises as `collect`."""

    def collect_batch(self, records: list[Any] | npt.NDArray[Any]) -> None:
        """Emits several records at once: a list, or an array, which stays one where operators and writers take it.

        Lent until the next record is processed. Raises as `collect`.
        """

    async def emit(self, record: Any) -> None:
        """Emits a record, waiting for a buffer if it must. Raises as `collect`. For async operators."""

    async def emit_batch(self, records: list[Any] | npt.NDArray[Any]) -> None:
        """Emits several records, waiting for buffers; they are the caller's again afterwards. For async operators."""


@final
class BoundOperator:
    """The methods of one operator, as the runtime calls them.

    Attributes:
        name: of the operator.
        kind: of it.
        context: who it is.
        commits: what it has prepared and not committed yet.
        is_finished: `finish` was called, in this attempt or before the checkpoint that it begins from.
        result: what it returned.
        is_batched: records come in lists or arrays.
        is_async: `process` has to be awaited.
        process: what is called with records: of a source `read`.
        inputs: of a connect with two methods, those.
        can_be_interrupted: whether an async `read` may be cancelled while it waits, and called again.
        takes_arrays: whether records of bytes and numbers come in arrays, where they are of one length.
        wants_output: whether `process` is called with an output, too: always, but of sinks only if they take it.
    """

    __slots__ = (
        "_object",
        "can_be_interrupted",
        "commits",
        "context",
        "inputs",
        "is_async",
        "is_batched",
        "is_finished",
        "kind",
        "name",
        "process",
        "result",
        "takes_arrays",
        "wants_output",
    )

    def __init__(self, information: OperatorInformation, context: OperatorContext, load: Callable[[str], Any]) -> None:
        """Makes the operator.

        Args:
            information: which.
            context: who it is.
            load: what a name stands for.

        Raises:
            ConfigError: it is not there, does not take these parameters, lacks a method, or has one that cannot be
                called as documented; the text says which.
            OperatorFailed: its constructor raised.
        """
        self.name = information.name
        self.kind = information.kind
        self.context = context
        if not information.function:
            raise ConfigError(f"operator {self.name!r} has no function, so it can be planned and not run; give it one")
        instance = load(information.function)
        self.is_batched = self.is_finished = False
        self.result: Any = None
        self.commits = Commits(self)
        self.inputs: tuple[Callable[..., Any], ...] = ()
        parameters = dict(information.parameters)
        if inspect.isclass(instance) and not (self.kind in _PLAIN and not parameters and _is_conversion(instance)):
            _check_call(self.name, instance, parameters)
            try:
                self._object = instance(**parameters)
            except NetstackError:
                raise
            except Exception as error:  # user code raises anything; the report has the operator's name
                is_refusal = isinstance(error, TypeError | ValueError)
                raise operator_failed(self.name, error, is_refusal=is_refusal) from error
            self._find_methods()
        else:
            self._object = None
            function = _with_parameters(self.name, instance, parameters, context)
            if self.kind is OperatorKind.SOURCE:
                self._object = IterableSource(function, context)
                function = self._object.read
            self.process: Callable[..., Any] = function
            if self.kind in (OperatorKind.PROCESS, OperatorKind.CONNECT):
                _check_takes(self.name, function, "(record, out)", 2)
            elif self.kind is not OperatorKind.SOURCE:
                _check_takes(self.name, function, "(record)", 1)
        self.is_async = inspect.iscoroutinefunction(self.process) or inspect.iscoroutinefunction(
            getattr(self.process, "func", None)
        )
        if self.is_async and self.kind in _PLAIN:
            raise ConfigError(f"operator {self.name!r}: a {self.kind.value} cannot be async; make it a process")
        self.wants_output = self.kind is not OperatorKind.SINK or _takes(self.process, 2)
        self.can_be_interrupted = bool(getattr(self._object, "can_be_interrupted", False))
        self.takes_arrays = self.is_batched and bool(getattr(self._object, "takes_arrays", False))

    def _find_methods(self) -> None:
        names = _METHODS[self.kind]
        methods = {name: method for name in names if callable(method := getattr(self._object, name, None))}
        if self.kind is OperatorKind.CONNECT and {"process1", "process2"} <= methods.keys():
            self.inputs = (methods["process1"], methods["process2"])
            self.process = self.inputs[0]
        elif methods.keys() - {"process1", "process2"}:
            chosen = next(name for name in names if name in methods)
            self.process = methods[chosen]
            self.is_batched = chosen == "process_batch"
        else:
            raise ConfigError(
                f"operator {self.name!r}: {type(self._object).__qualname__} has no method {' or '.join(names)}, and a"
                f" {self.kind.value} needs it"
            )
        if self.kind is OperatorKind.SOURCE and not callable(getattr(self._object, "snapshot", None)):
            raise ConfigError(
                f"operator {self.name!r}: {type(self._object).__qualname__} has no method snapshot; a source that is a"
                " class needs read and snapshot"
            )
        if self.has("prepare_commit") and not self.has("commit"):
            raise ConfigError(
                f"operator {self.name!r}: {type(self._object).__qualname__} has prepare_commit and no method commit;"
                " give it commit(committables)"
            )
        ways = _CALLS[self.kind]
        for method in self.inputs or (self.process,):
            if not any(_takes(method, len(way)) for way in ways):
                wanted = " or ".join(f"({', '.join(way)})" for way in ways)
                raise ConfigError(
                    f"operator {self.name!r}: {getattr(method, '__qualname__', method)} cannot be called as {wanted}"
                )

    @property
    def fixed_parallelism(self) -> bool:
        """Whether it is a source whose position means nothing to another number of subtasks."""
        return isinstance(self._object, IterableSource)

    def functions(self) -> list[Any]:
        """The user's functions: the operator itself, or all methods of its class."""
        if self._object is None:
            return [self.process]
        if isinstance(self._object, IterableSource):
            return [self._object.function]
        return [each for kind in type(self._object).__mro__ for each in vars(kind).values() if callable(each)]

    @property
    def is_skipping(self) -> bool:
        """Whether it is a source that still skips what it gave before a restart."""
        return isinstance(self._object, IterableSource) and self._object.is_skipping

    def has(self, method: str) -> bool:
        """Whether it has a method of this name."""
        return callable(getattr(self._object, method, None))

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls one of its methods, and awaits it if it wants that; None where it has none of this name."""
        outcome = getattr(self._object, method, None)
        if outcome is None:
            return None
        try:
            result = outcome(*arguments)
            return await result if isinstance(result, Awaitable) else result
        except NetstackError:
            raise
        except Exception as error:  # user code, likewise
            trace = error.__traceback__  # without frames behind this one Python has refused the call itself
            is_refusal = isinstance(error, TypeError) and trace is not None and trace.tb_next is None
            if method == "restore":
                is_refusal = not isinstance(error, OF_THE_WORLD)
            raise operator_failed(self.name, error, is_refusal=is_refusal) from error

    @property
    def awaits_completion(self) -> bool:
        """Whether it wants to hear of the checkpoint behind its end."""
        return self.has("checkpoint_completed") or self.has("prepare_commit")

    async def finish(self, out: Output) -> None:
        """Every record was processed: `finish`, with the output if it takes that; what it returns is the result."""
        result = getattr(self._object, "finish", None)
        if result is not None:
            self.result = await self.call("finish", *((out,) if _takes(result, 1) else ()))
        self.is_finished = True


_PLAIN: Final = frozenset({OperatorKind.MAP, OperatorKind.FILTER, OperatorKind.FLAT_MAP})
_METHODS: Final[Mapping[OperatorKind, tuple[str, ...]]] = {
    OperatorKind.SOURCE: ("read",),
    OperatorKind.MAP: ("map", "__call__"),
    OperatorKind.FILTER: ("filter", "__call__"),
    OperatorKind.FLAT_MAP: ("flat_map", "__call__"),
    OperatorKind.PROCESS: ("process_batch", "process"),
    OperatorKind.CONNECT: ("process_batch", "process", "process1", "process2"),
    OperatorKind.SINK: ("process_batch", "process", "__call__"),
}


_CALLS: Final[Mapping[OperatorKind, tuple[tuple[str, ...], ...]]] = {
    OperatorKind.SOURCE: ((),),
    OperatorKind.MAP: (("record",),),
    OperatorKind.FILTER: (("record",),),
    OperatorKind.FLAT_MAP: (("record",),),
    OperatorKind.PROCESS: (("record", "out"),),
    OperatorKind.CONNECT: (("record", "out"),),
    OperatorKind.SINK: (("record",), ("record", "out")),
}
"""How the methods of `_METHODS` are called."""


def _is_conversion(found: type) -> bool:
    """Whether a class is called with each record, as `int` and `str` are: it has none of an operator's methods."""
    names = {"open", "restore", "finish", *(name for methods in _METHODS.values() for name in methods)}
    return _takes(found, 1) and not any(name in vars(each) for name in names for each in found.__mro__)


def _with_parameters(
    name: str, function: Callable[..., Any], parameters: dict[str, Any], context: OperatorContext
) -> Callable[..., Any]:
    if "context" not in parameters and _has_parameter(function, "context"):
        parameters["context"] = context
    if not parameters:
        return function
    try:
        inspect.signature(function).bind_partial(**parameters)
    except TypeError as error:
        raise _bad_call(name, function, parameters, error) from error
    except ValueError:
        pass  # a built-in without signature: it will say itself
    return partial(function, **parameters)


def _check_call(name: str, function: Callable[..., Any], parameters: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(**parameters)
    except TypeError as error:
        raise _bad_call(name, function, parameters, error) from error
    except ValueError:
        pass  # a built-in without signature: it will say itself


def _bad_call(name: str, function: Any, parameters: Mapping[str, Any], error: TypeError) -> ConfigError:
    known = {key: value for key, value in parameters.items() if key != "context"}
    return ConfigError(
        f"operator {name!r}: {getattr(function, '__qualname__', function)} cannot be called with the parameters"
        f" {known!r:.200}: {error}"
    )


def _has_parameter(function: Callable[..., Any], parameter: str) -> bool:
    try:
        return parameter in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with so many positional arguments; of a built-in that tells nothing: one."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        return count == 1
    return True


def _check_takes(name: str, function: Callable[..., Any], wanted: str, count: int) -> None:
    if not _takes(function, count):
        raise ConfigError(
            f"operator {name!r}: {getattr(function, '__qualname__', function)} cannot be called as {wanted}"
        )
