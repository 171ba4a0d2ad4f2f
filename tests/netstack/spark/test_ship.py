"""What is sent to executors: the driver's build, from an installed copy that equals it or from the archive."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from netstack.base import build, compiled
from netstack.base.own_packages import OWN_PACKAGES
from netstack.cluster.control.build import own_build
from netstack.spark.launcher import INSIDE, PACKAGES, Copy, installed, sources_digest, unpacked
from netstack.spark.ship import archive_bytes, ship

ROOT = Path(build.__file__).parents[2]
PROBE = """
import netstack_bench.places.hosts.invokables
import netstack
from netstack import build
from netstack.cluster.control.build import own_build
from netstack.base.transport import transport_for
print(netstack.__file__, netstack_bench.__file__, type(transport_for("tcp://127.0.0.1:0")).__module__, sep="\\t")
print(own_build(), build.kind, sep="\\t")
"""


class Session:
    """What `ship` needs of a session and of its SparkContext."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.listFiles: list[str] = []

    def addPyFile(self, path: str) -> None:
        self.listFiles.append(f"file:{path}")
        sys.path.insert(1, path)  # as SparkContext does


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "netstack-0123.zip"
    path.write_bytes(archive_bytes())
    return path


def worker(archive: Path, *before: Path) -> list[list[str]]:
    """What a worker says that has the archive in its path, and folders behind it."""
    path = os.pathsep.join(map(str, (archive, *before)))
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROBE],
        capture_output=True,
        text=True,
        check=True,
        cwd=archive.parent,
        env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(archive.parent)},
    )
    return [line.split("\t") for line in done.stdout.splitlines()]  # a folder may have a blank in its name


def test_equal_source_makes_an_equal_archive() -> None:
    data = archive_bytes()
    assert archive_bytes() == data
    names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert f"{INSIDE}/netstack/cluster/taskmanager/service.py" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith("/")]
    assert any("/_compiled/" in name for name in names) is (build.kind == "compiled")


def test_the_launcher_selects_each_of_our_packages() -> None:
    assert PACKAGES == OWN_PACKAGES  # it is sent alone, so it has its own list


def test_a_session_is_sent_it_once_and_this_process_goes_on_with_its_own() -> None:
    session, path = Session(), list(sys.path)
    assert ship(session) == ship(session)
    (sent,) = session.listFiles
    assert Path(sent.removeprefix("file:")).exists()
    assert sys.path == path


@pytest.mark.slow
def test_an_installed_copy_that_is_the_drivers_is_taken(archive: Path) -> None:
    places, builds = worker(archive, ROOT)
    assert places == [
        str(ROOT / "netstack/__init__.py"),
        str(ROOT / "bench/netstack_bench/__init__.py"),
        "netstack_transports.tcp",
    ]
    assert builds == [own_build(), build.kind]
    assert not list(archive.parent.glob("netstack-copies-*"))


@pytest.mark.slow
def test_of_another_copy_nothing_is_imported(archive: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(ROOT / "netstack", other / "netstack", ignore=shutil.ignore_patterns("__pycache__", "_compiled"))
    with (other / "netstack/base/errors.py").open("a") as edited:
        edited.write("# edited\n")
    places, builds = worker(archive, other)
    copy = tmp_path / f"netstack-copies-{os.getuid()}" / archive.stem
    assert places == [
        str(copy / "netstack/__init__.py"),
        str(copy / "netstack_bench/__init__.py"),
        "netstack_transports.tcp",
    ]
    assert builds == [own_build(), build.kind]


def test_a_copy_is_the_drivers_only_file_by_file_and_compiled_where_that_is(tmp_path: Path) -> None:
    packages = [tmp_path / name for name in PACKAGES]
    for package in packages:
        package.mkdir()
        (package / "__init__.py").write_text("")
    (packages[0] / "base").mkdir()
    shutil.copy(compiled.__file__, packages[0] / "base")
    sources = sources_digest(packages)
    assert installed(Copy(sources, is_compiled=False), [str(tmp_path)]) == packages
    assert installed(Copy(sources, is_compiled=True), [str(tmp_path)]) is None  # nothing was compiled there
    (packages[-1] / "page.css").write_text("")
    assert installed(Copy(sources, is_compiled=False), [str(tmp_path)]) is None
    assert installed(Copy(sources, is_compiled=False), []) is None


@pytest.mark.slow
def test_processes_that_start_at_once_unpack_once(archive: Path, tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    code = (
        "import sys, pathlib, zipfile; from netstack.spark import launcher\n"
        "extract, count = zipfile.ZipFile.extractall, []\n"
        "zipfile.ZipFile.extractall = lambda *a, **k: (count.append(1), extract(*a, **k))\n"
        "root = launcher.unpacked(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))\n"
        "print(len(count), (root / 'netstack/spark/launcher.py').is_file())"
    )
    command = [sys.executable, "-c", code, str(archive), str(below)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    reported = sorted(each.communicate()[0].split() for each in running)
    assert reported == [["0", "True"]] * 3 + [["1", "True"]]


def test_an_old_copy_goes_when_another_is_unpacked(archive: Path, tmp_path: Path) -> None:
    below = tmp_path / "below"
    for name, age_s in (("old", 31 * 24 * 3600), ("new", 60)):
        (below / name).mkdir(parents=True)
        os.utime(below / name, (0, (below / name).stat().st_mtime - age_s))
    unpacked(archive, below)
    assert sorted(each.name for each in below.iterdir() if each.is_dir()) == [archive.stem, "new"]


def test_a_folder_that_others_may_write_is_refused(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"netstack-copies-{os.getuid()}").mkdir()
    (tmp_path / f"netstack-copies-{os.getuid()}").chmod(0o777)
    with pytest.raises(ImportError, match="other users can write"):
        unpacked(archive)
