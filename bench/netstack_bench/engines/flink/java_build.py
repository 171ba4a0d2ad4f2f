"""Compiles Java sources against Flink's jars into a jar.

Takes: a compiler, a folder of sources and resources, the folder of Flink's jars. Gives: the jar.

Rules: nothing but the standard library, because whoever builds a wheel loads it too (`tools/build_hook.py`).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import zipfile
from pathlib import Path


class CannotBuild(Exception):
    """The compiler does not take the sources; the text says why."""


def jars(libraries: Path) -> list[Path]:
    """Flink's jars, in the order of their names."""
    return sorted(libraries.glob("*.jar"))


def is_flink_1(libraries: Path) -> bool:
    """Whether these are the jars of Flink 1.x."""
    return any(libraries.glob("flink-dist-1.*.jar"))


def _sources(sources: Path, folder: Path, libraries: Path) -> list[Path]:
    """The sources to compile: for Flink 1.x, whose sinks get another context, changed copies in the folder."""
    java = sorted(sources.glob("*.java"))
    if not is_flink_1(libraries):
        return java
    copies = [folder / path.name for path in java]
    for path, copy in zip(java, copies, strict=True):
        copy.write_text(path.read_text().replace("WriterInitContext", "Sink.InitContext"))
    return copies


def build(javac: str, jar: Path, sources: Path, libraries: Path) -> None:
    """Writes the jar.

    Raises:
        CannotBuild: see there.
    """
    classes = os.pathsep.join(map(str, jars(libraries)))
    with tempfile.TemporaryDirectory(prefix="netstack-flink-") as folder:
        java = [str(path) for path in _sources(sources, Path(folder), libraries)]
        done = subprocess.run(
            [javac, "--release", "17", "-nowarn", "-d", folder, "-cp", classes, *java],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CannotBuild(f"{javac} cannot compile {sources}: {done.stderr.strip()[:500]}")
        with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(folder).rglob("*.class")):
                archive.write(path, path.relative_to(folder))
            for path in sorted(sources.rglob("*")):
                if path.is_file() and path.suffix != ".java":
                    archive.write(path, path.relative_to(sources))
