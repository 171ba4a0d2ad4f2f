"""Selects the copy of netstack that a Python worker of Spark imports, so that workers run the driver's code.

The driver ships an archive that has this file as `netstack/__init__.py`, and the package in its folder `copy`. When a
worker imports netstack, `launch` imports the installed package if its sources equal the driver's and it is compiled
where the driver's is. Otherwise it unpacks the archive, once for each host: Python cannot load machine code from a zip.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Final, NamedTuple

PACKAGE: Final = "netstack"
INSIDE: Final = "copy"
PURE: Final = "NETSTACK_PURE"
_UNUSED_S: Final = 30 * 24 * 3600.0


class Copy(NamedTuple):
    """The driver's copy of netstack.

    Attributes:
        sources: `sources_digest` of the package.
        is_compiled: whether the data path is machine code.
    """

    sources: str
    is_compiled: bool


def files_of(root: Path) -> Iterator[tuple[str, Path]]:
    """Yields the files of the package below `root`, by name, in order, without machine code and bytecode."""
    for folder, folders, names in os.walk(root / PACKAGE):
        folders[:] = sorted(each for each in folders if each not in ("__pycache__", "_compiled"))
        place = Path(folder)
        for name in sorted(names):
            yield (place / name).relative_to(root).as_posix(), place / name


def sources_digest(root: Path) -> str:
    """Returns a digest of the package below `root`, which is equal if and only if all files are equal.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, file in files_of(root):
        data = file.read_bytes()
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def launch(archive: Path, copy: Copy) -> None:
    """Imports netstack, which replaces this module in `sys.modules`.

    Raises:
        ImportError: the archive cannot be unpacked, and no installed copy equals the driver's.
    """
    if not copy.is_compiled:
        os.environ[PURE] = "1"  # run Python, like the driver
    root = installed(copy, [each for each in sys.path if each not in ("", str(archive))]) or unpacked(archive)
    place = root / PACKAGE
    spec = importlib.util.spec_from_file_location(
        PACKAGE, place / "__init__.py", submodule_search_locations=[str(place)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} is not a package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = module
    spec.loader.exec_module(module)


def installed(copy: Copy, path: Sequence[str]) -> Path | None:
    """Returns the folder of an installed copy that equals the driver's; None if there is none.

    Args:
        copy: the driver's copy.
        path: the folders to search.
    """
    spec = PathFinder.find_spec("netstack", path)
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent.parent
    try:
        if sources_digest(root) != copy.sources:
            return None
    except OSError:
        return None
    return root if not copy.is_compiled or _is_compiled(root) else None


def unpacked(archive: Path, below: Path | None = None) -> Path:
    """Returns the folder with the archive's package; unpacks it if no other process of this host has.

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


def _is_compiled(root: Path) -> bool:
    """Whether the package has machine code of its sources for this Python."""
    spec = importlib.util.spec_from_file_location("netstack_compiled", root / "netstack" / "compiled.py")
    assert spec is not None
    assert spec.loader is not None
    compiled: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compiled)
    return compiled.current_manifest(root / "netstack")[0] is not None


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
