"""Source fingerprints: a short hash of a package's source, which two processes compare.

Takes: package names. Gives: twelve hex digits for each, equal exactly when all Python source is equal.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from importlib.resources.abc import Traversable
from pathlib import Path
from zipfile import BadZipFile, Path as ZipPath

from ...base.errors import ConfigError
from ...base.own_packages import OWN_PACKAGES


def own_build() -> str:
    """Returns the fingerprint of netstack itself, with all its packages."""
    return hashlib.sha256("".join(map(build_of, OWN_PACKAGES)).encode()).hexdigest()[:12]


@functools.cache
def build_of(package: str) -> str:
    """Returns the fingerprint of a package or module, read from a folder or from a zip file.

    Raises:
        ConfigError: the package is not installed, or its source cannot be read.
    """
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"package {package!r} cannot be imported: {error}") from error
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
        raise ConfigError(f"package {package!r} is not installed on this host; install it here as well")
    digest = hashlib.sha256()
    try:
        for place in sorted({*(spec.submodule_search_locations or ())}):  # once each, also if the path has it twice
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
    """Returns the entry of a path that may lead into a zip file."""
    path = Path(place)
    for parent in (path, *path.parents):
        if parent.is_file() and parent != path:
            inside = path.relative_to(parent).as_posix()
            return ZipPath(parent, inside if inside.endswith(".py") else f"{inside}/")
    return path
