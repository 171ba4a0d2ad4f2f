"""The driver of a Spark session: `classic` for one with a JVM of this process, `connect` for one of Spark Connect."""

from __future__ import annotations

from typing import Any

from ..base.errors import ConfigError
from .classic import ClassicDriver
from .connect import ConnectDriver
from .driver import Driver, is_classic


def driver_of(spark: Any) -> Driver:
    """Returns the driver of a session."""
    if is_classic(spark):
        return ClassicDriver(spark)
    return ConnectDriver(spark)


def classic_driver(spark: Any, what: str) -> ClassicDriver:
    """Returns the driver of a session with a JVM.

    Args:
        spark: the session.
        what: the feature that needs it, for the error text.

    Raises:
        ConfigError: the session is one of Spark Connect.
    """
    if not is_classic(spark):
        raise ConfigError(f"{what} needs a classic session: Spark Connect does not report the end of its tasks")
    return ClassicDriver(spark)
