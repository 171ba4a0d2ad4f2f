"""Sweeps on Spark, with results as DataFrames.

- `run_sweep` measures on an open session, with a TaskManager in each task of a barrier stage; `per_setting` aggregates.
- `recommend`, `compare` and `regressions` evaluate the table of runs; `register_views` adds the same as SQL views.

Names are imported when they are first used, because executors import this package too and need none of them.
"""

from __future__ import annotations

from netstack.base.lazy_names import lazy_names

__getattr__ = lazy_names(__name__)
