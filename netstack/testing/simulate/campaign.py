"""Plays simulations in several worker processes."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ...base.errors import NetstackError
from ...base.own_packages import import_folders
from ...base.scratch import scratch_folder
from .cluster import scratch

_WORKER: Final = "netstack.testing.simulate.worker"


class WorkerDied(NetstackError):
    """A worker process ended; the text has its exit code, and standard error has its reason."""


def play(asked: Iterable[dict[str, Any]], processes: int) -> Iterator[dict[str, Any]]:
    """Yields the document of each outcome, in the order in which simulations end.

    The workers are killed and their files removed when the iteration ends, for whatever reason.

    Raises:
        WorkerDied: a worker died; it has written the reason to standard error.
    """
    waiting = iter(asked)
    paths = [*import_folders(), *filter(None, [os.environ.get("PYTHONPATH")])]
    started: list[subprocess.Popen[str]] = []
    with (
        scratch_folder(scratch()) as folder,
        selectors.DefaultSelector() as selector,
    ):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONHASHSEED": "0",
            "TMPDIR": folder,
        }
        try:
            for _ in range(processes):
                first = next(waiting, None)
                if first is None:
                    break
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _WORKER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment,
                    text=True,
                    start_new_session=True,
                )
                started.append(process)
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, process)
                _ask(process, first)
            while selector.get_map():
                for key, _ in selector.select():
                    process = key.data
                    line = process.stdout.readline()
                    if not line:
                        raise WorkerDied(f"a worker process died with exit code {process.wait()}; its error is above")
                    following = next(waiting, None)
                    if following is None:
                        selector.unregister(key.fileobj)
                    else:
                        _ask(process, following)
                    yield json.loads(line)
        finally:
            for process in started:
                process.kill()
            for process in started:
                process.communicate()


def _ask(process: subprocess.Popen[str], asked: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(asked) + "\n")
    process.stdin.flush()
