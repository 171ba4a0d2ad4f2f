"""Selects the build of the data path: machine code, or the same source in Python.

Takes: the output of `tools/compile_core.py` in `netstack/_compiled`, and the environment. Gives: `kind` and `reason`;
the first import of netstack also installs the compiled modules in place of their sources.

Rules:
- Either all modules of the group are compiled or none, because they share their memory layouts.
- Machine code is loaded only if all sources it was compiled from are unchanged. If you edit one, pure Python runs until
  you run `make compiled`.
- `NETSTACK_PURE=1` selects Python.
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
"""The environment variable that selects Python; empty and 0 do not."""


def describe() -> str:
    """The build that runs, and why it is not the compiled one."""
    return kind if reason is None else f"{kind}: {reason}"


@final
class _CompiledFinder(MetaPathFinder):
    """Finds the compiled modules before Python's own finders find their sources."""

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
    """Installs the compiled modules if possible. Returns the reason if not."""
    if os.environ.get(PURE, "0") not in ("", "0"):
        return f"{PURE}={os.environ[PURE]}"
    manifest, problem = current_manifest(package)
    if manifest is None:
        return problem
    folder = compiled_folder(package)
    finder = _CompiledFinder({module: folder / name for module, name in manifest["files"].items()})
    sys.meta_path.insert(0, finder)
    try:
        import_module(manifest["group"])  # imported here so that a failure is detected before any module is needed
    except ImportError as error:
        sys.meta_path.remove(finder)
        return f"the compiled data path does not load here: {error}"
    return None


reason: Final = _choose(Path(__file__).resolve().parents[1])
"""Why the data path runs in Python; None when it is compiled."""

kind: Final = "compiled" if reason is None else "python"
"""`compiled` or `python`; results and reports record it."""
