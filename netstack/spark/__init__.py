"""netstack and Spark: rows of a DataFrame through netstack's channels, and netstack's streams as DataFrames.

Takes: an open Spark session. Gives: `exchange`, with `ExchangeStatistics` beside its rows; the data source "netstack"
(`NetstackDataSource`), with `Publisher` and `Subscriber` for the stream worker at the other end; `run`, a job whose
TaskManagers are the tasks of a stage; `plain_errors`.

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
    from .job_run import run
    from .publisher import Publisher
    from .source import NetstackDataSource, register
    from .subscriber import Epoch, Subscriber

__all__ = [
    "Epoch",
    "ExchangeChannel",
    "ExchangeStatistics",
    "ExchangeTask",
    "NetstackDataSource",
    "Publisher",
    "SparkFailed",
    "Subscriber",
    "exchange",
    "plain_errors",
    "register",
    "run",
]

_MODULES: Final = {
    "Epoch": "subscriber",
    "ExchangeChannel": "exchange_statistics",
    "ExchangeStatistics": "exchange_statistics",
    "ExchangeTask": "exchange_statistics",
    "NetstackDataSource": "source",
    "Publisher": "publisher",
    "SparkFailed": "failures",
    "Subscriber": "subscriber",
    "exchange": "exchange_frame",
    "plain_errors": "failures",
    "register": "source",
    "run": "job_run",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    driver = importlib.import_module(".driver", __name__)
    if module == "source":
        driver.check_version(driver.OLDEST_SOURCE, "the data source")
    else:
        driver.check_version()
    return getattr(importlib.import_module(f".{module}", __name__), name)
