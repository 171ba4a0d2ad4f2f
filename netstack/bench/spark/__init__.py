"""The sweep on Spark: a TaskManager inside each task of a barrier stage; results as a DataFrame.

Takes: an open session. Gives: `run_sweep`, for a notebook or a job of yours, `per_setting` of what it returns;
`recommend`, `compare` and `regressions` of the table of runs, and `register_views`, the same for SQL. They are loaded
when they are asked for: executors import this package too, and need none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .answers import compare, recommend, register_views, regressions
    from .frames import per_setting
    from .sweep import run_sweep

__all__ = ["compare", "per_setting", "recommend", "register_views", "regressions", "run_sweep"]

_HOMES: Final = {"per_setting": "frames", "run_sweep": "sweep"} | dict.fromkeys(
    ("compare", "recommend", "register_views", "regressions"), "answers"
)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
