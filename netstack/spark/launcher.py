"""What a Python worker of Spark runs when it first imports netstack: it chooses the copy that is the driver's.

Takes: the archive this file travels in, and what the driver runs (`Copy`). Gives: the installed package if its
source is the driver's and compiled where the driver's is; else that of the archive, unpacked once a host.

The archive has this file as `netstack/__init__.py`, and the package itself in its folder `copy`. A zip
cannot hold machine code, a folder can. The standard library is all this needs: netstack is not there yet.

Rules: archives are unpacked below the temporary folder of the host, in a folder that only this user may write, named by
the digest of the archive; a lock lets one process unpack and the others wait. A folder that no worker has started from
for a month is removed.
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
    """What the driver runs.

    Attributes:
        sources: `sources_digest` of its package.
        is_compiled: whether its data path is machine code.
    """

    sources: str
    is_compiled: bool


def files_of(root: Path) -> Iterator[tuple[str, Path]]:
    """Files of the package below `root`, by name, in order; machine code and bytecode left out."""
    for folder, folders, names in os.walk(root / PACKAGE):
        folders[:] = sorted(each for each in folders if each not in ("__pycache__", "_compiled"))
        place = Path(folder)
        for name in sorted(names):
            yield (place / name).relative_to(root).as_posix(), place / name


def sources_digest(root: Path) -> str:
    """What the package below `root` is recognised by; equal exactly when all its files are.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, file in files_of(root):
        data = file.read_bytes()
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def launch(archive: Path, copy: Copy) -> None:
    """Imports netstack in place of the file in the archive that has its name.

    Raises:
        ImportError: the archive cannot be unpacked here, and no installed copy is the driver's.
    """
    if not copy.is_compiled:
        os.environ[PURE] = "1"  # what is compared with the driver runs as it does there
    root = installed(copy, [each for each in sys.path if each not in ("", str(archive))]) or unpacked(archive)
    place = root / PACKAGE
    spec = importlib.util.spec_from_file_location(
        PACKAGE, place / "__init__.py", submodule_search_locations=[str(place)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} is no package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = module
    spec.loader.exec_module(module)


def installed(copy: Copy, path: Sequence[str]) -> Path | None:
    """Where a copy as the driver's is installed; None if there is none.

    Args:
        copy: the driver's.
        path: folders to look in.
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
    """The folder with the archive's package, unpacked if no other process of this host has done so.

    Args:
        archive: a zip whose name holds its digest.
        below: where to unpack; None is a folder of this user's in the temporary folder.

    Raises:
        ImportError: that folder belongs to somebody else, or cannot be written.
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
    """Whether machine code of these very sources is there for this Python."""
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
        raise PermissionError(f"{folder} may be written by others")  # they could put code there
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
