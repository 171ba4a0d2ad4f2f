"""Operators fused into one function do what one call after the other does: outputs, order, and who is to blame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, strategies as st

from netstack.base.errors import OperatorFailed
from netstack.cluster.task.error_place import with_operator
from netstack.cluster.task.fused import MOST_STEPS, FusedOperator, Target, fused
from netstack.cluster.task.operators import BoundOperator
from netstack.schedule.graph.job_graph import OperatorKind

KINDS = [OperatorKind.MAP, OperatorKind.FILTER, OperatorKind.FLAT_MAP, OperatorKind.PROCESS]
Log = list[tuple[str, Any]]


class Said(Exception):
    """What an operator raises."""


class Operators:
    """A chain whose operators keep state that all of them see, log every call, and raise at one of these."""

    def __init__(self, kinds: list[OperatorKind], fails_at: int, is_stop: bool) -> None:
        self.log: Log = []
        self._fails_at = fails_at
        self._error: type[Exception] = StopIteration if is_stop else Said
        self.operators = [(f"{kind.value}-{index}", kind) for index, kind in enumerate(kinds)]

    def function(self, name: str, kind: OperatorKind) -> Callable[..., Any]:
        def called(record: Any) -> int:
            self.log.append((name, record))
            if len(self.log) == self._fails_at:
                raise self._error(name)
            return len(self.log)

        if kind is OperatorKind.MAP:
            return lambda record: record + called(record)
        if kind is OperatorKind.FILTER:
            return lambda record: (record + called(record)) % 3
        if kind is OperatorKind.FLAT_MAP:

            def parts(record: int) -> Iterator[int]:
                for part in range(called(record) % 3):
                    yield record + part

            return parts

        def process(record: int, out: Any) -> None:
            out.collect(record)
            if called(record) % 2:
                out.collect(-record)

        return process

    def reference(self) -> Callable[[int], None]:
        """A closure for each."""

        def sink(record: int) -> None:
            self.log.append(("end", record))

        push: Callable[[int], None] = sink
        for name, kind in reversed(self.operators):
            push = _call(self.function(name, kind), kind, push)
        return push

    def fused(self, can_extend: bool) -> tuple[Target, list[BoundOperator]]:
        def sink(record: int) -> None:
            self.log.append(("end", record))

        def extend(records: Iterable[int]) -> None:
            for record in records:
                sink(record)

        target = Target(sink, lambda records: None, extend=extend if can_extend else None)
        bound = []
        for name, kind in reversed(self.operators):
            function = self.function(name, kind)
            bound.append(cast("BoundOperator", SimpleNamespace(name=name, process=function, inputs=())))
            if kind is OperatorKind.PROCESS:
                target = fused(FusedOperator(name, kind, function, SimpleNamespace(collect=target.push)))
            else:
                target = fused(FusedOperator(name, kind, function), target)
        return target, bound


def _call(function: Callable[..., Any], kind: OperatorKind, push: Callable[[int], None]) -> Callable[[int], None]:
    def one(record: int) -> None:
        if kind is OperatorKind.MAP:
            push(function(record))
        elif kind is OperatorKind.FILTER:
            if function(record):
                push(record)
        elif kind is OperatorKind.FLAT_MAP:
            for part in function(record):
                push(part)
        else:
            function(record, SimpleNamespace(collect=push))

    return one


def failure_of(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=MOST_STEPS + 4),
    st.lists(st.integers(-5, 5), max_size=6),
    st.integers(0, 60),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_fused_operators_do_what_calls_do(
    kinds: list[OperatorKind], records: list[int], fails_at: int, is_stop: bool, is_list: bool, can_extend: bool
) -> None:
    wanted, actual = Operators(kinds, fails_at, is_stop), Operators(kinds, fails_at, is_stop)
    each = wanted.reference()
    expected = failure_of(lambda: [each(record) for record in records])
    target, bound = actual.fused(can_extend)
    error = failure_of(lambda: target.push_batch(records) if is_list else [target.push(record) for record in records])
    assert actual.log == wanted.log, "the same calls in the same order, up to the error"
    assert repr(error) == repr(expected)
    if error is not None:
        named = with_operator(error, bound)
        assert isinstance(named, OperatorFailed)
        assert named.operator == wanted.log[-1][0]


def test_what_a_generator_gave_before_it_failed_is_staged() -> None:
    def parts(record: int) -> Iterator[int]:
        yield from range(record)
        raise Said

    staged: list[int] = []
    target = fused(
        FusedOperator("parts", OperatorKind.FLAT_MAP, parts), Target(staged.append, staged.extend, extend=staged.extend)
    )
    assert isinstance(failure_of(lambda: target.push(3)), Said)
    assert staged == [0, 1, 2]


def test_a_function_without_a_frame_is_named_by_its_line() -> None:
    functions = {"text": str, "number": int}
    bound = [cast("BoundOperator", SimpleNamespace(name=n, process=f, inputs=())) for n, f in functions.items()]
    actual: list[int] = []
    numbers = fused(FusedOperator("number", OperatorKind.MAP, int), Target(actual.append, actual.extend))
    error = failure_of(
        lambda: fused(FusedOperator("text", OperatorKind.MAP, str), numbers).push_batch([3, "no number", 4])
    )
    assert actual == [3]
    assert error is not None
    named = with_operator(error, bound)
    assert isinstance(named, OperatorFailed)
    assert named.operator == "number"


@given(
    st.text(st.characters(), max_size=40) | st.sampled_from(["a\0b", "\ud800", "'''\nimport os\nos._exit(1)\n#", "{0}"])
)
def test_a_name_of_an_operator_is_never_code(name: str) -> None:
    got: list[int] = []
    sink = fused(FusedOperator(name, OperatorKind.SINK, got.append))
    first = fused(FusedOperator(name, OperatorKind.MAP, lambda record: record + 1), sink)
    first.push(1)
    first.push_batch([2, 3])
    assert got == [2, 3, 4]
