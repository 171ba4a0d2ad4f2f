"""The public interface: each export has its place in the reference, and no change of a signature goes unseen."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tool_modules import load_tool

import netstack
import netstack.aio
import netstack.blocking
from netstack.base import version

ROOT = Path(__file__).parents[2]
UPDATE = "python tools/render_api.py writes it anew; the difference wants a line in CHANGELOG.md"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("render_api")


@pytest.fixture(scope="module")
def package(tool: ModuleType) -> Any:
    return tool.read()


@pytest.mark.parametrize("module", [netstack, netstack.blocking, netstack.aio], ids=lambda each: each.__name__)
def test_every_export_is_on_a_page_and_exists(tool: ModuleType, module: ModuleType) -> None:
    of_others = {"netstack.blocking.WouldBlock"}  # trio's
    exports = {f"{module.__name__}.{name}" for name in module.__all__} - of_others
    entries = {name for name in tool.shown() if name.rpartition(".")[0] == module.__name__}
    assert exports == entries - {"netstack.blocking", "netstack.aio"}
    for name in module.__all__:
        assert hasattr(module, name)


@pytest.mark.slow
def test_the_interface_is_the_one_that_was_reviewed(tool: ModuleType, package: Any) -> None:
    assert tool.text_of(package).splitlines() == tool.STORED.read_text().splitlines(), UPDATE


@pytest.mark.slow
def test_types_in_signatures_are_exported(tool: ModuleType, package: Any) -> None:
    assert tool.unknown_types(package) == {}


def test_the_version_is_that_of_the_newest_release_in_the_changelog() -> None:
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    newest, _, date = headings[0].removeprefix("## ").partition(" - ")
    assert (newest, len(date)) == (f"[{version.__version__}]", len("2026-11-23"))
