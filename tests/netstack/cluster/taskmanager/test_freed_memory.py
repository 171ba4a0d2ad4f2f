"""Freed memory stays with the process: the next records do not fault its pages in again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Counts the page faults while blocks of records at the end of the heap are made and dropped, again and again.
FAULTS = """
import resource
from netstack.cluster.taskmanager.memory import keep_freed_memory
print(keep_freed_memory())
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
[bytes(1024) for _ in range(2048)]
before = faults()
for _ in range(50):
    [bytes(1024) for _ in range(2048)]
print(faults() - before)
"""
PAGES = 50 * 2048 // 4  # of all these records


def kept_and_faults(**more: str) -> tuple[str, int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env={**environment, **more}, capture_output=True, text=True, check=True
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(sys.platform != "linux" or os.confstr("CS_GNU_LIBC_VERSION") is None, reason="needs glibc")
def test_records_that_are_dropped_leave_their_pages_to_the_next_ones() -> None:
    kept, faults = kept_and_faults()
    assert kept == "True"
    assert faults < PAGES // 20
    kept, faults = kept_and_faults(MALLOC_TRIM_THRESHOLD_="65536")  # the environment decides
    assert kept == "False"
    assert faults > PAGES // 2
