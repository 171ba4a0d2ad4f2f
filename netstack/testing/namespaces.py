"""Several hosts on one machine: network namespaces with an address each, joined by veth pairs and a bridge.

Takes: root, `ip` and, for a rate, a kernel with `tbf`. Gives: `Hosts`, and `Daemons` on them; `tools/hosts.py` is their
command line.

Rules: what a run that was killed left behind is removed by the next of its name; a run that is alive is not touched.

The bridge has a namespace of its own, so nothing appears in the machine's and there is nothing to clean up there. All
hosts share the machine's clocks, CPUs and disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..base.errors import ConfigError
from ..base.units import parse_link_rate
from .shaped_line import Shape

NETWORK: Final = "10.77.0"
SWITCH: Final = f"{NETWORK}.1"
DAEMON_PORT: Final = 6121
_END_S: Final = 10.0
_BURST_S: Final = 0.05  # of a line, that may go at once
_MOST_HOSTS: Final = 200
_NUMBERS: Final = itertools.count()


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
        lines: the hosts that are joined by a shaped line (`shaped_line`) instead of a veth pair.

    Raises:
        HostsError: not here, or hosts of this name are up.
    """

    def __init__(
        self,
        count: int,
        *,
        rate: str | None = None,
        name: str | None = None,
        lines: Mapping[int, Shape] | None = None,
    ) -> None:
        self.count = count
        self._lines = dict(lines or {})
        self._line_processes: list[subprocess.Popen[str]] = []
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
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.end_all()
            self.remove()
        finally:
            self._free_name()
            for process in self._line_processes:
                _end(process)

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
            _end(process)
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
            if host in self._lines:
                self._make_line(host, self._lines[host])
            else:
                veth = ("type", "veth", "peer", "name", f"v{host}", "netns", switch)
                _ip("link", "add", "eth0", "netns", namespace, *veth)
            _ip("-n", switch, "link", "set", f"v{host}", "master", "br0", "up")
            _ip("-n", namespace, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            if self.rate is not None and host:
                self.slow(host, self.rate)

    def _make_line(self, host: int, shape: Shape) -> None:
        far = f"far{host}"
        words = [sys.executable, "-m", "netstack.testing.shaped_line", far, f"v{host}", *shape.words()]
        with tempfile.TemporaryFile("w+") as log:
            line = subprocess.Popen(
                self.command(None, words), start_new_session=True, stdout=subprocess.PIPE, stderr=log, text=True
            )
            self._line_processes.append(line)
            assert line.stdout is not None
            if not line.stdout.readline():
                line.wait()
                log.seek(0)
                raise HostsError(f"the line of host {host} ended at once: {last_line(log.read())}")
        _ip("-n", self._namespace(None), "link", "set", far, "netns", self._namespace(host), "name", "eth0")


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
                raise HostsError(f"the daemon on host {host} ended at once: {last_line(log.read())}")
        self.processes[host] = process

    def start_all(self) -> None:
        """One on each host but 0."""
        for host in range(1, self._hosts.count + 1):
            self.start(host)

    def kill(self, host: int) -> None:
        """SIGKILL, now."""
        _signal(self.processes[host], signal.SIGKILL)
        self.processes[host].wait()


def last_line(text: str) -> str:
    """The last line of what a process wrote that has words."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _end(process: subprocess.Popen[str]) -> None:
    """SIGKILL to it and its children, and its pipes closed."""
    _signal(process, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _signal(process: subprocess.Popen[str], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _pids(namespace: str) -> list[int]:
    output = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False).stdout
    return [int(pid) for pid in output.split()]


def _limit(namespace: str, device: str, rate: str) -> None:
    if shutil.which("tc") is None:
        raise HostsError("there is no `tc` command, which sets --rate: install iproute2")
    # What may go at once is also what may wait behind it: 64 KiB at 256 kbit/s would be a queue of two seconds.
    try:
        burst = min(65536, max(2 * 1514, int(parse_link_rate(rate) * _BURST_S)))
    except ConfigError as error:
        raise HostsError(f"--rate: {error}") from error
    words = ["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf"]
    made = subprocess.run(
        [*words, "rate", rate, "burst", str(burst), "latency", "20ms"], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise HostsError(f"a rate of {rate} cannot be set: {made.stderr.strip()}; has this kernel tbf?")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostsError(f"ip {' '.join(words)}: {done.stderr.strip()}")
