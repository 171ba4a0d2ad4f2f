"""Sentences about wrong usage, of both programs."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from netstack.base.version import __version__
from netstack.cli import cli as netstack, main as netstack_main
from netstack.cli.suggestions import _MEANT, BENCH_COMMANDS
from netstack_bench.cli import cli as bench, main as bench_main

MAINS = {"netstack": netstack_main, "netstack-bench": bench_main}
OPTIONS = {
    option
    for group in (netstack, bench)
    for name in group.list_commands(click.Context(group))
    for parameter in getattr(group.get_command(click.Context(group), name), "params", ())
    for option in parameter.opts
}


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (
            "netstack-bench run --duration 5",
            "'--duration'. Did you mean '--seconds'? (see: netstack-bench run --help)",
        ),
        ("netstack-bench run --timeout 5ms", "Did you mean '--buffer-timeout'?"),
        ("netstack-bench run --timeouts 5ms", "Did you mean '--buffer-timeout'?"),
        ("netstack-bench sweep --buffer-timeout 1ms", "Did you mean '--timeouts'?"),
        ("netstack-bench sweep --record-bytes 8", "Did you mean '--record-sizes'?"),
        ("netstack-bench run --size 8", "Did you mean '--record-bytes'?"),
        ("netstack-bench run --rtt 8ms", "Did you mean '--round-trip' or '--network'?"),
        ("netstack-bench recommend --rtt 8ms", "Did you mean '--network'?"),
        ("netstack-bench run -n 8", "Did you mean '--records' or '--repeats'?"),
        ("netstack-bench run --sec 1", "Did you mean '--seconds' or '--secret-file'?"),
        ("netstack-bench run --chanels 1", "No such option '--chanels'. Did you mean '--channels'? (see"),
        ("netstack-bench run --zzzzzz", "No such option '--zzzzzz' (see: netstack-bench run --help)"),
        ("netstack-bench run --channels 1,2", "not a whole number; `netstack-bench sweep` takes lists"),
        ("netstack-bench run --buffer-timeout 0,1ms", "`netstack-bench sweep` takes lists"),
        ("netstack-bench run --transport raw", "'raw' is not one of 'tcp', 'unix', 'shm', 'tls'. (see:"),
        ("netstack-bench swep", "No such command 'swep'. Did you mean 'sweep'? (see: netstack-bench --help)"),
        ("netstack taskmanager --port 7", "Did you mean '--listen'?"),
        ("netstack run m:f --workers 2", "Did you mean '--taskmanagers'?"),
        ("netstack jobmanger", "No such command 'jobmanger'. Did you mean 'jobmanager'? (see: netstack --help)"),
        ("netstack sweep", "It is a command of netstack-bench: netstack-bench sweep"),
        ("netstack certificate host f n --dayz 2", "Did you mean '--days'? (see: netstack certificate host --help)"),
    ],
)
def test_what_was_meant(line: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = line.split()
    assert MAINS[program](words) == 2
    assert meant in capsys.readouterr().err


def test_what_is_suggested_exists() -> None:
    meant = {name for names in _MEANT.values() for name in names.split()}
    assert meant <= OPTIONS
    assert all(name.startswith("-") for name in _MEANT)
    own = set(netstack.list_commands(click.Context(netstack)))
    assert set(bench.list_commands(click.Context(bench))) - own == set(BENCH_COMMANDS)


@pytest.mark.whole
@pytest.mark.parametrize("module", ["netstack", "netstack.cli", "netstack_bench"])
def test_the_package_is_the_command(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert __version__ in done.stdout
