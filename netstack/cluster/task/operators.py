"""User-defined operators: functions and classes of a job, and how the runtime calls them.

Takes: functions and classes, by the kind of their operator. Gives: their methods, with defaults for missing ones.

| kind | a function | a class |
|---|---|---|
| source | returns an iterable of records; its position is a count of records (see below) | `read`, `snapshot` |
| map, filter, flat_map | `(record)` returns a record, a bool, an iterable | `map`, `filter`, `flat_map` |
| process | `(record, out)` | `process`, or `process_batch` |
| connect | `(record, out)` | `process` (`context.input` is 1 or 2), or `process1` and `process2` |
| sink | `(record)` | `process`, or `process_batch`; the return value of `finish` is the operator's result |

A class may also have `open(context)`, `restore(states)`, `finish(out)`, `snapshot()`, `checkpoint_completed(id)`,
`prepare_commit()` with `commit(committables)`, and `close()`. Parameters of the job are keyword arguments of the
constructor, or of every call of a function. A function with a parameter `context` gets its `OperatorContext`. Every
method may be a normal one or `async def`, except those of map, filter and flat_map.

`process_batch` gets lists. If its class has `takes_arrays = True`, records of the formats bytes, int64 and float64 that
come over the network are passed as arrays of shape (records, bytes per record) or (records,); bytes of different
lengths come in lists. In a job without checkpoints an array may span many buffers. The operator owns the array.

`read` returns the next records as a list or an array, or None at the end. An empty list says that there are none now;
`read` is then called again after 10 ms. An async `read` may wait. Only the end of the task interrupts it: a checkpoint
or savepoint waits until it returns, or times out. So a source that waits for long should return an empty list from time
to time, or set `can_be_interrupted = True` in its class. Then `read` is cancelled when a checkpoint is due, and called
again afterwards; it must lose neither records nor its position. `snapshot` of a source gets the number of records at
the end of the last `read` that were not sent; they must be read again.

A source function is called again after a restart. A range, a list, an array or another sequence continues at its
position. Any other iterable is read from its start, a millisecond at a time, and the records sent before are skipped.
Write a long source as a class with `restore`.

A source class may have static or class methods `estimated_bytes` and `splits`, which determine its parallelism in an
adaptive job (`cluster.task.source_sizes`).

After a restart `restore` is called after `open`, in every subtask of an operator that had own state, with the results
of `snapshot` of the subtasks that it replaces. That is one result if the parallelism is unchanged, possibly several if
there are fewer subtasks, and none in some subtasks if there are more; such a source subtask has nothing to read.

Exactly-once side effects: `prepare_commit` is called before each `snapshot` and returns plain data that identifies what
is to become visible (a file, a transaction), or None. Once the checkpoint is complete and stored, `commit` gets a list
of these. It must be idempotent, since a restart calls it again with the contents of the checkpoint.
`checkpoint_completed(id)` is called after it. After `finish` the task waits for one more checkpoint and ends when that
one is committed, so the last records are covered too. In a job without checkpoints `prepare_commit` is called after
`finish`, and `commit` when every task of the region has finished; if one of these tasks fails after that, the job fails
without restart.

`finish` is called once. After a restart from a checkpoint that began after `finish`, it is not called again.

Rules for operators:
- Methods run one at a time, record by record. A checkpoint is taken between two records, so it contains everything that
  a method left in the operator.
- `snapshot` returns plain data (see `schedule.checkpoint.snapshot`), which are copied before the next record. State by
  key belongs in `context.keyed_state`.
- Records are passed by reference within a chain: if an operator changes a record, every operator that gets it sees the
  change. Over the network a record becomes what its format decodes: msgpack turns tuples into lists.
- A normal method that computes for long blocks everything else in its process; use a thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import trio

from ...base.errors import ConfigError, NetstackError, OperatorFailed, OperatorUnusable, StateMismatch
from ...schedule.descriptors.information import OperatorInformation
from ...schedule.graph.job_graph import OperatorKind
from .context import OperatorContext
from .iterable_source import IterableSource
from .keyed_state import plain_copy

if TYPE_CHECKING:
    import numpy.typing as npt

AT_THE_END: Final = 0
"""Stands for a checkpoint id in a job without checkpoints, which commits when none of its tasks can run again."""


@final
class Commits:
    """The prepared commits of one operator, until their checkpoint is complete; none if it has no `prepare_commit`.

    Checkpoints store them, and a restart commits them again, so `commit` must be idempotent. The commits of an aborted
    checkpoint are committed with the next one.
    """

    __slots__ = ("_bound", "_prepared")

    def __init__(self, bound: BoundOperator) -> None:
        self._bound = bound
        self._prepared: list[tuple[int, Any]] = []

    async def prepare(self, checkpoint_id: int) -> None:
        """Calls `prepare_commit` for a checkpoint. Raises as that method does."""
        if self._bound.has("prepare_commit"):
            prepared = await self._bound.call("prepare_commit")
            if prepared is not None:
                self._prepared.append((checkpoint_id, plain_copy(prepared)))

    def snapshot(self) -> list[Any]:
        """The prepared commits, to be stored in a checkpoint."""
        return [prepared for _, prepared in self._prepared]

    async def complete(self, checkpoint_id: int) -> None:
        """Commits everything that was prepared up to a complete checkpoint. Raises as the operator's `commit`."""
        due = [prepared for number, prepared in self._prepared if number <= checkpoint_id]
        if due:
            await self._bound.call("commit", due)
            self._prepared = [(number, prepared) for number, prepared in self._prepared if number > checkpoint_id]

    async def restore(self, prepared: list[Any]) -> None:
        """Commits the prepared commits of a restored checkpoint, which may have been committed before.

        Raises:
            StateMismatch: the operator has no method `commit`. Others as the operator's `commit`.
        """
        if not prepared:
            return
        if not self._bound.has("commit"):
            raise StateMismatch(
                f"operator {self._bound.name!r} has {len(prepared)} prepared commits in the checkpoint, but no method"
                " commit; add the method, or start from another checkpoint"
            )
        await self._bound.call("commit", prepared)


OF_THE_WORLD: Final = (OSError, MemoryError, trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError)
"""Errors of the environment, which do not depend on the arguments of a function."""


def operator_failed(operator: str, error: BaseException, *, is_refusal: bool = False) -> OperatorFailed:
    """Wraps an error of user code.

    netstack's own errors say whether every restart would fail alike (`NetstackError.is_permanent`). Errors of user code
    are permanent only if they do not depend on data:
    - a missing module, or a missing attribute of a module;
    - a method that cannot be called with its documented arguments;
    - a TypeError or ValueError of a constructor, which does not accept the job's parameters. Code that depends on the
      environment belongs in `open`;
    - any error of `restore`, since every attempt gets the same state, except errors of the environment such as OSError.

    Args:
        operator: name of the operator.
        error: the exception.
        is_refusal: whether the code refused the call itself, or arguments that every attempt would pass.
    """
    is_missing = isinstance(error, ImportError) or (
        isinstance(error, AttributeError) and isinstance(error.obj, ModuleType)
    )
    return (OperatorUnusable if is_refusal or is_missing else OperatorFailed)(operator, error)


class Output(Protocol):
    """The output of an operator: sends records to every operator that reads it."""

    def collect(self, record: Any) -> None:
        """Emits a record; never waits.

        Operators of the same chain get the record by reference, so do not change it afterwards.

        Raises:
            RecordError: the record does not fit the format. For the formats str, int64 and float64 the task fails with
                this error later, when the record is written.
        """

    def collect_to(self, tag: str, record: Any) -> None:
        """Emits a record to a side output; drops it if the side output has no reader. Raises as `collect`."""

    def collect_batch(self, records: list[Any] | npt.NDArray[Any]) -> None:
        """Emits several records: a list, or an array, which is passed on as an array where the reader takes arrays.

        An operator that takes batches must not change it before its method returns. Raises as `collect`.
        """

    def emit(self, record: Any) -> Awaitable[None]:
        """Emits a record, as `collect` does; async operators await the result, to wait for buffers if necessary."""

    def emit_batch(self, records: list[Any] | npt.NDArray[Any]) -> Awaitable[None]:
        """Emits several records, as `collect_batch` does.

        Async operators await the result, to wait for buffers, and may change the records afterwards.
        """


@final
class BoundOperator:
    """One operator of a task: the user's object with its methods, as the runtime calls them.

    Raises:
        ConfigError: the function or class does not exist, does not take these parameters, lacks a method, or has a
            method that cannot be called as documented; the text says which.
        OperatorFailed: the constructor raised.

    Attributes:
        is_finished: whether `finish` was called, in this attempt or before the restored checkpoint.
        result: the result of `finish`.
        is_batched: whether `process` takes lists or arrays.
        is_async: whether `process` must be awaited.
        process: the method that takes records; `read` of a source.
        inputs: `process1` and `process2` of a connect that has them.
        can_be_interrupted: whether an async `read` may be cancelled while it waits.
        takes_arrays: whether `process` takes arrays of bytes and numbers.
        wants_output: whether `process` takes an output; only sinks need not.
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
        self.name = information.name
        self.kind = information.kind
        self.context = context
        if not information.function:
            raise ConfigError(f"operator {self.name!r} has no function and can only be planned; give it a function")
        instance = load(information.function)
        self.is_batched = self.is_finished = False
        self.result: Any = None
        self.commits = Commits(self)
        self.inputs: tuple[Callable[..., Any], ...] = ()
        parameters = dict(information.parameters)
        if inspect.isclass(instance) and not (self.kind in _PLAIN and not parameters and _is_conversion(instance)):
            try:
                self._object = instance(**parameters)
            except NetstackError:
                raise
            except (Exception, SystemExit) as error:  # user code may raise anything; the report names the operator
                _check_call(self.name, instance, parameters)
                is_refusal = isinstance(error, TypeError | ValueError)
                raise operator_failed(self.name, error, is_refusal=is_refusal) from error
            self._find_methods()
        else:
            self._object = None
            function = _with_parameters(self.name, instance, parameters, context)
            if self.kind is OperatorKind.SOURCE:
                if context.parallelism > 1 and not _has_parameter(instance, "context"):
                    raise ConfigError(
                        f"source {self.name!r}: its function does not know its subtask, so each of its"
                        f" {context.parallelism} subtasks would emit all its records; set_parallelism(1), or give it a"
                        " parameter `context` and return the records of subtask context.subtask of context.parallelism"
                    )
                self._object = IterableSource(function, context)
                _check_call(self.name, instance, parameters)
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
        # `print`, and a function with a default for its second argument, are sinks of a record alone.
        self.wants_output = (
            self.kind is not OperatorKind.SINK or not takes(self.process, 1) or _has_parameter(self.process, "out")
        )
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
            wanted = " or ".join(names).replace("process1 or", "both process1 and")
            raise ConfigError(
                f"operator {self.name!r}: {type(self._object).__qualname__} has no method {wanted}, which a"
                f" {self.kind.value} needs"
            )
        if self.kind is OperatorKind.SOURCE and not callable(getattr(self._object, "snapshot", None)):
            raise ConfigError(
                f"operator {self.name!r}: {type(self._object).__qualname__} has no method snapshot; a source that is a"
                " class needs read and snapshot"
            )
        if self.has("prepare_commit") and not self.has("commit"):
            raise ConfigError(
                f"operator {self.name!r}: {type(self._object).__qualname__} has prepare_commit but no method commit;"
                " add commit(committables)"
            )
        ways = _CALLS[self.kind]
        for method in self.inputs or (self.process,):
            if not any(takes(method, len(way)) for way in ways):
                wanted = " or ".join(f"({', '.join(way)})" for way in ways)
                raise ConfigError(
                    f"operator {self.name!r}: {getattr(method, '__qualname__', method)} cannot be called as {wanted}"
                )

    @property
    def fixed_parallelism(self) -> bool:
        """Whether it is a source whose position cannot be redistributed to another number of subtasks."""
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
        """Whether it is a source that still skips the records sent before a restart."""
        return isinstance(self._object, IterableSource) and self._object.is_skipping

    def has(self, method: str) -> bool:
        """Whether it has a method of this name."""
        return callable(getattr(self._object, method, None))

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method, and awaits it if it is async. Returns None if there is no such method."""
        outcome = getattr(self._object, method, None)
        if outcome is None:
            return None
        try:
            result = outcome(*arguments)
            return await result if isinstance(result, Awaitable) else result
        except NetstackError:
            raise
        except (Exception, SystemExit) as error:  # user code may raise anything
            trace = error.__traceback__  # without further frames Python has refused the call itself
            is_refusal = isinstance(error, TypeError) and trace is not None and trace.tb_next is None
            if method == "restore":
                is_refusal = not isinstance(error, OF_THE_WORLD)
            raise operator_failed(self.name, error, is_refusal=is_refusal) from error

    @property
    def awaits_completion(self) -> bool:
        """Whether it must be notified of a checkpoint after its end."""
        return self.has("checkpoint_completed") or self.has("prepare_commit")

    async def finish(self, out: Output) -> None:
        """Calls `finish` after the last record, with the output if it takes one, and stores its result."""
        result = getattr(self._object, "finish", None)
        if result is not None:
            self.result = await self.call("finish", *((out,) if takes(result, 1) else ()))
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
"""The arguments of the methods in `_METHODS`."""


def _is_conversion(function: type) -> bool:
    """Whether a class is used as a function of a record, as `int` and `str` are: it has no methods of an operator."""
    names = {"open", "restore", "finish", *(name for methods in _METHODS.values() for name in methods)}
    return takes(function, 1) and not any(name in vars(each) for name in names for each in function.__mro__)


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
        raise _bad_call(name, function, parameters, error) from None
    except ValueError:
        pass  # a built-in without signature: calling it will raise
    return partial(function, **parameters)


def _check_call(name: str, function: Callable[..., Any], parameters: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(**parameters)
    except TypeError as error:
        raise _bad_call(name, function, parameters, error) from None
    except ValueError:
        pass  # a built-in without signature: calling it will raise


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


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function takes `count` positional arguments; a built-in without signature is assumed to take one."""
    inner, bound = (function.__func__, 1) if isinstance(function, MethodType) else (function, 0)
    if isinstance(inner, FunctionType) and not vars(inner):  # no __wrapped__, no __signature__: the code object tells
        code = inner.__code__
        if not code.co_flags & inspect.CO_VARARGS and not code.co_kwonlyargcount:
            return code.co_argcount - len(inner.__defaults__ or ()) <= count + bound <= code.co_argcount
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        return count == 1
    return True


def _check_takes(name: str, function: Callable[..., Any], wanted: str, count: int) -> None:
    if not takes(function, count):
        raise ConfigError(
            f"operator {name!r}: {getattr(function, '__qualname__', function)} cannot be called as {wanted}"
        )
