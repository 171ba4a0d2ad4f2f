"""Builds the files of a release: `make wheels`.

Takes: a checkout without changes that are not committed. Gives, in `dist/`: the source archive; a wheel with the
compiled data path for each of Python 3.11, 3.12 and 3.13 that `.ci/find-python` finds; a wheel in Python only. Every
wheel is built from the source archive. auditwheel names the oldest C library that the machine code runs on.

    python tools/make_wheels.py [--out dist] [--python 3.12]... [--uncommitted]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PYTHONS: Final = ("3.11", "3.12", "3.13")
PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def build_archive(out: Path) -> Path:
    """Builds the source archive and returns its path."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (archive,) = out.glob("netstack-*.tar.gz")
    return archive


def build_wheel(archive: Path, out: Path, python: str | None) -> Path:
    """Builds a wheel from the source archive: for one interpreter, or in Python only where none is given.

    Raises:
        RuntimeError: the data path could not be compiled, or no manylinux tag fits the machine code.
        subprocess.CalledProcessError: pip failed; it has printed why.
    """
    environment = {**os.environ, "NETSTACK_PURE": "0" if python else "1"}
    with tempfile.TemporaryDirectory(prefix="netstack-wheels-") as folder:
        pip = [*PIP, *(["--python", python] if python else [])]
        command = [*pip, "wheel", "--no-deps", "--no-cache-dir", "--wheel-dir", folder, str(archive)]
        subprocess.run(command, env=environment, check=True)
        (built,) = Path(folder).glob("netstack-*.whl")
        if not python:
            return built.rename(out / built.name)
        if built.name.endswith("-none-any.whl"):
            raise RuntimeError(f"{python} could not compile the data path: pip wheel -v shows why")
        done = subprocess.run(
            [sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", folder, str(built)],
            env={**environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        found = list(Path(folder).glob("*-manylinux*.whl"))
        if done.returncode or len(found) != 1:
            raise RuntimeError(f"no manylinux tag fits {built.name}: {(done.stdout + done.stderr).strip()}")
        return found[0].rename(out / found[0].name)


def find_python(version: str, folder: Path) -> str | None:
    """The path of a Python of this version; None where `.ci/find-python` finds none."""
    done = subprocess.run(
        [str(ROOT / ".ci/find-python"), version, str(folder)], stdout=subprocess.PIPE, text=True, check=False
    )
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 else None


def main() -> int:
    """Builds all of it; 1 where there are uncommitted changes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder; wheels in it stay")
    parser.add_argument("--python", action="append", help=f"a version, repeatable; {', '.join(PYTHONS)} if not given")
    parser.add_argument("--uncommitted", action="store_true", help="build although the tree has uncommitted changes")
    given = parser.parse_args()
    status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    if status.stdout and not given.uncommitted:
        print(f"commit these first, or give --uncommitted:\n{status.stdout}", end="", file=sys.stderr)
        return 1
    given.out.mkdir(parents=True, exist_ok=True)
    archive = build_archive(given.out)
    print(f"{archive.name}: {archive.stat().st_size:,} bytes", flush=True)
    with tempfile.TemporaryDirectory(prefix="netstack-pythons-") as pythons:
        for version in (None, *(given.python or PYTHONS)):
            began = time.monotonic()
            python = None if version is None else find_python(version, Path(pythons) / version)
            if version is not None and python is None:
                print(f"no wheel for Python {version}: none is found here; PYTHON= names one", file=sys.stderr)
                continue
            wheel = build_wheel(archive, given.out, python)
            print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
