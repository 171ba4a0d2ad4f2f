"""What may be run: names on the list, and nothing that only looks like one."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import os
import struct
import subprocess
import sys
import tempfile
import zipfile
import zipimport
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from netstack.base.errors import ConfigError
from netstack.cluster.control.build import build_of
from netstack.cluster.taskmanager import code
from netstack.cluster.taskmanager.blob_reader import KeptBlob
from netstack.cluster.taskmanager.code import AllowList, ShippedCode, check_builds, checked_archive, root_package
from netstack.schedule.descriptors.blob_store import BlobError
from netstack.schedule.descriptors.descriptors import BlobKey

JOBS = AllowList(["userjobs."])


@pytest.mark.parametrize(
    "prefix", ["", "a", "mypackage", "mypackage.jobs", ".", ":", ".a.", ":a:", "mypackage.jobs:run", "**"]
)
def test_a_prefix_that_would_let_in_more_than_it_says_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match=r"end it with '\.' .* or ':'"):
        AllowList([prefix])


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "",
        "userjobs",
        "userjobs:words",
        "userjobsevil.jobs:words",
        "netstack_bench.places.hosts.invokablesevil:source",
        "netstack_bench.places.hosts:invokables.source",
        " userjobs.jobs:words",
        "USERJOBS.jobs:words",
        "./userjobs.jobs:words",
        "netstack.cluster.task.invokable:InvokableTask",
    ],
)
def test_a_name_that_is_not_on_the_list_is_not_even_imported(name: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"may not run on this TaskManager, which allows"
        r" netstack_bench\.places\.hosts\.invokables:\*, userjobs",
    ):
        JOBS.load(name)


@pytest.mark.parametrize(("name", "wanted"), [("words:job", "words:"), ("shop.daily.words:job", "shop.")])
def test_the_refusal_names_the_flag_that_allows_the_name(name: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=f"--allow '{wanted}'$"):
        JOBS.check(name)
    AllowList([wanted]).check(name)


def test_allowed_names_are_loaded() -> None:
    assert JOBS.load("userjobs.jobs:words").__name__ == "words"
    assert JOBS.load("netstack_bench.places.hosts.invokables:source").__name__ == "source"
    assert AllowList(["userjobs.jobs:"]).load("userjobs.jobs:count").__name__ == "count"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("userjobs.jobs:trio.sleep_forever", "is trio.*, which is not allowed here"),
        ("userjobs.jobs:imported", "is trio.*:sleep_forever, which is not allowed here"),
        ("userjobs.jobs:RecordWriter", "which is not allowed here"),
        ("userjobs.jobs:nothing", "cannot be imported"),
        ("userjobs.missing:words", "cannot be imported"),
        ("userjobs.jobs:words:words", "cannot be imported"),
        ("userjobs..jobs:words", "cannot be imported"),
        ("userjobs.jobs:", "is not a valid name"),
        ("userjobs.jobs", "is not a valid name"),
        (
            "userjobs.exits:words",
            'SystemExit: nobody imports me; .* so write if __name__ == "__main__"',
        ),
    ],
)
def test_an_allowed_name_that_is_no_invokable_is_explained(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        JOBS.load(name)


def test_everything_may_be_allowed() -> None:
    assert AllowList(["*"]).load("os.path:join").__name__ == "join"


def test_a_value_of_an_allowed_module_is_its_own() -> None:
    assert JOBS.load("userjobs.jobs:by_first")((1, 2)) == 1


def test_builds_are_those_of_the_packages_that_run() -> None:
    here = build_of("userjobs")
    check_builds(["userjobs"], {"userjobs": here, "antigravity.imports.its.parents": "x"})
    check_builds(["userjobs"], {})
    with pytest.raises(ConfigError, match=rf"'userjobs' is build {here} .* 0123456789ab where"):
        check_builds(["userjobs"], {"userjobs": "0123456789ab"})


def test_a_shipped_package_is_found_checked_and_replaced_when_nobody_uses_it() -> None:
    shipped = ShippedCode()
    names = AllowList()

    def put(job: str, answer: int, *, package: str = "shippedjobs") -> None:
        data = zipped(package, f"def answer():\n    return {answer}\n")
        shipped.put(job, package, blob(data))

    put("a", 1)
    with pytest.raises(ConfigError, match="this TaskManager"):
        names.load("shippedjobs:answer")
    assert names.load("shippedjobs:answer", {"shippedjobs"})() == 1
    put("b", 1)
    with pytest.raises(ConfigError, match="other contents by job a,"):
        put("c", 2)
    for job in "ab":
        shipped.job_left(job)
    put("c", 2)
    assert names.load("shippedjobs:answer", {"shippedjobs"})() == 2
    importlib.import_module("userjobs.jobs")
    with pytest.raises(ConfigError, match=r"installed package .* has imported"):
        put("d", 3, package="userjobs")
    with pytest.raises(BlobError, match="damaged: the digest of its 3 bytes"):
        shipped.put("e", "other", blob(b"abc", "0" * 64))
    with pytest.raises(ConfigError, match="is not a package name"):
        shipped.put("e", "../x", blob(b""))
    shipped.close()
    with pytest.raises(ConfigError, match="cannot be imported"):
        names.load("shippedjobs:answer", {"shippedjobs"})


def blob(data: bytes, digest: str = "") -> KeptBlob:
    made = KeptBlob(BlobKey(f"code-{digest or hashlib.sha256(data).hexdigest()}"))
    made.write(data)
    return made


def test_what_is_shipped_is_one_package_and_nothing_of_anybody_else() -> None:
    shipped = ShippedCode()
    path = list(sys.path)
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as archive:
        archive.writestr("shippedjobs/__init__.py", "")
        archive.writestr("antigravity.py", "")
    for package, data, words in (
        ("shippedjobs", into.getvalue(), "also contains .antigravity.py."),
        ("shippedjobs", zipped("shippedjobs/../x", ""), "also contains"),
        ("shippedjobs", b"no zip", "is not a zip file"),
        ("antigravity", zipped("antigravity", ""), "name of a Python standard module"),
    ):
        with pytest.raises(ConfigError, match=words):
            shipped.put("a", package, blob(data))
    data = zipped("shippedjobs", "")
    digest = hashlib.sha256(data).hexdigest()
    for key in (f"code-../../x-{digest}", f"../code-{digest}", digest):
        made = KeptBlob(BlobKey(key))
        made.write(data)
        with pytest.raises(ConfigError, match="is not the key of a package"):
            shipped.put("a", "shippedjobs", made)
    assert sys.path == path
    shipped.close()


def test_what_a_job_shipped_goes_with_it() -> None:
    shipped = ShippedCode()
    path = list(sys.path)
    data = zipped("shippedjobs", "def answer():\n    return 1\n")
    for job in "ab":
        shipped.put(job, "shippedjobs", blob(data))
    assert AllowList(["*"]).load("shippedjobs:answer")() == 1
    file = Path(sys.path[0])
    assert {*os.listdir(file.parent)} == {file.name, "lock"}, "the next process can tell that its owner is dead"
    shipped.job_left("a")
    assert AllowList(["*"]).load("shippedjobs:answer")() == 1
    shipped.job_left("b")
    with pytest.raises(ConfigError, match="cannot be imported"):
        AllowList(["*"]).load("shippedjobs:answer")
    assert not file.exists()
    assert sys.path == path
    shipped.close()


def zipped(package: str, source: str) -> bytes:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"{package}/__init__.py"), source)  # of no time: of one content, one digest
    return into.getvalue()


def test_the_package_of_a_name() -> None:
    assert root_package("a.b.c:d.e") == "a"
    assert root_package("a:b") == "a"
    assert root_package("netstack_bench.places.hosts.invokables:source") == "netstack_bench"


def _two_directories(good: tuple[str, bytes], evil: tuple[str, bytes]) -> bytes:
    """A zip file whose ZIP64 directory, which `zipfile` reads, has one file, and whose other directory has another."""

    def local(name: bytes, data: bytes) -> bytes:
        sizes = zlib.crc32(data), len(data), len(data), len(name), 0
        return struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 33, *sizes) + name + data

    def entry(name: bytes, data: bytes, at: int, comment: int) -> bytes:
        sizes = zlib.crc32(data), len(data), len(data), len(name), 0, comment, 0, 0, 0, at
        return struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 33, *sizes) + name

    names = good[0].encode(), evil[0].encode()
    files = local(names[0], good[1]) + local(names[1], evil[1])
    second = entry(names[1], evil[1], len(local(names[0], good[1])), 76)  # its comment: the records of ZIP64
    first = entry(names[0], good[1], 0, len(second)) + second
    at = len(files)
    records = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(first), at)
    records += struct.pack("<4sIQI", b"PK\6\7", 0, at + len(first), 1)
    whole = files + first + records
    size = len(second) + len(records)
    return whole + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, size, len(whole) - size, 0)


def test_an_archive_with_two_directories_adds_no_other_module(tmp_path: Path) -> None:
    """Python's importer reads another directory than `zipfile`; what is imported is written anew."""
    package, other = ("twofaced.py", b"def answer():\n    return 1\n"), ("antigravity_of_others.py", b"stolen = True\n")
    data = _two_directories(package, other)
    (tmp_path / "raw.zip").write_bytes(data)
    assert zipfile.ZipFile(io.BytesIO(data)).namelist() == ["twofaced.py"]
    module = zipimport.zipimporter(str(tmp_path / "raw.zip")).find_spec("antigravity_of_others")
    assert (module is not None) == (sys.version_info < (3, 13)), "from 3.13 on the importer knows ZIP64 too"
    shipped = ShippedCode()
    shipped.put("a", "twofaced", blob(data))
    assert importlib.util.find_spec("antigravity_of_others") is None
    assert AllowList().load("twofaced:answer", {"twofaced"})() == 1
    shipped.job_left("a")
    shipped.close()


def test_an_archive_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "MAX_CONTENTS_BYTES", 1000)
    with pytest.raises(ConfigError, match="package 'large' has more than 1000B unpacked"):
        checked_archive("large", zipped("large", "#" * 1001))


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary folder is a disk of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=True)
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.root
def test_a_package_that_the_disk_had_no_space_for_is_there_once_it_has(small_disk: Path, tmp_path: Path) -> None:
    """Half of the package stayed, and every later job imported that half."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as package:
        package.writestr("fulldiskjobs/__init__.py", "WORTH = 42")
        package.writestr("fulldiskjobs/data.py", "#" * 150_000)
    data = archive.getvalue()
    blob = KeptBlob(BlobKey(f"code-{hashlib.sha256(data).hexdigest()}"), str(tmp_path))
    blob.write(data)
    (small_disk / "other").write_bytes(bytes(150_000))
    shipped = ShippedCode()
    try:
        for job_id in ("one", "two"):
            with pytest.raises(BlobError, match=r"'fulldiskjobs' cannot be written .* No space left .* TMPDIR"):
                shipped.put(job_id, "fulldiskjobs", blob)
        (small_disk / "other").unlink()
        shipped.put("three", "fulldiskjobs", blob)
        module = importlib.import_module("fulldiskjobs")
        assert (module.WORTH, Path(str(module.__file__)).is_relative_to(small_disk)) == (42, True)
    finally:
        shipped.close()


@pytest.mark.root
def test_a_blob_that_the_disk_had_no_space_for_leaves_nothing(small_disk: Path) -> None:
    data = os.urandom(400_000)
    for _ in range(3):
        blob = KeptBlob(BlobKey(f"blob-{hashlib.sha1(data, usedforsecurity=False).hexdigest()}"), None)
        with pytest.raises(BlobError, match=r"cannot be written .* No space left .* shuffle_directory"):
            blob.write(data)
        blob.clear()
        assert os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize > 200_000
