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

from ..base.lazy_names import lazy_names


def _check_version(module: str) -> None:
    driver = importlib.import_module(".driver", __name__)
    if module == "source":
        driver.check_version(driver.OLDEST_SOURCE, "the data source")
    else:
        driver.check_version()


__getattr__ = lazy_names(__name__, before=_check_version)
