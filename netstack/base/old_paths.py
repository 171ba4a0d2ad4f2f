"""Old import paths, which work for one more minor release: `netstack.wire.frames` is `netstack.exchange.wire.frames`.

Takes: imports of names that have moved. Gives: the module at its new place, known by both names, and a
`DeprecationWarning` at the line that used the old one. `python -m` works too.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Final, final

_ROOMS: Final = {
    "netstack.base": (
        *("build", "compiled", "config", "crc", "errors", "events", "function_names", "ids", "queue_listener"),
        *("renamed", "scratch", "setting_types", "transport", "units", "version"),
    ),
    "netstack.base.text": ("json_text", "limited_log", "safe_text"),
    "netstack.base.timing": ("alarm", "deadlines", "steady_clock", "waits", "wakeup"),
    "netstack.base.tls": ("certificates", "tls_files"),
    "netstack.exchange": ("buffer", "inbound", "keygroups", "outbound", "record", "wire"),
    "netstack.schedule": ("checkpoint",),
    "netstack.cluster": ("control", "jobmanager", "task", "taskmanager", "web"),
}
"""The room of each package and module that kept its name."""

_NEW: Final = {f"netstack.{name}": f"{room}.{name}" for room, names in _ROOMS.items() for name in names} | {
    "netstack.bench": "netstack_bench",
    "netstack.bench.mesh": "netstack_bench.places.hosts",
    "netstack.bench.spark": "netstack_bench.places.spark",
    "netstack.documents": "netstack.base.text.bounded_msgpack",
    "netstack.runtime": "netstack.network",
    "netstack.runtime.metrics": "netstack.network.metrics.samples",
    "netstack.shuffle": "netstack.exchange.stored",
    "netstack.transports": "netstack_transports",
}


def new_path(name: str) -> str | None:
    """Where a module is that had this name; None if it has not moved."""
    known = name
    while known:
        if known in _NEW:
            return _NEW[known] + name[len(known) :]
        known = known.rpartition(".")[0]
    return None


@final
class OldPaths(MetaPathFinder, InspectLoader):
    """Finds and loads modules under their old names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of an old name; the module itself belongs to the new one."""
        new = new_path(fullname) if fullname.startswith("netstack.") else None
        spec = find_spec(new) if new is not None else None
        if spec is None:
            return None
        return ModuleSpec(fullname, self, is_package=spec.submodule_search_locations is not None)

    def exec_module(self, module: ModuleType) -> None:
        """Puts the module at its new place into `sys.modules`, instead of the empty one that the old name got."""
        old, new = module.__name__, new_path(module.__name__)
        assert new is not None
        warnings.warn(
            f"{old} has moved to {new}; the next minor release removes the old path", DeprecationWarning, stacklevel=2
        )
        sys.modules[old] = import_module(new)

    def get_code(self, fullname: str) -> CodeType | None:
        """The code of a module that `python -m` runs."""
        spec = find_spec(new_path(fullname) or fullname)
        if spec is None or not isinstance(spec.loader, InspectLoader):
            return None
        return spec.loader.get_code(spec.name)

    def get_source(self, fullname: str) -> str | None:
        """Only modules at their new places have sources."""
        return None


def install() -> None:
    """Makes this process know the old paths, before the folders of packages are searched."""
    sys.meta_path.insert(0, OldPaths())
