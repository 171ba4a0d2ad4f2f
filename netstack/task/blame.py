"""Which operator an error comes from: told from the frames it has passed, so that no record pays for it.

Takes: an error, and the operators of a chain. Gives: the error to report.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType
from typing import Any

from ..errors import NetstackError
from .operators import BoundOperator
from .permanent import operator_failed


def blamed(error: BaseException, operators: Iterable[BoundOperator]) -> BaseException:
    """An error of the user's code as `OperatorFailed`; one of ours, which tells what is wrong already, as it is."""
    if isinstance(error, NetstackError) or not isinstance(error, Exception | SystemExit):
        return error
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        error = error.__cause__  # Python says RuntimeError where one leaves a coroutine
    functions: dict[int, str] = {}
    codes: dict[CodeType, str] = {}
    for operator in operators:
        for function in (operator.process, *operator.inputs):
            functions[id(function)] = operator.name
            code = _code(function)
            if code is not None:
                codes.setdefault(code, operator.name)
    found = ""
    trace = error.__traceback__
    while trace is not None:  # the innermost counts: operators call those behind them
        frame = trace.tb_frame
        name = functions.get(id(frame.f_locals.get("function"))) or codes.get(frame.f_code)
        found = name or found
        trace = trace.tb_next
    return operator_failed(found, error) if found else error


def _code(function: Any) -> CodeType | None:
    """Of a function, a method, or one with parameters filled in."""
    function = getattr(function, "func", function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code if isinstance(code, CodeType) else None
