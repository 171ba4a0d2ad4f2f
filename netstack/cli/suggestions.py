"""Sentences about wrong usage: what the user may have meant.

Takes: a usage error of click. Gives: one sentence.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

import click

BENCH_COMMANDS: Final = [
    "channels",
    "checkpoints",
    "compare",
    "emulation",
    "exchange",
    "goals",
    "isolate",
    "lines",
    "recommend",
    "regress",
    "report",
    "scale",
    "scheduler",
    "shuffle",
    "simulate",
    "streams",
    "sweep",
]
"""Commands that only `netstack-bench` has."""

_MEANT: Final = {
    "--address": "--listen --jobmanager --web",
    "--bandwidth": "--network --link-rate --throughput",
    "--bind": "--listen --web",
    "--buffer-timeout": "--timeouts",
    "--buffer-size": "--segment-size",
    "--buffers": "--floating-buffers",
    "--connect": "--jobmanager",
    "--count": "--records",
    "--delay": "--round-trip --network",
    "--dir": "--folder --output",
    "--duration": "--seconds --budget",
    "--file": "--input",
    "--format": "--json",
    "--host": "--hosts --listen --jobmanager",
    "--interval": "--checkpoint-interval --seconds",
    "--iterations": "--repeats",
    "--latency": "--p99 --round-trip --latency-rate",
    "--limit": "--budget --records --seconds",
    "--message-size": "--record-bytes --record-sizes",
    "--messages": "--records",
    "--n": "--records --repeats",
    "--nodes": "--hosts --taskmanagers",
    "--out": "--output",
    "--output-dir": "--output --folder",
    "--parallelism": "--channels",
    "--port": "--listen --web",
    "--record-bytes": "--record-sizes",
    "--record-size": "--record-bytes --record-sizes",
    "--record-sizes": "--record-bytes",
    "--rounds": "--repeats",
    "--rtt": "--round-trip --network",
    "--runs": "--repeats",
    "--secret": "--secret-file",
    "--size": "--record-bytes --record-sizes --bytes",
    "--threads": "--slots --processes",
    "--time": "--seconds --budget",
    "--timeout": "--buffer-timeout --timeouts",
    "--timeouts": "--buffer-timeout",
    "--transports": "--transport",
    "--workers": "--taskmanagers --processes --nodes",
    "-c": "--channels",
    "-d": "--seconds",
    "-n": "--records --repeats --seeds",
    "-o": "--output",
    "-r": "--rate --repeats",
    "-t": "--seconds",
    "-v": "--verbose",
}
"""By the name of a flag that other programs have: ours for the same, the likeliest first."""

_LIST: Final = re.compile("'[^']*,[^']*'")
_VERY_ALIKE: Final = 0.8
_ALIKE: Final = 0.6


def usage_text(error: click.UsageError, group: click.Group, program: str, words: list[str]) -> str:
    """The sentence about a usage error of `program`, whose arguments were `words`, and where the help is."""
    command = None if error.ctx is None else error.ctx.command
    named = words[:1] if words and words[0] in group.list_commands(click.Context(group)) else []
    if command is None and named:  # the parser's errors know no context
        command = group.get_command(click.Context(group), named[0])
    where = error.ctx.command_path if error.ctx is not None else " ".join([program, *named])
    text = error.format_message()
    if isinstance(error, click.NoSuchOption):
        options = [] if command is None else [name for each in command.params for name in each.opts]
        text = f"No such option '{error.option_name}'{did_you_mean(error.option_name, options)}"
    elif words and text.startswith("No such command") and not named:
        others = group.list_commands(click.Context(group))
        text = f"No such command '{words[0]}'{did_you_mean(words[0], others)}"
        if words[0] in BENCH_COMMANDS and program == "netstack":
            text = f"No such command '{words[0]}'. It is a command of netstack-bench: netstack-bench {words[0]}"
    elif named == ["run"] and program == "netstack-bench" and _LIST.match(error.message):
        text += "; `netstack-bench sweep` takes lists"
    return f"{text} (see: {where} --help)"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`. Did you mean '--seconds'?`: known names of the same meaning, else similar ones; empty if there are none."""
    candidates = [each for each in known if each.startswith("-") == name.startswith("-")]
    meant = [each for each in _MEANT.get(name, "").split() if each in candidates]
    matches = meant or [each for each in candidates if len(name) > 3 and each.startswith(name)]
    matches = matches or difflib.get_close_matches(name, candidates, n=1, cutoff=_VERY_ALIKE)
    matches = matches or difflib.get_close_matches(name, candidates, cutoff=_ALIKE)
    return f". Did you mean {' or '.join(map(repr, matches[:3]))}?" if matches else ""
