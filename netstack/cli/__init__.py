"""The command `netstack`: runs jobs and the processes that execute them. Benchmarks are in `netstack-bench`.

Takes: command-line arguments. Gives: an exit code; results on standard output, everything else on standard error.

Rules: with `--json` (or `--format json`) a command prints exactly one JSON document on standard output. If the command
fails, the document has the key `error`.
Exit codes: 0 for success, 1 for a failure or a negative result, 2 for wrong usage, 128 and the number of the signal
after Ctrl-C or SIGTERM (`stopping`).
"""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import click

from ..base import build
from ..base.errors import ConfigError, NetstackError
from ..base.text.safe_text import escape_unencodable, printable_lines
from ..base.version import __version__
from .json_document import drop_output, print_document
from .stopping import StoppedBySignal, exit_code, signals_are_ctrl_c, stop_code, stopped_by, unwrapped_interrupt
from .suggestions import usage_text

_COMMANDS: Final = {
    "buffers": "buffers",
    "cancel": "jobs",
    "certificate": "certificate",
    "consume": "consume",
    "datasets": "jobs",
    "demo": "demo",
    "doctor": "doctor",
    "jobmanager": "jobmanager",
    "jobs": "jobs",
    "plan": "plan",
    "record": "record",
    "replay": "record",
    "run": "run",
    "savepoint": "jobs",
    "serve": "serve",
    "stack": "jobs",
    "submit": "jobs",
    "taskmanager": "taskmanager",
    "top": "top",
    "tune": "tune",
    "web-token": "web_token",
}
"""The module that defines each command; the function has the command's name."""


_SERVICES: Final = (["jobmanager"], ["taskmanager"])
"""End with 0 also where they are stopped before they listen."""


class _Commands(click.Group):
    """Imports a command's module only when the command is used, which halves the start time of a TaskManager."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a command. Returns None for an unknown name."""
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = getattr(importlib.import_module(f".{module}", __name__), cmd_name.replace("-", "_"))
        return command


@click.group(
    cls=_Commands,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="netstack", message=f"%(prog)s, version %(version)s ({build.describe()})")
def cli() -> None:
    """Run jobs, run the cluster that executes them, and inspect both.

    Start with `netstack demo`, or `netstack run MODULE:FUNCTION` for a job of your own.

    Exit codes: 0 for success; 1 for a failure or a negative result; 2 for wrong usage; 130 after Ctrl-C and 143 after
    SIGTERM. Both are the normal end, with 0, of what runs until it is stopped: jobmanager, taskmanager, demo, replay,
    top, and record without --seconds.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: without the program's name; None means `sys.argv`.

    Returns:
        The exit code.
    """
    if arguments is None:
        escape_unencodable()
    words = sys.argv[1:] if arguments is None else list(arguments)
    as_json = not {"--json", "--format=json"}.isdisjoint(words) or ("--format", "json") in pairwise(words)
    try:
        with signals_are_ctrl_c(), unwrapped_interrupt():
            return exit_code(_run(words))
    except click.UsageError as error:
        return _failed(usage_text(error, cli, "netstack", words), 2, as_json)
    except StoppedBySignal as error:
        return _failed(str(error), stop_code(), as_json)
    except ConfigError as error:
        return _failed(str(error), 2, as_json, getattr(error, "traceback", ""))
    except NetstackError as error:
        return _failed(str(error), 1, as_json, getattr(error, "traceback", ""))
    except OSError as error:
        advice = "; `ulimit -n` shows the limit of this shell and raises it" if error.errno == errno.EMFILE else ""
        return _failed(str(error).removeprefix(f"[Errno {error.errno}] ") + advice, 1, as_json)
    except (KeyboardInterrupt, click.Abort):
        return _failed(f"stopped by {stopped_by()}", 0 if words[:1] in _SERVICES else stop_code(), as_json)


def _run(words: list[str]) -> int:
    """Runs one command; the expected failure in a group of errors is raised alone."""
    try:
        return int(cli.main(words, prog_name="netstack", standalone_mode=False) or 0)
    except BaseExceptionGroup as group:
        from ..base.causes import root_cause  # loads trio, which --help does not need

        root = root_cause(group)
        if isinstance(root, NetstackError | OSError):
            raise root from None
        raise


def _failed(text: str, code: int, as_json: bool, traceback: str = "") -> int:
    """Prints the error, after the traceback of the user's code if there is one."""
    try:
        if as_json:
            print_document({"error": text, **({"traceback": traceback} if traceback else {})})
        click.echo(nl=False)  # flushes
    except OSError:  # standard output cannot be written, which may be what failed
        drop_output()
    if traceback:
        click.echo(printable_lines(traceback), err=True)
    click.echo(printable_lines(f"netstack: {text}"), err=True)
    return code
