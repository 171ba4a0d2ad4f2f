"""netstack on Spark: `exchange` for DataFrames, the data source "netstack" for streams, `run` for jobs.

- `exchange` repartitions a DataFrame through netstack's channels; `ExchangeStatistics` has their counters.
- `register` adds the data source "netstack" (`NetstackDataSource`) to a session. At the other end of a stream is a
  `Publisher` or a `Subscriber`.
- `run` runs a job whose TaskManagers are tasks of a barrier stage.
- `plain_errors` turns Spark's errors into one sentence, `SparkFailed`.

Names are imported when they are first used, because executors import this package too, and pyspark may be missing
(`pip install 'pyspark>=4.2' 'pandas>=2.2.2,<3' 'pyarrow>=18'`).
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
    **dict.fromkeys(("Epoch", "Subscriber"), "subscriber"),
    **dict.fromkeys(("ExchangeChannel", "ExchangeStatistics", "ExchangeTask"), "exchange_statistics"),
    **dict.fromkeys(("NetstackDataSource", "register"), "source"),
    **dict.fromkeys(("SparkFailed", "plain_errors"), "failures"),
    "Publisher": "publisher",
    "exchange": "exchange_frame",
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
