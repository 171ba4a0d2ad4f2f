"""The public names of this package, each once: `lazy_names` imports one when it is first used."""

from .exchange_frame import exchange as exchange
from .exchange_statistics import (
    ExchangeChannel as ExchangeChannel,
    ExchangeStatistics as ExchangeStatistics,
    ExchangeTask as ExchangeTask,
)
from .failures import SparkFailed as SparkFailed, plain_errors as plain_errors
from .job_run import run as run
from .publisher import Publisher as Publisher
from .source import NetstackDataSource as NetstackDataSource, register as register
from .subscriber import Epoch as Epoch, Subscriber as Subscriber
