"""The documents for developers name modules that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tool_modules import load_tool

PACKAGES = load_tool("import_packages").PACKAGES
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("document", ["netstack/DESIGN.md", "CONTRIBUTING.md", "bench/netstack_bench/METHOD.md"])
def test_modules_that_a_document_names_exist(document: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(), flags=re.DOTALL)
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+)/?`", text))
    assert named
    roots = [ROOT, *(ROOT / package for package in PACKAGES), (ROOT / document).parent]
    places = {name: [root / name for root in roots] for name in named}
    missing = [
        name
        for name, paths in places.items()
        if not any(path.exists() or path.with_suffix(".py").exists() for path in paths)
    ]
    assert not missing, f"{document} names modules that do not exist: {', '.join(sorted(missing))}"


def test_nobody_is_told_to_install_netstack_from_an_index() -> None:
    """No index has it, so the name there may be anybody's."""
    folders = [ROOT / folder for folder in (*PACKAGES, "tools")]
    files = [
        *ROOT.glob("*.md"),
        *(each for folder in folders for kind in ("md", "py") for each in folder.rglob(f"*.{kind}")),
    ]
    assert [str(path) for path in files if re.search(r"pip install ['\"]?netstack", path.read_text())] == []


def test_java_classes_that_documents_name_exist() -> None:
    """Flink's configuration names a class of the plug-in."""
    plugin = ROOT / "tools/flink-shuffle"
    classes = {"netstack.shuffle." + path.stem for path in plugin.rglob("*.java")}
    named = set(re.findall(r"\bnetstack(?:\.[a-z]+)+\.[A-Z]\w+", (plugin / "README.md").read_text()))
    assert named
    assert named <= classes
