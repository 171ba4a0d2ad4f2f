"""Classifies errors of user code as permanent if every restart would fail alike.

Takes: the exception of an operator. Gives: an `OperatorFailed`; an `OperatorUnusable` if the error is permanent.

netstack's own errors carry this information (`NetstackError.is_permanent`). Errors of user code are permanent only if
they do not depend on data:

- a missing module, or a missing attribute of a module;
- a method that cannot be called with its documented arguments;
- a TypeError or ValueError of a constructor, which does not accept the job's parameters. Code that depends on the
  environment belongs in `open`;
- any error of `restore`, since every attempt gets the same state, except errors of the environment such as OSError.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

import trio

from ...base.errors import OperatorFailed, OperatorUnusable

OF_THE_WORLD: Final = (OSError, MemoryError, trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError)
"""Errors of the environment, which do not depend on the arguments of a function."""


def operator_failed(operator: str, error: BaseException, *, is_refusal: bool = False) -> OperatorFailed:
    """Wraps an error of user code.

    Args:
        operator: name of the operator.
        error: the exception.
        is_refusal: whether the code refused the call itself, or arguments that every attempt would pass.
    """
    is_missing = isinstance(error, ImportError) or (
        isinstance(error, AttributeError) and isinstance(error.obj, ModuleType)
    )
    return (OperatorUnusable if is_refusal or is_missing else OperatorFailed)(operator, error)
