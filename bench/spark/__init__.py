"""The sweep on Spark: a TaskManager inside each task of a barrier stage; results as a DataFrame.

Takes: an open session. Gives: `run_sweep`, for a notebook or a job of yours, and `per_setting` of what it returns. They
are loaded when they are asked for: executors import this package too, and need neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .frames import per_setting
    from .sweep import run_sweep

__all__ = ["per_setting", "run_sweep"]


def __getattr__(name: str) -> Any:
    if name == "run_sweep":
        from .sweep import run_sweep

        return run_sweep
    if name == "per_setting":
        from .frames import per_setting

        return per_setting
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
