"""The code that a TaskManager may run: allowed prefixes, declared modules, and packages shipped with jobs.

Takes: `package.module:attribute`. Gives: the function or class, imported once.

Code is allowed in three ways. `--allow PREFIX` names packages or modules; `*` allows everything. An installed package
declares modules with the entry-point group `netstack.invokables`. With `--allow-submitted`, jobs may ship packages as
zip files, which are checked by their SHA-256 and take precedence over installed packages. Since a process imports each
package once, two concurrent jobs cannot ship different versions of one package.
"""

from __future__ import annotations

import importlib
import io
import logging
import re
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, final

from ...base.errors import ConfigError
from ...base.scratch import scratch_folder
from ...base.text.safe_text import safe_error, safe_repr, safe_text
from ...base.units import format_size
from ...schedule.descriptors.blob_store import BlobError
from ..control.build import build_of
from ..function_loading import load
from .blob_reader import KeptBlob

LOGGER: Final = logging.getLogger("netstack.taskmanager")

GROUP: Final = "netstack.invokables"
"""Entry points of this group name modules whose functions every TaskManager may run."""

OWN: Final = ("netstack.cluster.task.kept_dataset:", "netstack.task.kept_dataset:")
"""netstack's own sources, which are always allowed; the second name is in jobs that 0.4 stored."""

EVERYTHING: Final = "*"

_KEY: Final = re.compile(r"code-[0-9a-f]{64}")


@cache
def _declared() -> tuple[str, ...]:
    """Returns the modules that installed packages declare; cached for the process."""
    modules = set()
    for entry in entry_points(group=GROUP):
        if all(part.isidentifier() for part in entry.value.split(".")):
            modules.add(f"{entry.value}:")
        else:
            LOGGER.warning(
                "entry point %s of group %s is ignored: %s is not the name of a module",
                safe_repr(entry.name, 80),
                GROUP,
                safe_repr(entry.value, 80),
            )
    return tuple(sorted(modules))


@final
class AllowList:
    """The names that may be run.

    Args:
        prefixes: such as `mypackage.` or `mypackage.jobs:`; each ends with `.` or `:`. `*` allows everything.

    Raises:
        ConfigError: a prefix does not end with `.` or `:`, and could match other packages.
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
        """Checks that a name may be run.

        Raises:
            ConfigError: the name is not allowed.
        """
        if not self.allows(name) and root_package(name) not in shipped:
            allowed = ", ".join(f"{each}*" for each in self.prefixes) or "nothing"
            module = name.partition(":")[0]
            wanted = f"{root_package(name)}." if "." in module else f"{module}:"
            raise ConfigError(
                f"{safe_repr(name, 120)} may not run on this TaskManager, which allows {allowed}; to allow it, start"
                f" the TaskManager with --allow {safe_repr(wanted, 120)}"
            )

    def load(self, name: str, shipped: Iterable[str] = ()) -> Callable[..., Any]:
        """Imports and returns what a name refers to; call it in a thread.

        Raises:
            ConfigError: the name is not allowed, or does not exist.
        """
        self.check(name, shipped)
        try:
            loaded = load(name)
        except ConfigError:
            raise
        except BaseException as error:  # importing may run any code, also sys.exit()
            raise ConfigError(
                f"{safe_repr(name, 120)} cannot be imported: {safe_error(error)}; every process of a job imports its"
                ' module, so write if __name__ == "__main__": before what only the program does'
            ) from error
        qualified = getattr(loaded, "__qualname__", None)
        home = f"{getattr(loaded, '__module__', '')}:{qualified}"
        if qualified is not None and not self.allows(home) and root_package(home) not in shipped:
            raise ConfigError(
                f"{safe_repr(name, 120)} is {home}, which is not allowed here: importing it into an allowed module does"
                " not allow it; add --allow for its own module"
            )
        return loaded


@final
class ShippedCode:
    """The packages that jobs shipped, in a temporary folder while they are in use."""

    def __init__(self) -> None:
        self._folder = ""
        self._removing = ExitStack()
        self._used: dict[str, tuple[str, set[str]]] = {}
        """Key and using jobs, by package."""
        self._lock = threading.Lock()

    def put(self, job_id: str, package: str, blob: KeptBlob) -> None:
        """Makes a package importable. Accesses files: call it in a thread, one call at a time.

        Args:
            job_id: id of the job.
            package: name of the package, the top-level entry of the zip file.
            blob: the zip file; its key is `code-` and its SHA-256 in hex.

        Raises:
            BlobError: the zip file is damaged.
            ConfigError: the zip file has other contents, the name is that of a Python module, or another job uses a
                different package of that name.
        """
        if not _KEY.fullmatch(blob.key):
            raise ConfigError(
                f"package {safe_repr(package, 80)}: {safe_repr(blob.key, 80)} is not the key of a package"
            )
        blob.check()
        if not package.isidentifier():
            raise ConfigError(f"{safe_repr(package, 80)} is not a package name")
        if package in sys.stdlib_module_names:
            raise ConfigError(f"shipped package {package!r} has the name of a Python standard module: rename it")
        contents = checked_archive(package, blob.read())
        with self._lock:
            self._put(job_id, package, blob.key, contents)
            self._sweep()

    def _put(self, job_id: str, package: str, key: str, contents: bytes) -> None:
        used = self._used.get(package)
        if used is not None and used[1]:
            if used[0] != key:
                raise ConfigError(
                    f"package {package!r} was shipped with other contents by job {min(used[1])}, which runs on this"
                    " TaskManager: cancel that job first, or rename the package"
                )
            used[1].add(job_id)
            return
        if package in sys.modules and used is None:
            raise ConfigError(
                f"shipped package {package!r} has the name of an installed package that this TaskManager has imported:"
                " rename it, or restart the TaskManager"
            )
        if used is not None and used[0] != key:
            self._forget(package, used[0])
        path = self._path(key)
        if not path.exists():
            _write(package, path, contents)
        if str(path) not in sys.path:
            sys.path.insert(0, str(path))
        importlib.invalidate_caches()
        self._used[package] = key, {job_id}

    def job_left(self, job_id: str) -> None:
        """Removes the packages that only this ended job used, so that no other job imports them."""
        for _, jobs in [*self._used.values()]:
            jobs.discard(job_id)
        if self._lock.acquire(blocking=False):  # else the running `put` sweeps afterwards
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
        """Removes all packages."""
        for package, (key, _) in self._used.items():
            self._forget(package, key)
        self._used.clear()
        self._removing.close()
        self._folder = ""

    def _path(self, key: str) -> Path:
        if not self._folder:
            self._folder = self._removing.enter_context(scratch_folder(prefix="netstack-code-"))
        return Path(self._folder) / f"{key}.zip"

    def _forget(self, package: str, key: str) -> None:
        path = str(self._path(key))
        if path in sys.path:
            sys.path.remove(path)
        sys.path_importer_cache.pop(path, None)
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]
        build_of.cache_clear()


def _write(package: str, path: Path, contents: bytes) -> None:
    """Writes a package whole, or raises BlobError and leaves nothing."""
    part = path.with_suffix(".part")
    try:
        part.write_bytes(contents)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BlobError(
            f"package {package!r} cannot be written to {path.parent}: {error.strerror or error}; free space there, or"
            " set TMPDIR to a folder on a larger disk"
        ) from error


MAX_CONTENTS_BYTES: Final = 1 << 28
"""Size of all files of a package, unpacked."""


def checked_archive(package: str, data: bytes) -> bytes:
    """Checks that a zip file contains this package and nothing else, since it goes on the import path.

    Returns:
        A zip file that is written anew from what was checked: Python's importer reads another directory of a zip file
        than `zipfile` does, if there are two.

    Raises:
        ConfigError: it is no zip file, is damaged or too large, or contains something else.
    """
    contents: dict[str, bytes] = {}
    left = MAX_CONTENTS_BYTES
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                _check_name(package, entry.filename)
                if entry.is_dir():
                    continue
                with archive.open(entry) as file:
                    contents[entry.filename] = file.read(left + 1)
                left -= len(contents[entry.filename])
                if left < 0:
                    raise ConfigError(
                        f"package {package!r} has more than {format_size(MAX_CONTENTS_BYTES)} unpacked: ship fewer"
                        " files, or install it on the hosts"
                    )
    except ConfigError:
        raise
    except Exception as error:  # what `zipfile` and its decoders raise for damaged files is not documented
        raise ConfigError(f"package {package!r} is not a zip file: {safe_error(error)}") from error
    checked = io.BytesIO()
    with zipfile.ZipFile(checked, "w") as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return checked.getvalue()


def _check_name(package: str, name: str) -> None:
    if name != f"{package}.py" and (not name.startswith(f"{package}/") or ".." in name.split("/")):
        raise ConfigError(
            f"the zip file of package {package!r} also contains {safe_repr(name, 80)}; ship one package per zip"
        )


def check_builds(packages: Iterable[str], theirs: Mapping[str, str]) -> None:
    """Compares the source of packages with that of the submitting client. Reads files: call it in a thread.

    Args:
        packages: packages with functions of the job, allowed and loaded.
        theirs: the client's source fingerprints; missing packages are not compared.

    Raises:
        ConfigError: the source of a package differs.
    """
    for package in packages:
        there = theirs.get(package)
        if there is None:
            continue
        here = build_of(package)
        if here != there:
            raise ConfigError(
                f"package {package!r} is build {here} on this TaskManager, but"
                f" {safe_text(there, 40)} where the job was"
                " submitted: install one release on every host and restart the TaskManagers, or use --ship"
            )


def root_package(name: str) -> str:
    """Returns the top-level package of a name."""
    return name.partition(":")[0].partition(".")[0]
