"""The import contracts of pyproject.toml hold, and would be noticed if they did not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
from tool_modules import load_tool

ROOT = Path(__file__).parents[2]
packages = load_tool("import_packages")
LINT = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"

pytestmark = pytest.mark.slow


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    """Runs import-linter over the packages in `tree`, in a process of its own (it changes `sys.path`)."""
    return subprocess.run(
        [sys.executable, "-c", LINT],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": packages.search_path(tree), "NO_COLOR": "1", "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for the type checker alone count too."""
    graph = grimp.build_graph(*(package.name for package in packages.PACKAGES), cache_dir=None)

    def check() -> None:
        TopologicalSorter({each: graph.find_modules_directly_imported_by(each) for each in graph.modules}).prepare()

    check()
    graph.add_import(importer="netstack.base.errors", imported="netstack.base.config")
    with pytest.raises(CycleError):
        check()


def test_contracts_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("netstack/exchange/record/__init__.py", "import socket", "The core does no I/O"),
        ("netstack/exchange/outbound/__init__.py", "import netstack.exchange.inbound", "Inside the exchange"),
        ("netstack/network/handles.py", "import netstack.cluster.task", "Imports point one way"),
        ("netstack/base/ids.py", "import netstack_transports", "Imports point one way"),
        ("transports/netstack_transports/__init__.py", "import netstack.exchange.wire", "Imports point one way"),
        ("transports/netstack_transports/__init__.py", "import click", "Only the commands"),
    ],
)
def test_a_broken_contract_is_noticed(tmp_path: Path, module: str, line: str, contract: str) -> None:
    for package in packages.PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / module
    path.write_text(f"{path.read_text()}\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    broken = [text for text in done.stdout.splitlines() if "BROKEN" in text]
    assert any(contract in text for text in broken), done.stdout
