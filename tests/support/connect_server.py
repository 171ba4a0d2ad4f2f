"""A Spark Connect server, in a process of its own, as a cluster's administrator starts it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import pytest

START_S: Final = 120.0
CLIENT_S: Final = 240.0
LIBRARIES: Final = ("grpc", "grpc_status", "google.rpc", "zstandard")
ROOT: Final = Path(__file__).parents[2]
CLIENT: Final = ROOT / "tests/netstack/spark/connect_client.py"


def _is_installed(name: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):  # of its parent
        return importlib.util.find_spec(name) is not None
    return False


needs_connect: Final = pytest.mark.skipif(
    not all(map(_is_installed, LIBRARIES)), reason="needs Spark Connect's client: pip install 'pyspark[connect]'"
)


@final
@dataclass(frozen=True, slots=True)
class ConnectServer:
    """A server whose Python has the dependencies of netstack, but not netstack.

    Attributes:
        url: `sc://HOST:PORT`.
        packages: the folder of its Python's own packages.
    """

    url: str
    packages: Path

    def install_netstack(self) -> None:
        """Makes netstack importable for Python processes that the server starts from now on."""
        (self.packages / "netstack.pth").write_text(
            "".join(f"{ROOT / folder}\n" for folder in (".", "transports", "bench"))
        )

    def run_client(self, function: str, folder: Path) -> str:
        """Runs a function of `connect_client` in a process that has no JVM; returns its output."""
        command = [sys.executable, str(CLIENT), function, self.url, str(folder)]
        path = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "tests/support"), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path}
        client = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=CLIENT_S, check=False
        )
        assert client.returncode == 0, f"{client.stdout}\n{client.stderr}"
        return client.stdout


@contextmanager
def open_connect_server(folder: Path) -> Iterator[ConnectServer]:
    """Opens a server of local mode with two slots for a block. Its log is in the folder."""
    import pyspark

    python, packages = _python_without_netstack(folder / "python")
    home = Path(pyspark.__file__).parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.port": port,
        "spark.ui.enabled": "false",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    command = [str(home / "bin/spark-submit"), "--master", "local[2]"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("PYTHONPATH", None)
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        _await_port(port, server, folder / "server.log")
        yield ConnectServer(f"sc://127.0.0.1:{port}", packages)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _python_without_netstack(folder: Path) -> tuple[Path, Path]:
    """A virtual environment with the packages of this one, but for those that `.pth` files add, as for a checkout."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    own = [each for each in map(Path, sys.path) if each.name == "site-packages"]
    (packages / "dependencies.pth").write_text("\n".join(map(str, own)))
    return folder / "bin/python", packages


def _await_port(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + START_S
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        assert server.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < until_s, log.read_text()[-3000:]
        time.sleep(0.1)
