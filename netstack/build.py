"""Which build of the data path runs: machine code, or the same source in Python.

Takes: what `tools/compile_core.py` left in `netstack/_compiled`, and the environment. Gives: `kind` and `reason`; and,
from the first import of netstack on, the compiled modules in place of their sources.

Rules:
- All modules of the group are compiled, or none: they know each other's memory layout.
- Machine code is loaded only when every source it was made from is as it was then. Who edits a source runs Python until
  the data path is compiled again (`make compiled`).
- `NETSTACK_PURE=1` runs Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final, final

from .compiled import compiled_folder, current_manifest

PURE: Final = "NETSTACK_PURE"
"""The environment variable that forces Python; anything but nothing and 0."""


def describe() -> str:
    """The build that runs, in words."""
    return kind if reason is None else f"{kind}: {reason}"


@final
class _CompiledFinder(MetaPathFinder):
    """Finds the compiled modules before anybody else finds their sources."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        if file is None:
            return None
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, str(file)))


def _choose(package: Path) -> str | None:
    """Has the machine code loaded where it can be. Returns why not."""
    if os.environ.get(PURE, "0") not in ("", "0"):
        return f"{PURE}={os.environ[PURE]}"
    manifest, problem = current_manifest(package)
    if manifest is None:
        return problem
    folder = compiled_folder(package)
    finder = _CompiledFinder({module: folder / name for module, name in manifest["files"].items()})
    sys.meta_path.insert(0, finder)
    try:
        import_module(manifest["group"])  # now, so that what cannot be loaded here is known before anything needs it
    except ImportError as error:
        sys.meta_path.remove(finder)
        return f"the compiled data path does not load here: {error}"
    return None


reason: Final = _choose(Path(__file__).resolve().parent)
"""Why the data path runs in Python; None when it is compiled."""

kind: Final = "compiled" if reason is None else "python"
"""`compiled` or `python`: what results and reports carry."""
