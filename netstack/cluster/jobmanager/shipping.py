"""Zips packages to ship them with a job.

Takes: names or paths of packages and modules. Gives: zip files that are byte-identical for identical sources.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from ...base.errors import ConfigError

_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)
_LEFT_OUT: Final = frozenset({"__pycache__"})


@final
@dataclass(frozen=True, slots=True)
class ZippedPackage:
    """A package as an importable zip file.

    Attributes:
        data: the zip file; `name` is its top-level entry.
        sha256: SHA-256 of the zip file in hex.
    """

    name: str
    data: bytes
    sha256: str


def zip_package(name: str) -> ZippedPackage:
    """Zips a package or a module.

    Args:
        name: import name, or path of the folder or file.

    Raises:
        ConfigError: there is no such package, or it cannot be read.
    """
    place = _place_of(name)
    module = place.stem if place.is_file() else place.name
    if not module.isidentifier():
        raise ConfigError(f"the name of {place} cannot be imported; use only letters, digits and underscores")
    buffer = io.BytesIO()
    try:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in [place] if place.is_file() else sorted(_files(place)):
                entry = zipfile.ZipInfo(path.relative_to(place.parent).as_posix(), _LONG_AGO)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{place} cannot be read: {error}") from error
    data = buffer.getvalue()
    return ZippedPackage(module, data, hashlib.sha256(data).hexdigest())


def _place_of(name: str) -> Path:
    path = Path(name)
    if path.is_dir() or path.suffix == ".py":
        path = path.absolute()
        if not path.exists():
            raise ConfigError(f"{name} does not exist; give a package name, a folder or a .py file")
        return path
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{name!r} is neither a package, nor a folder, nor a .py file")
    if "." in name:
        raise ConfigError(f"{name!r} is inside a package; ship the whole package {name.partition('.')[0]}")
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"package {name!r} cannot be imported: {error}") from error
    places = [] if spec is None else [*(spec.submodule_search_locations or [spec.origin or ""])]
    entries = [Path(place) for place in places if Path(place).exists()]
    if len(entries) != 1:
        raise ConfigError(f"package {name!r} is not a single folder or file here; give its path")
    return entries[0]


def _files(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.name.startswith(".") or entry.name in _LEFT_OUT:
            continue
        if entry.is_dir():
            yield from _files(entry)
        elif entry.suffix != ".pyc":
            yield entry
