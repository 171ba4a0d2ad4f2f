"""Builds: equal exactly when every line of Python is, wherever the package lies."""

from __future__ import annotations

import itertools
import sys
import zipfile
from pathlib import Path

import pytest

from netstack.base.errors import ConfigError
from netstack.base.own_packages import OWN_PACKAGES
from netstack.cluster.control.build import build_of, own_build

_numbers = itertools.count()
FILES = {"__init__.py": "", "a.py": "x = 1\n", "deep/__init__.py": "", "deep/b.py": "y = 2\n"}


def write(folder: Path, package: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def built(folder: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The build of a package in a folder or zip, looked at as by a new process."""
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    build_of.cache_clear()
    try:
        return build_of(package)
    finally:
        monkeypatch.undo()
        build_of.cache_clear()


def place(tmp_path: Path, files: dict[str, str], package: str) -> Path:
    folder = tmp_path / f"copy{next(_numbers)}"
    write(folder, package, files)
    return folder


def zipped(folder: Path) -> Path:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder))
    return path


def test_a_folder_a_copy_of_it_and_a_zip_are_the_same_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = place(tmp_path, FILES, "buildme")
    build = built(one, "buildme", monkeypatch)
    assert len(build) == 12
    assert int(build, 16) >= 0
    assert built(place(tmp_path, FILES, "buildme"), "buildme", monkeypatch) == build
    assert built(zipped(one), "buildme", monkeypatch) == build


@pytest.mark.parametrize(
    "change",
    [{"a.py": "x = 2\n"}, {"deep/b.py": ""}, {"new.py": ""}, {"a.py": "x = 1\n\n"}],
    ids=["a line", "a nested module", "a new module", "an empty line"],
)
def test_any_difference_is_another_build(
    change: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = built(place(tmp_path, FILES, "buildme"), "buildme", monkeypatch)
    assert built(place(tmp_path, {**FILES, **change}, "buildme"), "buildme", monkeypatch) != build


def test_what_is_no_python_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = built(place(tmp_path, FILES, "buildme"), "buildme", monkeypatch)
    other = {**FILES, "notes.md": "x", "__pycache__/a.cpython-311.pyc": "x"}
    assert built(place(tmp_path, other, "buildme"), "buildme", monkeypatch) == build


def test_a_single_module_in_a_folder_and_in_a_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "buildmodule.py").write_text("x = 1\n")
    build = built(folder, "buildmodule", monkeypatch)
    assert built(zipped(folder), "buildmodule", monkeypatch) == build


def test_a_package_without_an_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"a.py": "x = 1\n"}
    build = built(place(tmp_path, files, "buildspace"), "buildspace", monkeypatch)
    assert built(place(tmp_path, {"a.py": "x = 2\n"}, "buildspace"), "buildspace", monkeypatch) != build


def test_a_folder_that_is_twice_on_the_path_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place(tmp_path, {"a.py": "x = 1\n"}, "buildspace")
    build = built(folder, "buildspace", monkeypatch)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    build_of.cache_clear()
    assert build_of("buildspace") == build
    build_of.cache_clear()


@pytest.mark.parametrize("package", ["no_such_package_here", "sys", ".", ""])
def test_what_has_no_source_is_said(package: str) -> None:
    with pytest.raises(ConfigError):
        build_of(package)


def test_netstack_has_a_build_of_its_own() -> None:
    assert own_build() == own_build()
    assert len(own_build()) == 12


def test_a_change_in_any_of_our_packages_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = own_build()
    for changed in OWN_PACKAGES:
        monkeypatch.setattr(
            "netstack.cluster.control.build.build_of",
            lambda package, changed=changed: build_of(package) + (package == changed) * "+",
        )
        assert own_build() != before
