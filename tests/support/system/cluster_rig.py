"""A JobManager and TaskManagers as processes, started by their commands, for tests that are not trio's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import trio

from netstack.cluster.jobmanager.children import search_path
from netstack.cluster.jobmanager.client import Document, JobClient, open_job_client
from netstack.network.connection.authentication import Secret

_Result = TypeVar("_Result")
PATIENCE_S = 120.0


class ClusterRig:
    """Processes of one cluster; a context manager."""

    def __init__(self, folder: Path, *flags: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.secret_file = folder / "secret"
        self.secret_file.write_bytes(Secret.generate().reveal())
        self.secret_file.chmod(0o600)
        self.flags = flags
        self.address = ""
        self.page: str | None = None
        self.metrics: str | None = None
        self.jobmanager: subprocess.Popen[bytes] | None = None
        self.taskmanagers: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []

    def __enter__(self) -> ClusterRig:
        self.start_jobmanager()
        return self

    def __exit__(self, *exc_info: object) -> None:
        processes = [*self.taskmanagers, *filter(None, [self.jobmanager])]
        for process in processes:
            process.kill()
        for process in processes:
            end(process)
        for log in self._logs:
            log.close()

    def start_jobmanager(self, listen: str = "tcp://127.0.0.1:0") -> None:
        folder = str(self.folder / "jobs")
        self.jobmanager = self._start("jobmanager", "--listen", listen, "--folder", folder, *self.flags)
        assert self.jobmanager.stdout is not None
        line = self.jobmanager.stdout.readline()
        assert line, self.log()
        ready = json.loads(line)
        self.address, self.page, self.metrics = ready["address"], ready["web"], ready["metrics"]

    def start_taskmanagers(
        self, *slots: int, flags: Sequence[str] = (), cwd: Path | None = None, first_port: int = 0
    ) -> None:
        """One more for each number of slots; started in `cwd`, at `first_port` and the ports behind it."""
        words = ["--jobmanager", self.address, "--memory", "32MiB", "--allow", "*"]
        ports = range(first_port, first_port + len(slots)) if first_port else [0] * len(slots)
        started = [
            self._start(
                "taskmanager", *words, "--listen", f"tcp://127.0.0.1:{port}", "--slots", str(each), *flags, cwd=cwd
            )
            for port, each in zip(ports, slots, strict=True)
        ]
        self.taskmanagers += started

        def have_registered() -> bool:
            assert all(each.poll() is None for each in started), self.log()
            return len(self.ask(JobClient.taskmanagers)) == len(self.taskmanagers)

        self.wait_until(have_registered)

    def ask(self, question: Callable[[JobClient], Awaitable[_Result]]) -> _Result:
        async def run() -> _Result:
            async with open_job_client(self.address, secret=Secret.from_file(self.secret_file)) as client:
                return await question(client)

        return trio.run(run)

    def job(self, job_id: str) -> Document:
        return self.ask(lambda client: client.job(job_id))

    def wait_until(self, condition: Callable[[], Any]) -> None:
        """Looks until it is true; fails when it takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def wait_running(self, job_id: str) -> Document:
        """Until all tasks of a job run; its document."""
        actual: list[Document] = []

        def is_running() -> bool:
            actual[:] = [self.job(job_id)]
            return set(actual[0]["tasks"]) == {"running"}

        self.wait_until(is_running)
        return actual[0]

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        """A command that asks this cluster, as a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "netstack.cli", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.environment(), "PYTHONPATH": os.pathsep.join(search_path())},
        )

    def log(self) -> str:
        """What the processes had to say, for a failed assertion."""
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("*.log")))

    def environment(self) -> dict[str, str]:
        """For commands that ask."""
        return {"NETSTACK_JOBMANAGER": self.address, "NETSTACK_SECRET_FILE": str(self.secret_file)}

    def _start(self, command: str, *words: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        log = open(self.folder / f"{len(self._logs)}-{command}.log", "ab")  # noqa: SIM115  # closed at the end
        self._logs.append(log)
        words = (command, *words, "--json", "--secret-file", str(self.secret_file))
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "netstack.cli", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(search_path())},
            cwd=cwd,
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL; returns when it is gone."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def port_of(url: str | None) -> int:
    assert url is not None
    port = urlsplit(url if "//" in url else f"//{url}").port
    assert port is not None
    return port


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
