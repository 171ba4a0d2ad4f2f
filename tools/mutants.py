"""Plants known bugs, one at a time, and checks that the tests named beside each of them fail.

Takes: `tests/mutants/*.toml`. Gives: one line for each bug, and exit code 1 if a bug was not caught.

    python tools/mutants.py                    all of them
    python tools/mutants.py --only credit      those whose name has this in it
    python tools/mutants.py --share 10 --turn 3    every tenth, from the fourth on

Rules: the tree is copied, and only the copy is changed. A bug replaces text that its file has exactly once. The named
tests pass in the copy as it is; with the bug planted some of them fail, in good time: a test module that cannot be
imported any more has not caught anything.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from import_packages import search_path

ROOT: Final = Path(__file__).resolve().parent.parent
LEFT_OUT: Final = shutil.ignore_patterns(
    ".git", ".venv", "_compiled", "__pycache__", "build", ".*_cache", ".hypothesis", "*.egg-info"
)
LIMIT_S: Final = 120.0
"""For the tests of one bug, which take seconds: a bug that only hangs is not told clearly enough."""
WHOLE_LIMIT_S: Final = 900.0
"""For all tests that are named, without any bug."""
FAILED: Final = 1  # of pytest's exit codes


class BadMutant(Exception):
    """A bug that cannot be planted, or tests that cannot be run."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug.

    Attributes:
        name: area and what is wrong, in words.
        file: the source that is changed.
        old: what it has exactly once.
        new: what is there instead.
        tests: what must fail: files, or tests of files.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, source: str) -> str:
        """The source with the bug.

        Raises:
            BadMutant: it does not have the text once.
        """
        found = source.count(self.old)
        if found != 1:
            raise BadMutant(f"{self.file} has the text to replace {found} times instead of once: {self.old.strip()!r}")
        return source.replace(self.old, self.new)


def read_mutants(folder: Path) -> list[Mutant]:
    """All bugs of a folder, by file and in their order there.

    Raises:
        BadMutant: a name is there twice.
    """
    mutants = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutant"]:
            entry["tests"] = tuple(entry["tests"])
            mutants.append(Mutant(**entry))
    names = [mutant.name for mutant in mutants]
    for name in names:
        if names.count(name) > 1:
            raise BadMutant(f"two mutants are called {name!r}")
    return mutants


def run_tests(tree: Path, tests: list[str], limit_s: float = LIMIT_S) -> int | None:
    """Pytest's exit code; None if it took too long."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": search_path(tree), "PYTHONDONTWRITEBYTECODE": "1", "NETSTACK_PURE": "1"}
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return None
    (tree / "last.log").write_bytes(output)
    return process.returncode


def check_whole(tree: Path, mutants: list[Mutant]) -> None:
    """The named tests pass where nothing is planted.

    Raises:
        BadMutant: they do not.
    """
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    code = run_tests(tree, tests, WHOLE_LIMIT_S)
    if code != 0:
        told = "took too long" if code is None else (tree / "last.log").read_text()[-3000:]
        raise BadMutant(f"without any mutant the tests do not pass:\n{told}")


def plant(tree: Path, mutant: Mutant) -> str:
    """Runs the tests with one bug, and takes it away again. Returns why it was not caught; empty if it was."""
    path = tree / mutant.file
    whole = path.read_text()
    path.write_text(mutant.planted(whole))
    try:
        code = run_tests(tree, list(mutant.tests))
    finally:
        path.write_text(whole)
    if code == FAILED:
        return ""
    if code is None:
        return f"the tests took more than {LIMIT_S:.0f} s"
    if code == 0:
        return "all tests pass"
    return f"the tests could not be run:\n{(tree / 'last.log').read_text()[-2000:]}"


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="Plants known bugs and checks that tests find them.")
    parser.add_argument("--only", default="", help="bugs whose name has this in it")
    parser.add_argument("--share", type=int, default=1, help="one of so many")
    parser.add_argument("--turn", type=int, default=0, help="which one of so many; any number")
    parser.add_argument("--list", action="store_true", help="only tell the names")
    chosen = parser.parse_args()
    every = read_mutants(ROOT / "tests" / "mutants")
    mutants = [mutant for mutant in every if chosen.only in mutant.name][chosen.turn % chosen.share :: chosen.share]
    if chosen.list:
        print(*(mutant.name for mutant in mutants), sep="\n")
        return 0
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder, "tree")
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT, symlinks=True)
        for mutant in mutants:  # before anything is run, which takes minutes
            mutant.planted((tree / mutant.file).read_text())
        check_whole(tree, mutants)
        for mutant in mutants:
            began_s = time.monotonic()
            why = plant(tree, mutant)
            survivors += bool(why)
            print(f"{'SURVIVED' if why else 'caught'}  {mutant.name}  ({time.monotonic() - began_s:.1f} s)", flush=True)
            if why:
                print(f"    {why}\n    planted in {mutant.file}; tests: {' '.join(mutant.tests)}", flush=True)
    print(f"{len(mutants) - survivors} of {len(mutants)} planted bugs are caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BadMutant as error:
        sys.exit(f"mutants: {error}")
