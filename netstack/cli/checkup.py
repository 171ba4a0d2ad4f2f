"""What of this machine makes netstack slow, or keeps it from starting: one function a check.

Takes: files of the system (below a root, so that tests have one of their own), ports, a secret file. Gives: `Finding`s.

Rules: nothing is changed, nothing but this machine is asked. `fail` is what will not work, `warn` what costs, `note`
what is missing for some of the commands.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ..errors import ConfigError
from ..runtime.authentication import Secret

Verdict = Literal["ok", "note", "warn", "fail"]

LEAST_FILES: Final = 4096
"""Open files: a connection is one; a daemon's bound is its own, but a low limit comes before it."""
LEAST_BACKLOG: Final = 1024
LEAST_BUFFER_BYTES: Final = 4 << 20
"""What TCP may grow a socket's buffers to: below it a long link does not fill."""
MOST_STEAL: Final = 0.05
LEAST_JAVA: Final = 17
_STEAL_S: Final = 0.5
_TIME_ERROR: Final = 5  # adjtimex(2): nobody keeps the clock
_GOOD_CLOCKS: Final = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen")
_EXTRAS: Final = {
    "pyarrow": "columnar batches, Parquet, sweeps",
    "prometheus_client": "--metrics",
    "pyspark": "sweeps on Spark",
    "zmq": "netstack-bench run --peer zmq",
    "lzallright": "reading LZO from Flink",
}
_DISTRIBUTIONS: Final = {"zmq": "pyzmq"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One check.

    Attributes:
        name: what was looked at.
        verdict: see the module.
        found: what there is.
        advice: what to change, a command where there is one; empty where nothing is to be.
    """

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def python() -> Finding:
    """The interpreter."""
    release = sys.version_info
    return Finding("Python", "ok", f"{release.major}.{release.minor}.{release.micro} at {sys.executable}")


def java() -> Finding:
    """For Spark only."""
    place = shutil.which("java") or (
        os.environ.get("JAVA_HOME") and shutil.which("bin/java", path=os.environ["JAVA_HOME"])
    )
    if not place:
        return Finding("Java", "note", "none", f"for Spark: apt-get install openjdk-{LEAST_JAVA}-jre-headless")
    try:
        output = subprocess.run([place, "-version"], capture_output=True, text=True, timeout=10, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(
            "Java", "note", f"{place} does not run: {error}", f"for Spark: install Java {LEAST_JAVA} or newer"
        )
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    release = int(match[1]) if match else 0
    if release < LEAST_JAVA:
        return Finding("Java", "note", f"{release or output.strip()[:40]!r}", f"for Spark: Java {LEAST_JAVA} or newer")
    return Finding("Java", "ok", str(release))


def cpus(root: Path = Path("/")) -> Finding:
    """How many there are, and whether somebody else takes their time (half a second is looked at)."""
    usable = len(os.sched_getaffinity(0))
    first = _cpu_times(root)
    time.sleep(_STEAL_S if first else 0)
    second = _cpu_times(root)
    stolen = 0.0
    if first and second and sum(second) > sum(first) and len(first) > 7:
        stolen = (second[7] - first[7]) / (sum(second) - sum(first))
    usage = f"{usable} usable, {stolen:.0%} of their time stolen"
    if stolen > MOST_STEAL:
        return Finding(
            "CPUs", "warn", usage, "other guests of the host take it: figures will move; measure elsewhere or longer"
        )
    if usable < 2:
        return Finding("CPUs", "warn", usage, "a producer and a consumer want one each")
    return Finding("CPUs", "ok", usage)


def _cpu_times(root: Path) -> list[int]:
    try:
        words = (root / "proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    except (OSError, IndexError):
        return []
    return [int(word) for word in words[1:]]


def congestion_control(root: Path = Path("/")) -> Finding:
    """What connections to other hosts use; on loopback netstack sets its own."""
    name = _line(root / "proc/sys/net/ipv4/tcp_congestion_control")
    if name is None:
        return Finding("congestion control", "note", "not told", "")
    if name == "bbr":
        advice = "fine on long links; within a rack: sysctl -w net.ipv4.tcp_congestion_control=cubic"
        return Finding("congestion control", "note", name, advice)
    return Finding("congestion control", "ok", name)


def open_files() -> Finding:
    """The soft limit of this shell."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        most = LEAST_FILES if hard == resource.RLIM_INFINITY or hard >= LEAST_FILES else hard
        return Finding("open files", "warn", limit, f"ulimit -n {most}; in the unit: LimitNOFILE=65536")
    return Finding("open files", "ok", limit)


def backlog(root: Path = Path("/")) -> Finding:
    """How many connections may wait to be accepted."""
    text = _line(root / "proc/sys/net/core/somaxconn")
    if text is None or not text.isdigit():
        return Finding("listen backlog", "note", "not told")
    if int(text) < LEAST_BACKLOG:
        return Finding("listen backlog", "warn", text, f"sysctl -w net.core.somaxconn={LEAST_BACKLOG}")
    return Finding("listen backlog", "ok", text)


def socket_buffers(root: Path = Path("/")) -> Iterator[Finding]:
    """What TCP may grow them to by itself."""
    for name, key in (("socket send buffer", "tcp_wmem"), ("socket receive buffer", "tcp_rmem")):
        words = (_line(root / f"proc/sys/net/ipv4/{key}") or "").split()
        if len(words) != 3:
            yield Finding(name, "note", "not told")
            continue
        most = int(words[2])
        growth = f"grows to {most / (1 << 20):.3g} MiB"
        if most < LEAST_BUFFER_BYTES:
            least = f"{words[0]} {words[1]} {LEAST_BUFFER_BYTES}"
            yield Finding(name, "warn", growth, f'for long links: sysctl -w net.ipv4.{key}="{least}"')
        else:
            yield Finding(name, "ok", growth)


def port(number: int, host: str = "0.0.0.0") -> Finding:
    """Whether a daemon could listen there."""
    name = f"port {number}"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError as error:
            taken = f"{error.strerror or error}"
            return Finding(
                name, "warn", taken, f"see who has it: ss -ltnp 'sport = :{number}'; or choose another with --listen"
            )
    return Finding(name, "ok", "free")


def secret_file(path: Path | None) -> Finding:
    """Whether it can be used."""
    if path is None:
        how = "for other hosts: (umask 077; head -c 32 /dev/urandom | base64 > secret), the same file on each"
        return Finding("secret file", "note", "none given (--secret-file)", how)
    try:
        Secret.from_file(path)
    except ConfigError as error:
        text = str(error)
        return Finding("secret file", "fail", text.partition(";")[0], text.partition(";")[2].strip())
    return Finding("secret file", "ok", str(path))


def clock(root: Path = Path("/")) -> Iterator[Finding]:
    """Where time comes from, and whether somebody keeps it right."""
    source = _line(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source is not None and source not in _GOOD_CLOCKS:
        yield Finding(
            "clock source", "warn", source, "each look at the clock is a system call: boot with clocksource=tsc"
        )
    elif source is not None:
        yield Finding("clock source", "ok", source)
    kept = is_clock_kept()
    if kept is False:
        advice = (
            "one-way latencies are measured all the same (clocks are compared); for log files: apt-get install chrony"
        )
        yield Finding("clock", "note", "nobody keeps it right", advice)
    elif kept:
        yield Finding("clock", "ok", "kept right")


def is_clock_kept() -> bool | None:
    """Whether the kernel takes its clock to be synchronised; None where that cannot be read."""
    try:
        ask = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    state = int(ask(ctypes.create_string_buffer(512)))  # struct timex, all zero: a question
    return None if state < 0 else state != _TIME_ERROR


def extras(version_of: Callable[[str], str] = importlib.metadata.version) -> Iterator[Finding]:
    """Packages that some commands want."""
    for module, use in _EXTRAS.items():
        name = _DISTRIBUTIONS.get(module, module)
        try:
            yield Finding(name, "ok", version_of(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "note", "not installed", f"for {use}: pip install {name}")


def checkup(ports: tuple[int, ...], secret: Path | None) -> list[Finding]:
    """Every check, in the order in which people look."""
    return [
        python(),
        java(),
        cpus(),
        congestion_control(),
        *socket_buffers(),
        backlog(),
        open_files(),
        *(port(number) for number in ports),
        secret_file(secret),
        *clock(),
        *extras(),
    ]


def _line(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
