"""Ships netstack, and packages of jobs, to executors as archives of the driver's own copy.

The archive of netstack starts with the `launcher`, which selects between the archive and an installed copy. Spark
ignores wheels without an error. The dependencies of netstack (trio, numpy, msgpack, lz4) have compiled parts, so they
must be installed on the workers: the same virtual environment, named by `PYSPARK_PYTHON`. That environment may have
netstack too, even another release: a worker imports it only if it equals the driver's copy, file by file. A worker's
working folder would precede the archive in the path, so `Driver.archives_first` removes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..base import build, compiled
from ..base.errors import ConfigError
from ..base.own_packages import package_folders
from ..base.scratch import folder_until_exit
from ..cluster.control.build import build_of
from ..cluster.jobmanager.shipping import zip_package
from . import launcher
from .drivers import driver_of
from .launcher import INSIDE, PACKAGES, Copy, files_of, sources_digest

_DATED: Final = (1980, 1, 1, 0, 0, 0)  # equal sources give an equal archive


def ship(spark: Any) -> str:
    """Sends netstack to all executors of a session, once.

    Returns:
        The name of the archive, which has a hash of the content.

    Raises:
        ConfigError: the package is not installed as files.
    """
    return _add(spark, "netstack", archive_bytes())


def ship_package(spark: Any, name: str) -> tuple[str, str]:
    """Sends a package or a module to all executors of a session, once, and again after a change.

    Args:
        spark: the session.
        name: the name by which it is imported here, or the path of its folder or file.

    Returns:
        The name of the package, and the name of its zip, for `import_anew`.

    Raises:
        ConfigError: the package is missing or cannot be read.
    """
    package = zip_package(name)
    build_of.cache_clear()  # its files may have changed
    return package.name, _add(spark, package.name, package.data)


def import_anew(archives: Mapping[str, str]) -> None:
    """Makes a worker import packages from these zips, even if an earlier job of the session has imported them.

    Args:
        archives: the zip of each package, by package name (`ship_package`).
    """
    from pyspark import SparkFiles

    for package, archive in archives.items():
        place = SparkFiles.get(archive)
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == package and place not in str(getattr(module, "__file__", "")):
                del sys.modules[name]
        if place in sys.path:
            sys.path.remove(place)
        sys.path.insert(0, place)
    importlib.invalidate_caches()
    build_of.cache_clear()


def archive_bytes() -> bytes:
    """Returns the archive: the launcher, and our packages with the machine code of this process.

    Raises:
        ConfigError: a package is not installed as files.
    """
    places = package_folders()
    files = dict(files_of(places))
    for package in PACKAGES:
        if f"{package}/__init__.py" not in files:
            raise ConfigError(f"package {package!r} is not installed as files, so it cannot be sent to executors")
    copy = Copy(sources_digest(places), build.kind == "compiled")
    if copy.is_compiled:
        machine_code = compiled.compiled_folder(places[0])
        files |= {file.relative_to(places[0].parent).as_posix(): file for file in sorted(machine_code.iterdir())}
    source = Path(launcher.__file__).read_text(encoding="utf-8")
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        start = f"\n\nlaunch(Path(__file__).parent.parent, Copy(*{tuple(copy)!r}))\n"
        for package in PACKAGES:
            _write(archive, f"{package}/__init__.py", (source + start).encode())
        for name, file in files.items():
            _write(archive, f"{INSIDE}/{name}", file.read_bytes())
    return made.getvalue()


def _add(spark: Any, package: str, data: bytes) -> str:
    name = f"{package}-{hashlib.sha256(data).hexdigest()[:16]}.zip"
    driver = driver_of(spark)
    if name not in driver.archives():
        # Executors that start later fetch it too, so it is kept until this process ends.
        path = Path(folder_until_exit("netstack-spark-ship-"), name)
        path.write_bytes(data)
        own = list(sys.path)
        with contextlib.ExitStack() as stack:
            stack.callback(sys.path.__setitem__, slice(None), own)  # addPyFile changes the path of this process too
            driver.add_archive(path)
    return name


def _write(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _DATED)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)
