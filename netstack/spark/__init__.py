"""netstack and Spark: rows of a DataFrame through netstack's channels.

Takes: an open Spark session. Gives: `exchange`, with `ExchangeStatistics` beside its rows; `plain_errors`.

Everything is loaded when it is asked for: executors import this package too, and only `pyspark` may be missing here
(`pip install 'netstack[spark]'`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .exchange_frame import exchange
    from .exchange_statistics import ExchangeChannel, ExchangeStatistics, ExchangeTask
    from .failures import SparkFailed, plain_errors

__all__ = ["ExchangeChannel", "ExchangeStatistics", "ExchangeTask", "SparkFailed", "exchange", "plain_errors"]

_MODULES: Final = {
    "ExchangeChannel": "exchange_statistics",
    "ExchangeStatistics": "exchange_statistics",
    "ExchangeTask": "exchange_statistics",
    "SparkFailed": "failures",
    "exchange": "exchange_frame",
    "plain_errors": "failures",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{module}", __name__), name)
