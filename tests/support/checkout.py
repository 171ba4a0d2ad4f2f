"""What is new in the checkout since the tests began: they write elsewhere.

Takes: two looks, before the first test and after the last one. Gives: the files that appeared; a run of pytest fails by
them. Caches of the tools that run the tests are no news.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final, final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
_CACHES: Final = (
    *("__pycache__", ".grimp_cache", ".hypothesis", ".import_linter_cache", ".mypy_cache", ".pytest_cache"),
    *(".ruff_cache", ".venv"),
    *("build/.coverage*", "build/coverage.json"),
)
_SOURCES: Final = (".md", ".py", ".pyi", ".swp", ".toml")
"""Somebody may work in the checkout meanwhile."""


def untracked_files(root: Path = ROOT) -> frozenset[str] | None:
    """The files that git does not track, ignored ones too; None where there is no git or no checkout."""
    command = ["git", "status", "--porcelain", "-z", "--ignored", "--untracked-files=all", "--", "."]
    command += [f":(exclude,glob)**/{cache}{end}" for cache in _CACHES for end in ("", "/**")]
    try:
        actual = subprocess.run(command, cwd=root, capture_output=True, check=False)
    except OSError:
        return None
    if actual.returncode:
        return None
    lines = actual.stdout.decode(errors="surrogateescape").split("\0")
    return frozenset(line[3:] for line in lines if line[:2] in ("??", "!!") and not line.endswith(_SOURCES))


def written_since(before: frozenset[str] | None, root: Path = ROOT) -> list[str]:
    """The files that were not there."""
    now = untracked_files(root)
    return [] if before is None or now is None else sorted(now - before)


@final
class Watch:
    """Hooks of pytest: compares the checkout before and after."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._before: frozenset[str] | None = None
        self._written: list[str] = []

    def pytest_sessionstart(self) -> None:
        self._before = untracked_files(self._root)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._written = written_since(self._before, self._root)
        if self._written and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for path in self._written:
            terminalreporter.write_line(f"FAILED: written into the checkout while the tests ran: {path}", red=True)
