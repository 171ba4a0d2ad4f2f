"""Our Java sources as a jar, built where there is a JDK and kept under the digest of what it was built from.

Takes: a folder of Java sources. Gives: the class path of Flink and of the jar.

Rules: Flink's own jars come in the Python package `apache-flink-libraries`. A wheel may carry the jar, ready made; else
`javac` makes it once, in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from ...generator import MissingExtra
from ...store import replace_file
from .java_build import CannotBuild, build, is_flink_1, jars

JAR: Final = "netstack-flink.jar"
SOURCES: Final = Path(__file__).resolve().parent / "java"
_PACKAGE: Final = "apache-flink-libraries"
_JDK: Final = "install a JDK of version 17 (on Debian: apt-get install openjdk-17-jdk-headless)"
_OPENED: Final = (
    "lang net io nio lang.reflect text time util util.concurrent util.concurrent.atomic util.concurrent.locks"
)


def java_command(sources: Path = SOURCES, *, heap: str = "1g", scratch: str | None = None) -> list[str]:
    """How a JVM with Flink and classes of ours starts; the name of the main class follows.

    Flink unpacks jars and keeps its files in the folder `scratch`; None: the system's.

    Raises:
        MissingExtra: no Java, no Flink, or nothing to compile our classes with; the text says what to install.
    """
    java = _tool("java")
    libraries = flink_libraries()
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED.split()]
    where = os.pathsep.join((str(jar_of(sources, libraries)), *map(str, jars(libraries))))
    place = [] if scratch is None else [f"-Djava.io.tmpdir={scratch}"]
    return [java, f"-Xmx{heap}", "-XX:+UseSerialGC", *place, *opened, "-cp", where]


def flink_libraries() -> Path:
    """The folder of Flink's jars. Raises MissingExtra if the package is not installed."""
    try:
        return Path(str(distribution(_PACKAGE).locate_file("pyflink/lib")))
    except PackageNotFoundError:
        raise MissingExtra(
            f"--peer flink needs Flink's jars; install them: pip install '{_PACKAGE}==2.3.0' (300 MB)"
        ) from None


def cache_folder() -> Path:
    """Where the user keeps what is made once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "netstack"


def profile() -> str:
    """What the installed Flink behaves as: `flink-1.x` or `flink`, values of `--as`; `flink` if there is none."""
    try:
        return "flink-1.x" if is_flink_1(flink_libraries()) else "flink"
    except MissingExtra:
        return "flink"


def jar_of(sources: Path, libraries: Path) -> Path:
    """The classes of a folder of sources: those of the wheel, or built and kept.

    Raises:
        MissingExtra: there is no compiler for Java.
    """
    carried = sources.parent / JAR  # built for Flink 2.3
    if carried.exists() and not is_flink_1(libraries):
        return carried
    cache = cache_folder()
    kept = cache / f"flink-{_digest(sources, libraries)}.jar"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        javac = _tool("javac")
        try:
            replace_file(kept, lambda aside: build(javac, aside, sources, libraries))
        except CannotBuild as error:
            raise MissingExtra(f"{error}; {_JDK}") from None
    return kept


def _digest(sources: Path, libraries: Path) -> str:
    """Of the sources and of the names of Flink's jars, which have its version."""
    digest = hashlib.sha256()
    for path in jars(libraries):
        digest.update(path.name.encode())
    for path in sorted(sources.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _tool(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(name, path=str(Path(home) / "bin")) if home else None
    path = path or shutil.which(name)
    if path is None:
        raise MissingExtra(f"--peer flink needs {name}, and none is found; {_JDK}")
    return path
