#!/usr/bin/env python3
"""Several hosts on one machine: network namespaces with an address each, joined by veth pairs and a bridge.

    sudo .venv/bin/python tools/hosts.py daemons --count 3             three hosts, a netstack taskmanager on each
    sudo .venv/bin/python tools/hosts.py spark --count 3               three hosts, a Spark worker on each, and a master
    sudo .venv/bin/python tools/hosts.py shell --rate 200mbit          just the hosts, and a shell on host 0
    sudo .venv/bin/python tools/hosts.py daemons --count 2 --round-trip 40ms --link-rate 100Mbit      host 1 is far away
    sudo .venv/bin/python tools/hosts.py torment --seed 7 --runs 3     kills, stops and cuts: is a job exact?

Each runs in the foreground: it prints what to run against it, and takes everything down on Ctrl-C. Host 0 is for
whoever measures; 1 to N are for daemons and workers. What follows `--` goes to the daemons. In another terminal:

    sudo .venv/bin/python tools/hosts.py exec --host 0 -- ip addr      runs a command on a host
    sudo .venv/bin/python tools/hosts.py cut --host 2                  unplugs it; `heal` plugs it in again
    sudo .venv/bin/python tools/hosts.py slow --host 2 --rate 5mbit    gives its line another rate; none is full speed

Takes: root, `ip` and, for --rate, a kernel with `tbf`. Gives: the hosts of `netstack.testing.namespaces`, also to
tests; `SparkCluster`.

The flags of a line (`netstack.testing.shaped_line`) shape the one between host 1 and all others; --rate limits all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from torment import torment

from netstack.testing.namespaces import SWITCH, Daemons, Hosts, HostsError, last_line
from netstack.testing.shaped_line import Shape, add_flags, shape_of

SPARK_PORT: Final = 7077
SPARK_PAGE: Final = 8080
_READY_S: Final = 60.0
_BENCH: Final = (sys.executable, "-P", "-m", "netstack_bench")


class SparkCluster:
    """A standalone Spark cluster: its master at the switch, a worker on each of hosts 1 to N.

    Args:
        hosts: up.
        cores: of each worker.
        memory: of each worker.
    """

    def __init__(self, hosts: Hosts, *, cores: int = 1, memory: str = "1g") -> None:
        self._hosts = hosts
        self._cores = cores
        self._memory = memory
        self._scratch = tempfile.mkdtemp(prefix="netstack-spark-")
        self._daemons: list[subprocess.Popen[str]] = []
        self.master = f"spark://{SWITCH}:{SPARK_PORT}"
        self.log = Path(self._scratch) / "daemons.log"

    def __enter__(self) -> SparkCluster:
        try:
            import pyspark
        except ImportError:
            raise HostsError(f"{sys.executable} has no pyspark: run this with the Python of .venv") from None
        spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        master = ["--host", SWITCH, "--port", str(SPARK_PORT), "--webui-port", str(SPARK_PAGE)]
        self._start(None, SWITCH, [spark_class, "org.apache.spark.deploy.master.Master", *master])
        for host in range(1, self._hosts.count + 1):
            address = self._hosts.address(host)
            worker = ["--host", address, "--port", "7078", "--webui-port", "8081", "--cores", str(self._cores)]
            worker += ["--memory", self._memory, "--work-dir", f"{self._scratch}/work{host}", self.master]
            self._start(host, address, [spark_class, "org.apache.spark.deploy.worker.Worker", *worker])
        self._wait()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._hosts.end_all()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def driver_environment(self) -> dict[str, str]:
        """What a driver on host 0 needs."""
        return {**os.environ, "SPARK_LOCAL_IP": self._hosts.address(0), "PYSPARK_PYTHON": sys.executable}

    def alive_workers(self) -> int:
        """As the master counts them."""
        page = f"http://{SWITCH}:{SPARK_PAGE}/json/"
        ask = f"import urllib.request as u; print(u.urlopen({page!r}, timeout=2).read().decode())"
        told = self._hosts.run(None, [sys.executable, "-c", ask])
        if told.returncode != 0 or not told.stdout.strip():  # its page is not there yet, or empty
            return 0
        return int(json.loads(told.stdout)["aliveworkers"])

    def _start(self, host: int | None, address: str, words: Sequence[str]) -> None:
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": address,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dspark.master.rest.enabled=false",
        }
        with self.log.open("a") as log:
            self._daemons.append(self._hosts.start(host, words, stdout=log, stderr=log, env=environment))

    def _wait(self) -> None:
        deadline = time.monotonic() + _READY_S
        while (found := self.alive_workers()) < self._hosts.count:
            if any(process.poll() is not None for process in self._daemons):
                raise HostsError(f"a daemon of Spark ended at once: {last_line(self.log.read_text())}")
            if time.monotonic() > deadline:
                raise HostsError(f"{found} of {self._hosts.count} workers came within {_READY_S:g} s; see {self.log}")
            time.sleep(0.3)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    asked = _arguments(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    hosts = Hosts(asked.count, rate=asked.rate, name=asked.name, lines=asked.lines)
    try:
        if asked.what in ("exec", "cut", "heal", "slow"):
            return _act(hosts, asked)
        with hosts:
            if asked.what == "shell":
                print(f"hosts 0 to {asked.count} at {hosts.address(0)} ...; this shell is on host 0", file=sys.stderr)
                signal.signal(signal.SIGINT, lambda *_: None)  # is the shell's
                return subprocess.call(hosts.command(0, [os.environ.get("SHELL", "/bin/sh")]))
            if asked.what == "torment":
                return _torment(hosts, asked)
            if asked.what == "daemons":
                return _hold_daemons(hosts, asked)
            return _hold_spark(hosts)
    except HostsError as error:
        print(f"hosts: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("daemons", "spark", "shell", "torment", "exec", "cut", "heal", "slow"))
    parser.add_argument("--count", type=int, default=3, help="hosts beside host 0")
    parser.add_argument("--rate", help="of every link, or for slow of one, such as 200mbit")
    parser.add_argument("--name", default="netstack", help="prefix of the namespaces")
    parser.add_argument("--secret-file", type=Path, help="for daemons")
    parser.add_argument("--seed", type=int, default=0, help="for torment: of the first run")
    parser.add_argument("--runs", type=int, default=1, help="for torment")
    parser.add_argument("--unaligned", action="store_true", help="for torment: checkpoints with data in flight")
    parser.add_argument("--host", type=int, default=0, help="for exec, cut, heal and slow")
    add_flags(parser)
    parser.usage = f"{parser.format_usage().removeprefix('usage: ').rstrip()} [-- COMMAND of exec, or flags of daemons]"
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    asked = parser.parse_args(words[:end])
    asked.command = words[end + 1 :]
    try:
        shape = shape_of(asked)
    except ValueError as error:
        parser.error(str(error))
    asked.lines = {} if shape == Shape() else {1: shape}
    if asked.what == "exec" and not asked.command:
        parser.error("exec: give a command after --")
    return asked


def _act(hosts: Hosts, asked: argparse.Namespace) -> int:
    if asked.what == "exec":
        os.execvp("ip", hosts.command(asked.host, asked.command))  # so that Ctrl-C and the exit code are the command's
    if asked.what == "slow":
        hosts.slow(asked.host, asked.rate)
    else:
        (hosts.cut if asked.what == "cut" else hosts.heal)(asked.host)
    return 0


def _hold_daemons(hosts: Hosts, asked: argparse.Namespace) -> int:
    with _secret(asked.secret_file) as secret_file:
        daemons = Daemons(hosts, secret_file, asked.command)
        daemons.start_all()
        words = _on_host_0(hosts, [*_BENCH, "run", "--hosts", daemons.flag, "--secret-file", str(secret_file)])
        print(words, flush=True)
        signal.pause()
    return 0


def _torment(hosts: Hosts, asked: argparse.Namespace) -> int:
    """Runs whose histories are judged; what is wrong is printed with its witness."""
    bad = 0
    for seed in range(asked.seed, asked.seed + asked.runs):
        with tempfile.TemporaryDirectory(prefix="netstack-torment-") as folder:
            try:
                mode = "unaligned" if asked.unaligned else "aligned"
                verdict = torment(
                    hosts, seed, Path(folder), mode=mode, log_event=lambda text: print(f"  {text}", flush=True)
                )
            finally:
                hosts.end_all()
        bad += bool(verdict.anomalies)
        for anomaly in verdict.anomalies:
            print(anomaly)
        judged = f"{verdict.lives} attempts, {len(verdict.events)} events: {len(verdict.anomalies) or 'nothing'} wrong"
        print(f"seed {seed}: {len(verdict.faults)} faults, {judged}", flush=True)
    return 1 if bad else 0


def _hold_spark(hosts: Hosts) -> int:
    with SparkCluster(hosts) as cluster:
        facts = [f"SPARK_LOCAL_IP={hosts.address(0)}", f"PYSPARK_PYTHON={sys.executable}"]
        sweep = ["sweep", "--place", "spark", "--master", cluster.master, "--nodes", str(hosts.count)]
        print(_on_host_0(hosts, ["env", *facts, *_BENCH, *sweep]), flush=True)
        signal.pause()
    return 0


@contextlib.contextmanager
def _secret(given: Path | None) -> Iterator[Path]:
    """The user's, or one for this time."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="netstack-hosts-") as folder:
        path = Path(folder) / "secret"
        path.touch(mode=0o600)
        path.write_text(os.urandom(32).hex())
        yield path


def _on_host_0(hosts: Hosts, words: Sequence[str]) -> str:
    """A command for another terminal."""
    return shlex.join([sys.executable, sys.argv[0], "exec", "--name", hosts.name, "--", *words])


if __name__ == "__main__":
    sys.exit(main())
