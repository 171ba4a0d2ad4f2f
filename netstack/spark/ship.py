"""The package under test as one zip that executors can import, made from the driver's own copy.

Takes: the installed or checked-out packages. Gives: a zip with their Python source; `SparkContext.addPyFile` puts it
first in the path of every executor.

A wheel would be ignored there without a word; what a zip cannot hold (trio, numpy, msgpack and lz4 have compiled parts
or data) has to be installed on the workers: the same virtual environment, named by `PYSPARK_PYTHON`. That one may hold
a netstack too, even another release: the zip comes before it. Only the folder a worker was started in would come before
the zip, so its Python is told to leave that out of its path (`imports_from_zip`).
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib
import importlib.util
import io
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ..control.build import build_of
from ..errors import ConfigError
from ..jobmanager.shipping import zip_package
from ..parts import PARTS

PACKAGES: Final = ("netstack", *PARTS)
_SAFE_PATH: Final = "PYTHONSAFEPATH"
_DATED: Final = (1980, 1, 1, 0, 0, 0)  # equal source makes an equal zip


def ship(context: Any) -> str:
    """Sends the zip to all executors of a session, once.

    Args:
        context: a SparkContext.

    Returns:
        The name of the zip, which holds a hash of its content.

    Raises:
        ConfigError: a package is not there as files.
    """
    return _add(context, "netstack", zip_bytes())


def ship_package(context: Any, name: str) -> tuple[str, str]:
    """Sends a package or a module to all executors of a session, once; when it has changed, again.

    Args:
        context: a SparkContext.
        name: by which it is imported here, or the path of its folder or of its file.

    Returns:
        Its name, and that of the zip, for `import_anew`.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    package = zip_package(name)
    build_of.cache_clear()  # its files may have changed since somebody asked
    return package.name, _add(context, package.name, package.data)


def import_anew(archives: Mapping[str, str]) -> None:
    """In a worker: packages come from these zips, whatever an earlier job of the session has imported.

    Args:
        archives: the zip of each package, by name (`ship_package`).
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


def _add(context: Any, package: str, data: bytes) -> str:
    name = f"{package}-{hashlib.sha256(data).hexdigest()[:16]}.zip"
    if not any(str(known).endswith(f"/{name}") for known in context.listFiles):
        # Executors that come later fetch it too, so it stays as long as this process.
        folder = Path(tempfile.mkdtemp(prefix="netstack-spark-ship-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        path = folder / name
        path.write_bytes(data)
        own = list(sys.path)
        context.addPyFile(str(path))
        sys.path[:] = own  # it was put there for this process too, which has what the zip was made from
    return name


@contextlib.contextmanager
def imports_from_zip(context: Any) -> Iterator[None]:
    """Python workers of jobs that are started in the block have the zip first in their path.

    Args:
        context: a SparkContext. Workers of other jobs in the same session have their path as it was.
    """
    before = context.environment.get(_SAFE_PATH)
    context.environment[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del context.environment[_SAFE_PATH]
        else:
            context.environment[_SAFE_PATH] = before


def zip_bytes() -> bytes:
    """The zip.

    Raises:
        ConfigError: a package is not there as files.
    """
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            root = _folder_of(package)
            for source in sorted(root.rglob("*")):
                if source.is_file() and "__pycache__" not in source.parts:
                    _write(archive, f"{root.name}/{source.relative_to(root).as_posix()}", source.read_bytes())
    return made.getvalue()


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places or not Path(places[0]).is_dir():
        raise ConfigError(f"package {package!r} is not there as files, so it cannot be sent to executors")
    return Path(places[0])


def _write(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _DATED)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)
