"""The tests write nothing into the checkout: `make test` compares its files before and after."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import checkout
import pytest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "a \u00fcn\u00ef"
    folder.mkdir()
    (folder / ".gitignore").write_text("/results/\n/.venv\n__pycache__/\n")
    (folder / "README").write_text("read")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "add", "."], cwd=folder, check=True)
    (folder / "results" / "mine").mkdir(parents=True)
    (folder / "results" / "mine" / "report.html").write_text("mine")
    return folder


def test_a_file_of_the_tests_is_named_though_git_ignores_its_folder(root: Path) -> None:
    before = checkout.untracked_files(root)
    assert checkout.written_since(before, root) == []
    (root / "results" / "sweep").mkdir()
    (root / "results" / "sweep" / "report.html").write_text("invented")
    (root / "tests" / "deep").mkdir(parents=True)
    (root / "tests" / "deep" / "\u00e4 file").write_text("invented")
    assert checkout.written_since(before, root) == ["results/sweep/report.html", "tests/deep/\u00e4 file"]


def test_caches_and_what_a_developer_does_meanwhile_are_no_news(root: Path) -> None:
    before = checkout.untracked_files(root)
    (root / "README").write_text("edited meanwhile")
    (root / "new.py").write_text("")
    for cache in (".venv", ".pytest_cache", "tests/__pycache__", ".hypothesis/constants"):
        (root / cache).mkdir(parents=True)
        (root / cache / "file").write_text("")
    assert checkout.written_since(before, root) == []


def test_without_a_checkout_nothing_is_compared(tmp_path: Path) -> None:
    assert checkout.untracked_files(tmp_path) is None
    assert checkout.untracked_files(tmp_path / "nowhere") is None
    assert checkout.written_since(None, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(("target", "code"), [("tmp_path", 0), ("Path()", 1)])
def test_a_run_that_wrote_into_the_checkout_fails(root: Path, target: str, code: int) -> None:
    (root / "conftest.py").write_text(
        "import checkout\n"
        "from pathlib import Path\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(checkout.Watch(Path(__file__).parent))\n"
    )
    (root / "test_it.py").write_text(
        f"from pathlib import Path\ndef test_it(tmp_path):\n    ({target} / 'report.html').write_text('invented')\n"
    )
    words = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(Path(checkout.__file__).parent), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take longer than the run
    done = subprocess.run([*words, "."], cwd=root, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == code, done.stdout
    assert ("FAILED: written into the checkout while the tests ran: report.html" in done.stdout) == bool(code)
