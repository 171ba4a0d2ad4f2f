"""The command `netstack doctor`: checks whether this machine is set up well for netstack.

Takes: ports and a secret file to check. Gives: one line per check with advice; exit code 1 if a check failed.

Rules: a check changes nothing and contacts no other machine. Verdicts: `fail` means that netstack will not work, `warn`
that it will be slow, `note` that some commands lack something.
"""

from __future__ import annotations

import ctypes
import dataclasses
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

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..base.errors import ConfigError
from ..network.connection.authentication import Secret
from .jobmanager_flags import SECRET_VARIABLE
from .json_document import print_document
from .values import COUNT, several

Verdict = Literal["ok", "note", "warn", "fail"]

LEAST_FILES: Final = 4096
"""Open files: each connection needs one."""
LEAST_BACKLOG: Final = 1024
LEAST_BUFFER_BYTES: Final = 4 << 20
"""Maximum size of TCP socket buffers; with smaller ones a connection cannot saturate a link with a long round trip."""
MOST_STEAL: Final = 0.05
LEAST_JAVA: Final = 17
_STEAL_S: Final = 0.5
_TIME_ERROR: Final = 5  # adjtimex(2): the clock is not synchronised
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
    """The result of one check.

    Attributes:
        verdict: `ok`, `note`, `warn` or `fail`; see the module.
        found: the current value.
        advice: what to change, as a command where possible; empty if nothing needs to change.
    """

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def python() -> Finding:
    """Reports the Python version."""
    release = sys.version_info
    return Finding("Python", "ok", f"{release.major}.{release.minor}.{release.micro} at {sys.executable}")


def java() -> Finding:
    """Checks the Java version, which matters to Spark only."""
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
    """Counts the usable CPUs, and measures for half a second how much of their time other guests of the host take."""
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
            "CPUs",
            "warn",
            usage,
            "other guests of the host take it, so measurements will vary; measure longer or on another machine",
        )
    if usable < 2:
        return Finding("CPUs", "warn", usage, "a producer and a consumer need one each")
    return Finding("CPUs", "ok", usage)


def _cpu_times(root: Path) -> list[int]:
    try:
        words = (root / "proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    except (OSError, IndexError):
        return []
    return [int(word) for word in words[1:]]


def congestion_control(root: Path = Path("/")) -> Finding:
    """Checks the congestion control of connections to other hosts; on loopback netstack sets its own."""
    name = _line(root / "proc/sys/net/ipv4/tcp_congestion_control")
    if name is None:
        return Finding("congestion control", "note", "cannot be read")
    if name == "bbr":
        advice = "good on long links; within a rack use: sysctl -w net.ipv4.tcp_congestion_control=cubic"
        return Finding("congestion control", "note", name, advice)
    return Finding("congestion control", "ok", name)


def open_files() -> Finding:
    """Checks the soft limit of open files in this shell."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        most = LEAST_FILES if hard == resource.RLIM_INFINITY or hard >= LEAST_FILES else hard
        return Finding("open files", "warn", limit, f"ulimit -n {most}; in a systemd unit: LimitNOFILE=65536")
    return Finding("open files", "ok", limit)


def backlog(root: Path = Path("/")) -> Finding:
    """Checks how many connections may wait to be accepted."""
    text = _line(root / "proc/sys/net/core/somaxconn")
    if text is None or not text.isdigit():
        return Finding("listen backlog", "note", "cannot be read")
    if int(text) < LEAST_BACKLOG:
        return Finding("listen backlog", "warn", text, f"sysctl -w net.core.somaxconn={LEAST_BACKLOG}")
    return Finding("listen backlog", "ok", text)


def socket_buffers(root: Path = Path("/")) -> Iterator[Finding]:
    """Checks the sizes up to which TCP may grow its socket buffers."""
    for name, key in (("socket send buffer", "tcp_wmem"), ("socket receive buffer", "tcp_rmem")):
        words = (_line(root / f"proc/sys/net/ipv4/{key}") or "").split()
        if len(words) != 3:
            yield Finding(name, "note", "cannot be read")
            continue
        most = int(words[2])
        growth = f"grows to {most / (1 << 20):.3g} MiB"
        if most < LEAST_BUFFER_BYTES:
            least = f"{words[0]} {words[1]} {LEAST_BUFFER_BYTES}"
            yield Finding(name, "warn", growth, f'for long links: sysctl -w net.ipv4.{key}="{least}"')
        else:
            yield Finding(name, "ok", growth)


def port(number: int, host: str = "0.0.0.0") -> Finding:
    """Checks whether a service could listen on a port."""
    name = f"port {number}"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError as error:
            taken = f"{error.strerror or error}"
            return Finding(
                name, "warn", taken, f"to see its owner: ss -ltnp 'sport = :{number}'; or choose another with --listen"
            )
    return Finding(name, "ok", "free")


def secret_file(path: Path | None) -> Finding:
    """Checks whether the secret file is usable."""
    if path is None:
        how = "for several hosts: (umask 077; head -c 32 /dev/urandom | base64 > secret), the same file on each"
        return Finding("secret file", "note", f"none given (--secret-file or ${SECRET_VARIABLE})", how)
    try:
        Secret.from_file(path)
    except ConfigError as error:
        text = str(error)
        return Finding("secret file", "fail", text.partition(";")[0], text.partition(";")[2].strip())
    return Finding("secret file", "ok", str(path))


def clock(root: Path = Path("/")) -> Iterator[Finding]:
    """Checks the clock source, and whether the clock is synchronised."""
    source = _line(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source is not None and source not in _GOOD_CLOCKS:
        yield Finding(
            "clock source", "warn", source, "reading the clock needs a system call: boot with clocksource=tsc"
        )
    elif source is not None:
        yield Finding("clock source", "ok", source)
    kept = is_clock_kept()
    if kept is False:
        advice = (
            "latencies are still correct, since netstack compares the clocks; for log files: apt-get install chrony"
        )
        yield Finding("clock", "note", "not synchronised", advice)
    elif kept:
        yield Finding("clock", "ok", "synchronised")


def is_clock_kept() -> bool | None:
    """Whether the kernel considers its clock synchronised; None if that cannot be read."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    state = int(adjtimex(ctypes.create_string_buffer(512)))  # struct timex, all zero: a query
    return None if state < 0 else state != _TIME_ERROR


def extras(version_of: Callable[[str], str] = importlib.metadata.version) -> Iterator[Finding]:
    """Checks for the optional packages of some commands."""
    for module, use in _EXTRAS.items():
        name = _DISTRIBUTIONS.get(module, module)
        try:
            yield Finding(name, "ok", version_of(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "note", "not installed", f"for {use}: pip install {name}")


def checkup(ports: tuple[int, ...], secret: Path | None) -> list[Finding]:
    """Runs every check."""
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


_STYLES: Final = {"ok": "green", "note": "cyan", "warn": "yellow", "fail": "red"}


@click.command(short_help="Check this machine's setup and suggest changes.")
@click.option(
    "--port",
    "ports",
    **several(COUNT),
    default=(6121,),
    show_default=True,
    help="Ports that services will listen on.",
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    envvar=SECRET_VARIABLE,
    show_default=f"${SECRET_VARIABLE}",
    help="Secret file that services will share.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
def doctor(ports: tuple[int, ...], secret_file: Path | None, as_json: bool) -> int:
    """Check this machine for settings that slow netstack down or keep it from starting, and suggest changes.

    The checks cover Java, CPUs and stolen CPU time, congestion control, socket and file limits, ports, the secret file,
    the clock and optional packages. Nothing is changed. The exit code is 1 if a check failed.
    """
    findings = checkup(ports, secret_file)
    failed = any(finding.verdict == "fail" for finding in findings)
    if as_json:
        print_document({"ok": not failed, "checks": [dataclasses.asdict(finding) for finding in findings]})
    else:
        _print(findings)
    return 1 if failed else 0


def _print(findings: list[Finding]) -> None:
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(style="bold")
    table.add_column()
    for finding in findings:
        text = escape(finding.found) + (f"\n[dim]{escape(finding.advice)}[/]" if finding.advice else "")
        table.add_row(f"[{_STYLES[finding.verdict]}]{finding.verdict}[/]", escape(finding.name), text)
    console.print(table)
