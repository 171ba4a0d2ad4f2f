"""netstack's own parts that lie beside it: `netstack.transports` and `netstack.bench`, whatever else is called so.

Takes: the import system's questions for these two names. Gives: the folders beside netstack's own.

The repository's top level has `netstack/`, `transports/` and `bench/`; so has the wheel, since a folder is named as it
is imported. But the last two are common names: a program's own `bench/`, or another distribution's, may come first in
`sys.path`. So netstack asks for its parts under its own name, and they are looked for only beside netstack, in a folder
or in a zip. Where nothing else has their name they are `transports` and `bench` too.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Final

PARTS: Final = ("netstack.transports", "netstack.bench")
_BESIDE: Final = str(Path(__file__).parent.parent)


class _BesideNetstack(MetaPathFinder):
    """Finds the two packages; their modules are then found in them, as those of any package."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Only for names in `PARTS`, and after the import system's own finders have not found them."""
        return PathFinder.find_spec(fullname, [_BESIDE], target) if fullname in PARTS else None


def install() -> None:
    """Makes the names in `PARTS` importable; called when netstack is imported. Idempotent."""
    if not any(isinstance(finder, _BesideNetstack) for finder in sys.meta_path):
        sys.meta_path.append(_BesideNetstack())


def import_part(name: str) -> ModuleType:
    """A module of a part, such as `transports.tcp`.

    Under its short name if that is ours, so that a program which imports `transports.impaired` has the very module that
    netstack uses; else under netstack's.

    Raises:
        ImportError: there is no such module.
    """
    top = name.partition(".")[0]
    return importlib.import_module(name if _is_ours(top) else f"netstack.{name}")


def _is_ours(package: str) -> bool:
    loaded = sys.modules.get(package)
    try:
        spec = importlib.util.find_spec(package) if loaded is None else loaded.__spec__
    except ValueError:  # something without a spec has the name
        return False
    places = (spec.submodule_search_locations if spec is not None else None) or ()
    return [Path(place) for place in places] == [Path(_BESIDE, package)]
