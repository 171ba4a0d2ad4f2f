"""The laws of what is written in C, under the compiler's address sanitizer: no byte outside of an object is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from netstack.base import build

SOURCE = Path(build.__file__).parents[1] / "exchange" / "record" / "fast_path.c"
LAWS = Path(__file__).with_name("test_fast_path.py")
INCLUDE = sysconfig.get_paths()["include"]
FLAGS = ("-shared", "-fPIC", "-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined")

pytestmark = [pytest.mark.long, pytest.mark.whole]


@pytest.fixture
def sanitizer() -> str:
    """The library that has to be loaded before all others."""
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("needs Linux and gcc")
    if not Path(INCLUDE, "Python.h").exists():
        pytest.skip("needs Python's headers: apt-get install python3-dev")
    printed = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    library = printed.stdout.strip()
    if not Path(library).is_absolute():
        pytest.skip("needs gcc's address sanitizer: apt-get install gcc")
    return library


def laws_with(source: str, sanitizer: str, folder: Path, *arguments: str) -> tuple[int, str]:
    """Runs the laws with this source, compiled with the sanitizer; returns the exit code and the output."""
    written, library = folder / "fast_path.c", folder / "fast_path.so"
    written.write_text(source)
    subprocess.run(["gcc", *FLAGS, f"-I{INCLUDE}", str(written), "-o", str(library)], check=True)
    environment = os.environ | {
        "LD_PRELOAD": sanitizer,
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={folder}/report",  # Python itself keeps memory at its end
        "UBSAN_OPTIONS": f"halt_on_error=1:log_path={folder}/report",
        "PYTHONMALLOC": "malloc",  # an allocation for each object, with poisoned bytes around it
        "NETSTACK_TEST_FAST_PATH": str(library),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(LAWS), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, "".join([done.stdout, done.stderr, *(path.read_text() for path in folder.glob("report.*"))])


def test_the_laws_hold_and_no_byte_outside_is_touched(sanitizer: str, tmp_path: Path) -> None:
    code, text = laws_with(SOURCE.read_text(), sanitizer, tmp_path)
    assert (code, "Sanitizer" in text) == (0, False), text[-6000:]


def test_a_planted_read_behind_the_memory_is_reported(sanitizer: str, tmp_path: Path) -> None:
    source = SOURCE.read_text()
    check = "size > view.len - position - PREFIX_BYTES"
    assert source.count(check) == 1
    code, text = laws_with(source.replace(check, "size > view.len + 64"), sanitizer, tmp_path, "-k", "cut_anywhere")
    assert code
    assert "AddressSanitizer: heap-buffer-overflow" in text
