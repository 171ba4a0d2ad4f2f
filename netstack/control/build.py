"""What code a process runs: a short hash of a package's source, to be compared with that of another process.

Takes: names of packages. Gives: twelve hex digits each, equal exactly when every line of Python is.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from importlib.resources.abc import Traversable
from pathlib import Path
from zipfile import BadZipFile
from zipfile import Path as ZipPath

from ..errors import ConfigError


def own_build() -> str:
    """The build of netstack itself."""
    return build_of("netstack")


@functools.cache
def build_of(package: str) -> str:
    """The build of a package or of a module, from a folder or from a zip.

    Raises:
        ConfigError: there is no such package, or its source is not there.
    """
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"package {package!r} cannot be looked at: {error}") from error
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
        raise ConfigError(f"package {package!r} is not installed here")
    digest = hashlib.sha256()
    try:
        for place in sorted(spec.submodule_search_locations or ()):
            for name, source in sorted(_sources(_traversable(place), "")):
                digest.update(f"{name}\n".encode() + source.read_bytes() + b"\n")
        if spec.origin is not None and not spec.submodule_search_locations:
            digest.update(_traversable(spec.origin).read_bytes())
    except (OSError, KeyError, BadZipFile) as error:
        raise ConfigError(f"the source of package {package!r} cannot be read: {error}") from error
    return digest.hexdigest()[:12]


def _sources(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    sources = []
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            sources += _sources(entry, f"{name}/")
        elif name.endswith(".py"):
            sources.append((name, entry))
    return sources


def _traversable(place: str) -> Traversable:
    """A path that may lead into a zip."""
    path = Path(place)
    for parent in (path, *path.parents):
        if parent.is_file() and parent != path:
            inside = path.relative_to(parent).as_posix()
            return ZipPath(parent, inside if inside.endswith(".py") else f"{inside}/")
    return path
