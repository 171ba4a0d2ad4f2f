"""What may be run: names on the list, and nothing that only looks like one."""

from __future__ import annotations

import pytest

from netstack.daemon.build import build_of
from netstack.daemon.invokables import AllowList, check_builds, root_package
from netstack.errors import ConfigError

JOBS = AllowList(["daemonjobs."])


@pytest.mark.parametrize(
    "prefix", ["", "a", "mypackage", "mypackage.jobs", ".", ":", ".a.", ":a:", "mypackage.jobs:run", "*"]
)
def test_a_prefix_that_would_let_in_more_than_it_says_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match=r"end it with '\.' .* or ':'"):
        AllowList([prefix])


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "",
        "daemonjobs",
        "daemonjobs:words",
        "daemonjobsevil.jobs:words",
        "netstack.bench.mesh.invokablesevil:source",
        "netstack.bench.mesh:invokables.source",
        " daemonjobs.jobs:words",
        "DAEMONJOBS.jobs:words",
        "./daemonjobs.jobs:words",
        "netstack.daemon.task:Task",
    ],
)
def test_a_name_that_is_not_on_the_list_is_not_even_imported(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"may not be run here: allowed are netstack\.bench\.mesh\.invokables:\*, daemonjobs"
    ):
        JOBS.load(name)


def test_allowed_names_are_loaded() -> None:
    assert JOBS.load("daemonjobs.jobs:words").__name__ == "words"
    assert JOBS.load("netstack.bench.mesh.invokables:source").__name__ == "source"
    assert AllowList(["daemonjobs.jobs:"]).load("daemonjobs.jobs:count").__name__ == "count"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("daemonjobs.jobs:trio.sleep_forever", "is trio.*, which may not be run here"),
        ("daemonjobs.jobs:imported", "is trio.*:sleep_forever, which may not be run here"),
        ("daemonjobs.jobs:ordinary", "is no `async def`"),
        ("daemonjobs.jobs:RecordWriter", "which may not be run here"),
        ("daemonjobs.jobs:nothing", "is not there"),
        ("daemonjobs.missing:words", "is not there"),
        ("daemonjobs.jobs:words:words", "is not there"),
        ("daemonjobs..jobs:words", "is not there"),
        ("daemonjobs.jobs:", "is no name"),
        ("daemonjobs.jobs", "is no name"),
        ("daemonjobs.exits:words", "cannot be imported: SystemExit: nobody imports me"),
    ],
)
def test_an_allowed_name_that_is_no_invokable_is_explained(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        JOBS.load(name)


def test_builds_are_those_of_the_packages_that_run() -> None:
    here = build_of("daemonjobs")
    check_builds(["daemonjobs"], {"daemonjobs": here, "antigravity.imports.its.parents": "x"})
    for theirs in ({"daemonjobs": "0123456789ab"}, {"daemonjobs": 7}, {}):
        with pytest.raises(ConfigError, match=f"package 'daemonjobs' is build {here} here, and .* at the coordinator"):
            check_builds(["daemonjobs"], theirs)


def test_the_package_of_a_name() -> None:
    assert root_package("a.b.c:d.e") == "a"
    assert root_package("a:b") == "a"
    assert root_package("netstack.bench.mesh.invokables:source") == "netstack.bench"
    assert root_package("netstack.benchmark:b") == "netstack"
