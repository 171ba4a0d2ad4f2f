"""Which errors of the user's code come again in every attempt, so that restarts cannot help.

Takes: what an operator raised, and where. Gives: an `OperatorFailed`; an `OperatorUnusable` if it is permanent.

Errors of ours say so themselves (`NetstackError.is_permanent`). Of the user's only those count that involve no data:

- a module, or an attribute of a module, that is not there;
- a method of an operator that cannot be called with the arguments it is documented to get;
- a constructor that raises TypeError or ValueError: it does not take the job's parameters. The place for what depends
  on the world is `open`;
- a `restore` that raises: every attempt is given the same state. What tells of the world, such as OSError, is no
  verdict about the state, and is tried again.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

import trio

from ..errors import OperatorFailed, OperatorUnusable

OF_THE_WORLD: Final = (OSError, MemoryError, trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError)
"""Errors that say nothing about what a function was given."""


def operator_failed(operator: str, error: BaseException, *, is_refusal: bool = False) -> OperatorFailed:
    """An error of the user's code.

    Args:
        operator: whose.
        error: what it raised.
        is_refusal: whether it is about the call itself, or about what every attempt is given.
    """
    is_missing = isinstance(error, ImportError) or (
        isinstance(error, AttributeError) and isinstance(error.obj, ModuleType)
    )
    return (OperatorUnusable if is_refusal or is_missing else OperatorFailed)(operator, error)
