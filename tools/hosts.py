#!/usr/bin/env python3
"""Several hosts on one machine: network namespaces with an address each, joined by veth pairs and a bridge.

    sudo .venv/bin/python tools/hosts.py daemons --count 3             three hosts, a netstack taskmanager on each
    sudo .venv/bin/python tools/hosts.py spark --count 3               three hosts, a Spark worker on each, and a master
    sudo .venv/bin/python tools/hosts.py shell --rate 200mbit          just the hosts, and a shell on host 0
    sudo .venv/bin/python tools/hosts.py torment --seed 7 --runs 3     kills, stops and cuts: is a job exact?

Each runs in the foreground: it prints what to run against it, and takes everything down on Ctrl-C. Host 0 is for
whoever measures; 1 to N are for daemons and workers. What follows `--` goes to the daemons. In another terminal:

    sudo .venv/bin/python tools/hosts.py exec --host 0 -- ip addr      runs a command on a host
    sudo .venv/bin/python tools/hosts.py cut --host 2                  unplugs it; `heal` plugs it in again
    sudo .venv/bin/python tools/hosts.py slow --host 2 --rate 5mbit    gives its line another rate; none is full speed

Takes: root, `ip` and, for a rate, a kernel with `tbf`. Gives: `Hosts`, `Daemons`, `SparkCluster`, also to tests.

Rules: what a run that was killed left behind is removed by the next of its name; a run that is alive is not touched.

The bridge has a namespace of its own, so nothing appears in the machine's and there is nothing to clean up there. All
hosts share the machine's clocks, CPUs and disk; delay is the business of the `impaired` transport.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

NETWORK: Final = "10.77.0"
SWITCH: Final = f"{NETWORK}.1"
DAEMON_PORT: Final = 6121
SPARK_PORT: Final = 7077
SPARK_PAGE: Final = 8080
_READY_S: Final = 60.0
_END_S: Final = 10.0
_MOST_HOSTS: Final = 200
_NUMBERS: Final = itertools.count()
_BENCH: Final = (sys.executable, "-P", "-m", "netstack_bench")


class HostsError(Exception):
    """Hosts cannot be made here; the message says why."""


def why_not() -> str:
    """What is missing to make hosts; empty when nothing is."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no `ip` command: install iproute2"
    probe = f"nsprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return ""


class Hosts:
    """Hosts 0 to `count`; host i has the address `address(i)`.

    Args:
        count: hosts beside host 0.
        rate: of every link in both directions, as `tc` writes it, such as `200mbit`; None is what the machine does.
        name: prefix of the namespaces.

    Raises:
        HostsError: not here, or hosts of this name are up.
    """

    def __init__(self, count: int, *, rate: str | None = None, name: str | None = None) -> None:
        self.count = count
        self.name = name or f"ns{os.getpid()}-{next(_NUMBERS)}"
        self.rate = rate
        self._processes: list[subprocess.Popen[str]] = []
        self._lock: int | None = None

    def __enter__(self) -> Hosts:
        missing = why_not()
        if missing:
            raise HostsError(missing)
        if not 1 <= self.count <= _MOST_HOSTS:
            raise HostsError(f"--count {self.count}: give 1 to {_MOST_HOSTS}")
        self._take_name()
        try:
            self.remove()  # of a run that was killed
            self._make()
        except BaseException:
            self.remove()
            self._free_name()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.end_all()
            self.remove()
        finally:
            self._free_name()

    def address(self, host: int) -> str:
        """IPv4 address of a host."""
        return f"{NETWORK}.{10 + host}"

    def command(self, host: int | None, words: Sequence[str]) -> list[str]:
        """A command on a host; None is the switch, where a cluster's master sits."""
        return ["ip", "netns", "exec", self._namespace(host), *words]

    def start(self, host: int | None, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Starts a process on a host; `end_all` ends it."""
        options.setdefault("text", True)
        process = subprocess.Popen(self.command(host, words), start_new_session=True, **options)
        self._processes.append(process)
        return process

    def run(self, host: int | None, words: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command on a host to its end."""
        options.setdefault("text", True)
        options.setdefault("capture_output", True)
        return subprocess.run(self.command(host, words), check=False, **options)

    def pids(self, host: int | None) -> list[int]:
        """Processes that run on a host."""
        return _pids(self._namespace(host))

    def cut(self, host: int) -> None:
        """Unplugs a host: what is sent to it is lost, without a word to anybody."""
        _ip("-n", self._namespace(None), "link", "set", f"v{host}", "down")

    def heal(self, host: int) -> None:
        """Plugs it in again."""
        _ip("-n", self._namespace(None), "link", "set", f"v{host}", "up")

    def slow(self, host: int, rate: str | None, *, inbound_only: bool = False) -> None:
        """Gives a host's line this rate in both directions, as `tc` writes it; None takes the limit away.

        Args:
            host: which.
            rate: of its line.
            inbound_only: leaves what it sends as fast as it is.
        """
        ends = ((self._namespace(None), f"v{host}"), (self._namespace(host), "eth0"))
        for namespace, device in ends[:1] if inbound_only else ends:
            if rate is None:
                subprocess.run(
                    ["tc", "-n", namespace, "qdisc", "del", "dev", device, "root"], capture_output=True, check=False
                )
            else:
                _limit(namespace, device, rate)

    def end_all(self) -> None:
        """Ends every process that was started here: SIGTERM, then SIGKILL, to it and its children."""
        for process in self._processes:
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + _END_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            _signal(process, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        self._processes.clear()

    def remove(self) -> None:
        """Removes all namespaces of this name and kills what runs in them; their links vanish with them."""
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
        for namespace in (line.split()[0] for line in listed.splitlines() if line.strip()):
            if re.fullmatch(rf"{re.escape(self.name)}-(sw|\d+)", namespace):
                for pid in _pids(namespace):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)

    def _namespace(self, host: int | None) -> str:
        return f"{self.name}-sw" if host is None else f"{self.name}-{host}"

    def _take_name(self) -> None:
        """The lock goes with its process, however that ends."""
        path = Path(tempfile.gettempdir()) / f"netstack-hosts-{self.name}.lock"
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise HostsError(f"hosts named {self.name} are up; end them, or choose another --name") from None
        self._lock = lock

    def _free_name(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _make(self) -> None:
        switch = self._namespace(None)
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "set", "lo", "up")
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "addr", "add", f"{SWITCH}/24", "dev", "br0")
        _ip("-n", switch, "link", "set", "br0", "up")
        for host in range(self.count + 1):
            namespace = self._namespace(host)
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")  # Spark's JVM and Python talk over it
            _ip("link", "add", "eth0", "netns", namespace, "type", "veth", "peer", "name", f"v{host}", "netns", switch)
            _ip("-n", switch, "link", "set", f"v{host}", "master", "br0", "up")
            _ip("-n", namespace, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            if self.rate is not None and host:
                self.slow(host, self.rate)


class Daemons:
    """A `netstack taskmanager` on hosts 1 to N.

    Args:
        hosts: up.
        secret_file: shared by all and by whoever measures.
        arguments: more flags of the command.
    """

    def __init__(self, hosts: Hosts, secret_file: Path, arguments: Sequence[str] = ()) -> None:
        self._hosts = hosts
        self._words = [sys.executable, "-m", "netstack.cli", "taskmanager", "--secret-file", str(secret_file), "--json"]
        self._words += arguments
        self.processes: dict[int, subprocess.Popen[str]] = {}

    @property
    def flag(self) -> str:
        """What `--hosts` is given."""
        return ",".join(f"{self._hosts.address(host)}:{DAEMON_PORT}" for host in sorted(self.processes))

    def start(self, host: int) -> None:
        """Starts one, or starts it again, and waits until it listens."""
        listen = f"tcp://{self._hosts.address(host)}:{DAEMON_PORT}"
        with tempfile.TemporaryFile("w+") as log:
            process = self._hosts.start(host, [*self._words, "--listen", listen], stdout=subprocess.PIPE, stderr=log)
            assert process.stdout is not None
            if not process.stdout.readline():
                process.wait()
                log.seek(0)
                raise HostsError(f"the daemon on host {host} ended at once: {_last_line(log.read())}")
        self.processes[host] = process

    def start_all(self) -> None:
        """One on each host but 0."""
        for host in range(1, self._hosts.count + 1):
            self.start(host)

    def kill(self, host: int) -> None:
        """SIGKILL, now."""
        _signal(self.processes[host], signal.SIGKILL)
        self.processes[host].wait()


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
                raise HostsError(f"a daemon of Spark ended at once: {_last_line(self.log.read_text())}")
            if time.monotonic() > deadline:
                raise HostsError(f"{found} of {self._hosts.count} workers came within {_READY_S:g} s; see {self.log}")
            time.sleep(0.3)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    asked = _arguments(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    hosts = Hosts(asked.count, rate=asked.rate, name=asked.name)
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
    parser.usage = f"{parser.format_usage().removeprefix('usage: ').rstrip()} [-- COMMAND of exec, or flags of daemons]"
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    asked = parser.parse_args(words[:end])
    asked.command = words[end + 1 :]
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
    from netstack.testing.simulate.real import torment

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


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _signal(process: subprocess.Popen[str], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _pids(namespace: str) -> list[int]:
    told = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False).stdout
    return [int(pid) for pid in told.split()]


def _limit(namespace: str, device: str, rate: str) -> None:
    if shutil.which("tc") is None:
        raise HostsError("there is no `tc` command, which sets --rate: install iproute2")
    words = ["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf"]
    made = subprocess.run(
        [*words, "rate", rate, "burst", "64kb", "latency", "20ms"], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise HostsError(f"a rate of {rate} cannot be set: {made.stderr.strip()}; has this kernel tbf?")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostsError(f"ip {' '.join(words)}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main())
