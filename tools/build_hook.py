"""hatchling's hook when it builds a wheel: compiles the data path where there is a C compiler.

Takes: a wheel under way. Gives: the compiled modules and the platform's tag; or a warning, and a wheel in Python only,
as with NETSTACK_PURE=1. `pip install -v` shows how long it compiles. With NETSTACK_FLINK_JAR=1 and a JDK the wheel has
the classes of `--peer flink`, for machines without a JDK; Flink's jars (300 MB) are fetched for that.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import time
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))

import compile_core

REQUIREMENTS = ["mypy~=2.4.1", "setuptools>=70", "numpy>=2.0"]
"""What compiling takes; of numpy only its types."""

PURE = "NETSTACK_PURE"
FLINK = "apache-flink-libraries==2.3.0"


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel; the module says when."""

    _temporary: tempfile.TemporaryDirectory[str] | None = None
    _jar: tempfile.TemporaryDirectory[str] | None = None

    @property
    def _is_pure(self) -> bool:
        return self.target_name != "wheel" or os.environ.get(PURE, "0") not in ("", "0")

    @property
    def _brings_flink(self) -> bool:
        return self.target_name == "wheel" and os.environ.get("NETSTACK_FLINK_JAR", "0") not in ("", "0")

    def _add_flink(self, build_data: dict[str, Any]) -> None:
        folder = Path(self.root) / "bench" / "netstack_bench" / "engines" / "flink"
        spec = importlib.util.spec_from_file_location("java_build", folder / "java_build.py")
        assert spec is not None
        assert spec.loader is not None
        java_build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(java_build)
        javac = shutil.which("javac")
        if javac is None:
            raise RuntimeError("NETSTACK_FLINK_JAR=1 needs javac: apt-get install openjdk-17-jdk-headless")
        libraries = Path(str(distribution(FLINK.partition("==")[0]).locate_file("pyflink/lib")))
        self._jar = tempfile.TemporaryDirectory(prefix="netstack-flink-jar-")
        jar = Path(self._jar.name) / "netstack-flink.jar"
        java_build.build(javac, jar, folder / "java", libraries)
        build_data["force_include"][str(jar)] = f"netstack_bench/engines/flink/{jar.name}"

    def dependencies(self) -> list[str]:
        """What the build needs beside hatchling; nothing without a compiler, so that installing takes seconds."""
        compiles = not self._is_pure and compile_core.compiler_problem() is None
        return [*(REQUIREMENTS if compiles else []), *([FLINK] if self._brings_flink else [])]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles: for a wheel aside, for an editable installation in its tree."""
        if self._brings_flink and version != "editable":
            self._add_flink(build_data)
        if self._is_pure:
            return
        root = Path(self.root)
        folder = compile_core.compiled_module(root).compiled_folder(root / "netstack")
        if version != "editable":
            self._temporary = tempfile.TemporaryDirectory(prefix="netstack-wheel-")
            out = Path(self._temporary.name) / folder.name
        else:
            out = folder
        began = time.monotonic()
        try:
            self.app.display_info(f"netstack compiles its data path, about a minute; {PURE}=1 leaves it in Python")
            compile_core.compile_core(root, out)
        except compile_core.CannotCompile as error:
            self.app.display_warning(f"netstack will run in Python, at about half the speed: {error}")
            return
        self.app.display_info(f"netstack compiled its data path in {time.monotonic() - began:.0f} s")
        if version != "editable":
            build_data["force_include"][str(out)] = str(folder.relative_to(root))
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Nothing is left behind."""
        for folder in (self._temporary, self._jar):
            if folder is not None:
                folder.cleanup()
