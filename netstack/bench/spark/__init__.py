"""Sweeps on Spark, with results as DataFrames.

- `run_sweep` measures on an open session, with a TaskManager in each task of a barrier stage; `per_setting` aggregates.
- `recommend`, `compare` and `regressions` evaluate the table of runs; `register_views` adds the same as SQL views.

Names are imported when they are first used, because executors import this package too and need none of them.
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
