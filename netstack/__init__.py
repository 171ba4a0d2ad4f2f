"""netstack: Flink's network stack on trio: credit-based flow control over multiplexed TCP connections.

The names that `__init__.pyi` lists are imported on first use, so a program that only writes records imports neither
jobs nor the scheduler.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .base import build as build  # first: it decides whether the data path is loaded as machine code
from .base.lazy_names import homes, lazy_names
from .base.old_paths import install
from .base.renamed import warn_renamed
from .base.version import __version__ as __version__

install()

_public = lazy_names(__name__)


def __getattr__(name: str) -> Any:
    if name == "open_task_manager":
        warn_renamed(name, "open_network")
        name = "open_network"
    if not name.startswith("_") and name not in homes(__name__):
        try:
            return import_module(f".{name}", __name__)
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    return _public(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *homes(__name__)})
