"""What may be run: names on the list, and nothing that only looks like one."""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import sys
import zipfile
from pathlib import Path

import pytest

from netstack.control.build import build_of
from netstack.errors import ConfigError
from netstack.schedule.descriptors.blob_store import BlobError
from netstack.schedule.descriptors.descriptors import BlobKey
from netstack.taskmanager.blob_files import KeptBlob
from netstack.taskmanager.code import AllowList, ShippedCode, check_builds, root_package

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
        "netstack.bench.mesh.invokablesevil:source",
        "netstack.bench.mesh:invokables.source",
        " userjobs.jobs:words",
        "USERJOBS.jobs:words",
        "./userjobs.jobs:words",
        "netstack.task.invokable:InvokableTask",
    ],
)
def test_a_name_that_is_not_on_the_list_is_not_even_imported(name: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"may not run on this TaskManager, which allows"
        r" netstack\.bench\.mesh\.invokables:\*, userjobs",
    ):
        JOBS.load(name)


@pytest.mark.parametrize(("name", "wanted"), [("words:job", "words:"), ("shop.daily.words:job", "shop.")])
def test_the_refusal_names_the_flag_that_allows_the_name(name: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=f"start the TaskManager with --allow '{wanted}'$"):
        JOBS.check(name)
    AllowList([wanted]).check(name)


def test_allowed_names_are_loaded() -> None:
    assert JOBS.load("userjobs.jobs:words").__name__ == "words"
    assert JOBS.load("netstack.bench.mesh.invokables:source").__name__ == "source"
    assert AllowList(["userjobs.jobs:"]).load("userjobs.jobs:count").__name__ == "count"


@pytest.mark.parametrize(
    ("name", "said"),
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
def test_an_allowed_name_that_is_no_invokable_is_explained(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        JOBS.load(name)


def test_everything_may_be_allowed() -> None:
    assert AllowList(["*"]).load("os.path:join").__name__ == "join"


def test_a_value_of_an_allowed_module_is_its_own() -> None:
    assert JOBS.load("userjobs.jobs:by_first")((1, 2)) == 1


def test_builds_are_those_of_the_packages_that_run() -> None:
    here = build_of("userjobs")
    check_builds(["userjobs"], {"userjobs": here, "antigravity.imports.its.parents": "x"})
    check_builds(["userjobs"], {})
    with pytest.raises(
        ConfigError, match=f"package 'userjobs' is build {here} on this TaskManager, but 0123456789ab where"
    ):
        check_builds(["userjobs"], {"userjobs": "0123456789ab"})


def test_a_shipped_package_is_found_checked_and_replaced_when_nobody_uses_it() -> None:
    shipped = ShippedCode()
    names = AllowList()

    def put(job: str, answer: int, *, package: str = "shippedjobs") -> None:
        data = zipped(package, f"def answer():\n    return {answer}\n")
        shipped.put(job, package, blob(data))

    put("a", 1)
    with pytest.raises(ConfigError, match="may not run on this TaskManager"):
        names.load("shippedjobs:answer")
    assert names.load("shippedjobs:answer", {"shippedjobs"})() == 1
    put("b", 1)
    with pytest.raises(ConfigError, match="was shipped with other contents by job a, which runs on this"):
        put("c", 2)
    for job in "ab":
        shipped.job_left(job)
    put("c", 2)
    assert names.load("shippedjobs:answer", {"shippedjobs"})() == 2
    importlib.import_module("userjobs.jobs")
    with pytest.raises(ConfigError, match="name of an installed package that this TaskManager has imported"):
        put("d", 3, package="userjobs")
    with pytest.raises(BlobError, match="is damaged: the digest of its 3 bytes does not match"):
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
        archive.writestr(f"{package}/__init__.py", source)
    return into.getvalue()


def test_the_package_of_a_name() -> None:
    assert root_package("a.b.c:d.e") == "a"
    assert root_package("a:b") == "a"
    assert root_package("netstack.bench.mesh.invokables:source") == "netstack"
