"""Finds the operator that raised an error, from the traceback, so that processing a record needs no bookkeeping.

Takes: an error, and the operators of a chain. Gives: the error to report.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from types import CodeType
from typing import Any

from ...base.errors import NetstackError
from .fused import OPERATORS
from .operators import BoundOperator, operator_failed


def with_operator(error: BaseException, operators: Iterable[BoundOperator]) -> BaseException:
    """Wraps an error of user code in `OperatorFailed`; returns an error of netstack unchanged."""
    if isinstance(error, NetstackError) or not isinstance(error, Exception | SystemExit | KeyboardInterrupt):
        return error
    if isinstance(error, KeyboardInterrupt) and sigint_raises():
        return error
    traces = [error.__traceback__]
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        error = error.__cause__  # Python turns a StopIteration that leaves a generator or coroutine into RuntimeError
        traces.append(error.__traceback__)
    codes: dict[CodeType, list[str]] = {}  # several operators may share one function
    for operator in operators:
        for function in (operator.process, *operator.inputs):
            code = _code(function)
            if code is not None:
                codes.setdefault(code, []).append(operator.name)
    place = ""
    for each in traces:
        trace = each
        while trace is not None:  # the innermost operator raised, since operators call the ones after them
            frame = trace.tb_frame
            line = frame.f_globals.get(OPERATORS, {}).get(trace.tb_lineno)
            names = [line] if line else codes.get(frame.f_code, [])
            if names and place not in names:
                place = names[0]
            trace = trace.tb_next
    return operator_failed(place, error) if place else error


def sigint_raises() -> bool:
    """Whether Ctrl-C raises KeyboardInterrupt in this process; otherwise only user code can have raised one."""
    handler = signal.getsignal(signal.SIGINT)
    return handler is signal.default_int_handler or getattr(handler, "__module__", "").startswith("trio._core")


def code_rows(operator: BoundOperator) -> list[list[Any]]:
    """Locations of an operator's code: of its functions, and of all methods of its class."""
    codes = {_code(function) for function in operator.functions()}
    return [
        [operator.name, code.co_filename, code.co_name, code.co_firstlineno, _last_line(code)]
        for code in codes
        if code is not None
    ]


def _last_line(code: CodeType) -> int:
    return max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)


def _code(function: Any) -> CodeType | None:
    """The code of a function, a method or a partial."""
    function = getattr(function, "func", function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code if isinstance(code, CodeType) else None
