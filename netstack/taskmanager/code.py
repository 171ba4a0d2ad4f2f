"""Which code a TaskManager runs: what its allow list names, what installed packages declare, what a job brought along.

Takes: `package.module:attribute`. Gives: the function or class behind it, imported once.

Three ways lead in. `--allow PREFIX` names packages or modules; `*` is everything. A package that is installed declares
modules of its own by the entry-point group `netstack.invokables`. And where `--allow-submitted` was given, a job may
ship packages as zip files, which are checked by their SHA-256 and found before what is installed; two jobs at once may
not ship different files for one package, since a process has each package once.
"""

from __future__ import annotations

import importlib
import io
import re
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, final

from ..control.build import build_of
from ..control.messages import SLICE_BYTES
from ..errors import ConfigError
from ..runtime.names import load
from ..shown import shown, shown_error, shown_text
from .blob_files import KeptBlob

GROUP: Final = "netstack.invokables"
"""Entry points of this group name modules whose functions every TaskManager runs."""

OWN: Final = ("netstack.task.kept_dataset:",)
"""Sources that netstack brings along, and everybody may run."""

EVERYTHING: Final = "*"

_KEY: Final = re.compile(r"code-[0-9a-f]{64}")


@cache
def _declared() -> tuple[str, ...]:
    """The modules that installed packages declare; looked up once in a process."""
    return tuple(sorted({f"{entry.value}:" for entry in entry_points(group=GROUP)}))


@final
class AllowList:
    """Names that may be run.

    Args:
        prefixes: such as `mypackage.` or `mypackage.jobs:`; each ends where a name may go on. `*` is everything.

    Raises:
        ConfigError: a prefix would let in more than it says.
    """

    def __init__(self, prefixes: Iterable[str] = ()) -> None:
        self.prefixes = (*_declared(), *prefixes)
        self._is_open = EVERYTHING in self.prefixes
        for prefix in self.prefixes:
            if prefix != EVERYTHING and (not prefix.endswith((".", ":")) or prefix[0] in ".:"):
                raise ConfigError(
                    f"--allow {prefix!r}: end it with '.' (all modules of a package) or ':' (all of a module),"
                    " such as mypackage. or mypackage.jobs:, or give '*' for everything"
                )

    def allows(self, name: str) -> bool:
        """Whether a name may be run."""
        return self._is_open or name.startswith((*self.prefixes, *OWN))

    def check(self, name: str, shipped: Iterable[str] = ()) -> None:
        """Whether a name may be run.

        Args:
            name: which.
            shipped: packages that its job brought along.

        Raises:
            ConfigError: no.
        """
        if not self.allows(name) and root_package(name) not in shipped:
            allowed = ", ".join(f"{each}*" for each in self.prefixes) or "nothing"
            raise ConfigError(
                f"{shown(name, 120)} may not be run here: allowed are {allowed}; start the TaskManager with --allow"
                " PACKAGE. to add yours"
            )

    def load(self, name: str, shipped: Iterable[str] = ()) -> Callable[..., Any]:
        """What a name stands for. Imports its module: call it in a thread.

        Raises:
            ConfigError: it may not be run, or is not there.
        """
        self.check(name, shipped)
        try:
            loaded = load(name)
        except ConfigError:
            raise
        except BaseException as error:  # a module may do anything while it is imported, sys.exit() included
            raise ConfigError(f"{shown(name, 120)} cannot be imported: {shown_error(error)}") from error
        qualified = getattr(loaded, "__qualname__", None)
        home = f"{getattr(loaded, '__module__', '')}:{qualified}"
        if qualified is not None and not self.allows(home) and root_package(home) not in shipped:
            raise ConfigError(
                f"{shown(name, 120)} is {home}, which may not be run here: an allowed module that imports something"
                " does not allow it"
            )
        return loaded


@final
class ShippedCode:
    """Packages that jobs brought along, in a folder of their own while they are used."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._used: dict[str, tuple[str, set[str]]] = {}
        """By package: its key, and the jobs that use it."""
        self._lock = threading.Lock()

    def put(self, job_id: str, package: str, blob: KeptBlob) -> None:
        """Makes a package importable. Touches files: call it in a thread, one call at a time.

        Args:
            job_id: whose.
            package: its name; the zip file holds it at its top.
            blob: the zip file; its key is `code-` and its SHA-256, in hex.

        Raises:
            BlobError: it is damaged.
            ConfigError: it is no package or more than that, has a name of Python's, or another job uses another one of
                that name.
        """
        if not _KEY.fullmatch(blob.key):
            raise ConfigError(f"package {shown(package, 80)}: {shown(blob.key, 80)} is no key of a package")
        blob.check()
        if not package.isidentifier():
            raise ConfigError(f"{shown(package, 80)} is no name of a package")
        if package in sys.stdlib_module_names:
            raise ConfigError(f"package {package!r} is shipped, and Python has a module of that name: rename it")
        check_contents(package, blob.read())
        with self._lock:
            self._put(job_id, package, blob)
            self._sweep()

    def _put(self, job_id: str, package: str, blob: KeptBlob) -> None:
        key = blob.key
        used = self._used.get(package)
        if used is not None and used[1]:
            if used[0] != key:
                raise ConfigError(
                    f"package {package!r} was shipped with other content by job {min(used[1])}, which runs here: a"
                    " process has each package once; end that job first, or rename the package"
                )
            used[1].add(job_id)
            return
        if package in sys.modules and used is None:
            raise ConfigError(
                f"package {package!r} is shipped, and one of that name is installed and in use here: rename it, or"
                " start a TaskManager that has not imported it"
            )
        if used is not None and used[0] != key:
            self._forget(package, used[0])
        path = self._path(key)
        if not path.exists():
            with open(path, "wb") as file:
                for offset in range(0, blob.size_bytes, SLICE_BYTES):
                    file.write(blob.read(offset, SLICE_BYTES))
        if str(path) not in sys.path:
            sys.path.insert(0, str(path))
        importlib.invalidate_caches()
        self._used[package] = key, {job_id}

    def job_left(self, job_id: str) -> None:
        """No task of the job is left; what it alone shipped goes, so that nobody else finds it."""
        for _, jobs in [*self._used.values()]:
            jobs.discard(job_id)
        if self._lock.acquire(blocking=False):  # else whoever puts something sweeps afterwards
            try:
                self._sweep()
            finally:
                self._lock.release()

    def _sweep(self) -> None:
        for package, (key, jobs) in [*self._used.items()]:
            if not jobs:
                self._forget(package, key)
                del self._used[package]
                if all(other != key for other, _ in self._used.values()):
                    self._path(key).unlink(missing_ok=True)

    def close(self) -> None:
        """Forgets everything."""
        for package, (key, _) in self._used.items():
            self._forget(package, key)
        self._used.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _path(self, key: str) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="netstack-code-")
        return Path(self._folder.name) / f"{key}.zip"

    def _forget(self, package: str, key: str) -> None:
        path = str(self._path(key))
        if path in sys.path:
            sys.path.remove(path)
        sys.path_importer_cache.pop(path, None)
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]
        build_of.cache_clear()


def check_contents(package: str, data: bytes) -> None:
    """A zip file on the path holds modules for everybody: so it has this package, and nothing beside it."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise ConfigError(f"package {package!r} is no zip file: {shown_error(error)}") from error
    for name in names:
        if name != f"{package}.py" and (not name.startswith(f"{package}/") or ".." in name.split("/")):
            raise ConfigError(
                f"the zip file of package {package!r} holds {shown(name, 80)} beside it; ship one package a file"
            )


def check_builds(packages: Iterable[str], theirs: Mapping[str, str]) -> None:
    """Compares code with what the sender has. Reads files: call it in a thread.

    Args:
        packages: those that functions of the job are in, allowed and loaded; what else the sender names is not looked
            at.
        theirs: the sender's builds; of a package that it does not name it has no opinion.

    Raises:
        ConfigError: a package is another build here.
    """
    for package in packages:
        there = theirs.get(package)
        if there is None:
            continue
        here = build_of(package)
        if here != there:
            raise ConfigError(
                f"package {package!r} is build {here} here, and {shown_text(there, 40)} where the job was submitted:"
                " install one release on every host, and restart the TaskManagers"
            )


def root_package(name: str) -> str:
    """The package a name is in."""
    return name.partition(":")[0].partition(".")[0]
