"""Selects the copy of netstack that a Python worker of Spark imports, so that workers run the driver's code.

The driver ships an archive that has this file as the `__init__.py` of each package, and the packages in its folder
`copy`. When a worker imports one of them, `launch` imports the installed packages if their sources equal the driver's
and they are compiled where the driver's are. Otherwise it unpacks the archive, once for each host: Python cannot load
machine code from a zip.
This module uses the standard library only, because netstack is not imported yet.

Rules: archives are unpacked below the temporary folder of the host, in a folder that only this user can write, named by
the digest of the archive; a lock lets one process unpack while the others wait. A folder that no worker has used for a
month is deleted.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import stat
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Final, NamedTuple

PACKAGES: Final = ("netstack", "netstack_transports", "netstack_bench")
INSIDE: Final = "copy"
PURE: Final = "NETSTACK_PURE"
_UNUSED_S: Final = 30 * 24 * 3600.0


class Copy(NamedTuple):
    """The driver's copy of netstack.

    Attributes:
        sources: `sources_digest` of the packages.
        is_compiled: whether the data path is machine code.
    """

    sources: str
    is_compiled: bool


def files_of(packages: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yields the files of the packages in these folders, by name, in order, without machine code and bytecode."""
    for package in packages:
        for folder, folders, names in os.walk(package):
            folders[:] = sorted(each for each in folders if each not in ("__pycache__", "_compiled"))
            place = Path(folder)
            for name in sorted(names):
                yield (place / name).relative_to(package.parent).as_posix(), place / name


def sources_digest(packages: Iterable[Path]) -> str:
    """Returns a digest of the packages in these folders, which is equal if and only if all files are equal.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, file in files_of(packages):
        data = file.read_bytes()
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def launch(archive: Path, copy: Copy) -> None:
    """Imports our packages, which replace this module in `sys.modules`.

    Raises:
        ImportError: the archive cannot be unpacked, and no installed copy equals the driver's.
    """
    if not copy.is_compiled:
        os.environ[PURE] = "1"  # run Python, like the driver
    places = installed(copy, [each for each in sys.path if each not in ("", str(archive))])
    for place in places or [unpacked(archive) / package for package in PACKAGES]:
        spec = importlib.util.spec_from_file_location(
            place.name, place / "__init__.py", submodule_search_locations=[str(place)]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{place} is not a package")
        module = importlib.util.module_from_spec(spec)
        sys.modules[place.name] = module
        spec.loader.exec_module(module)


def installed(copy: Copy, path: Sequence[str]) -> list[Path] | None:
    """Returns the folders of the packages of an installed copy that equals the driver's; None if there is none.

    Args:
        copy: the driver's copy.
        path: the folders to search.
    """
    specs = [PathFinder.find_spec(package, path) for package in PACKAGES]
    places = [Path(spec.origin).parent for spec in specs if spec is not None and spec.origin is not None]
    try:
        if len(places) != len(PACKAGES) or sources_digest(places) != copy.sources:
            return None
    except OSError:
        return None
    return places if not copy.is_compiled or _is_compiled(places[0]) else None


def unpacked(archive: Path, below: Path | None = None) -> Path:
    """Returns the folder with the archive's packages; unpacks it if no other process of this host has.

    Args:
        archive: a zip with its digest in its name.
        below: the folder to unpack in; None is this user's folder in the temporary folder.

    Raises:
        ImportError: the folder belongs to another user, or cannot be written.
    """
    try:
        cache = below or _own_folder()
        with _locked(cache / "lock"):
            root = cache / archive.stem
            if not root.is_dir():
                _remove_unused(cache)
                part = cache / f"{archive.stem}.part"
                shutil.rmtree(part, ignore_errors=True)
                with zipfile.ZipFile(archive) as opened:
                    opened.extractall(part, [each for each in opened.namelist() if each.startswith(f"{INSIDE}/")])
                (part / INSIDE).rename(root)
                part.rmdir()
            os.utime(root)
        return root
    except OSError as error:
        raise ImportError(f"netstack's archive cannot be unpacked on this host: {error}; set TMPDIR there") from error


def _is_compiled(package: Path) -> bool:
    """Whether netstack in this folder has machine code of its sources for this Python."""
    spec = importlib.util.spec_from_file_location("netstack_compiled", package / "base" / "compiled.py")
    assert spec is not None
    assert spec.loader is not None
    compiled: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compiled)
    return compiled.current_manifest(package)[0] is not None


def _own_folder() -> Path:
    folder = Path(tempfile.gettempdir(), f"netstack-copies-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"other users can write {folder}")  # and could put code there
    return folder


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def _remove_unused(cache: Path) -> None:
    for folder in cache.iterdir():
        if folder.is_dir() and time.time() - folder.stat().st_mtime > _UNUSED_S:
            shutil.rmtree(folder, ignore_errors=True)
