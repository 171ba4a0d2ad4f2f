"""What hatchling asks when it builds a wheel: the data path compiled, where there is a compiler.

Takes: a wheel under way. Gives: the compiled modules to it, and the platform's tag; or nothing, and a warning: the
wheel is then pure, and so it is with NETSTACK_PURE=1.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))

import compile_core

REQUIREMENTS = ["mypy~=2.4.1", "setuptools>=70", "numpy>=2.0"]
"""What compiling takes; of numpy only its types."""


class CustomBuildHook(BuildHookInterface[Any]):
    """See the module."""

    _temporary: tempfile.TemporaryDirectory[str] | None = None

    @property
    def _is_pure(self) -> bool:
        return self.target_name != "wheel" or os.environ.get("NETSTACK_PURE", "0") not in ("", "0")

    def dependencies(self) -> list[str]:
        """What the build needs beside hatchling."""
        return [] if self._is_pure else REQUIREMENTS

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles: for a wheel aside, for an editable installation in its tree."""
        if self._is_pure:
            return
        root = Path(self.root)
        folder = compile_core.compiled_module(root).compiled_folder(root / "netstack")
        if version != "editable":
            self._temporary = tempfile.TemporaryDirectory(prefix="netstack-wheel-")
            out = Path(self._temporary.name) / folder.name
        else:
            out = folder
        try:
            compile_core.compile_core(root, out)
        except compile_core.CannotCompile as error:
            self.app.display_warning(f"netstack will run in Python, at about half the speed: {error}")
            return
        if version != "editable":
            build_data["force_include"][str(out)] = str(folder.relative_to(root))
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Nothing is left behind."""
        if self._temporary is not None:
            self._temporary.cleanup()
