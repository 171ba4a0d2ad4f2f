"""The command line `netstack`: what concerns TaskManagers themselves; measuring is `netstack-bench`.

Takes: arguments. Gives: an exit code; results on standard output, everything else on standard error.

Rules: `--json` (or `--format json`) prints exactly one JSON document on standard output, also when the command fails
(then it has `error`).
Exit code 0: success. 1: the answer is no. 2: bad usage.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import metadata
from itertools import pairwise

import click

from .. import build
from ..errors import ConfigError, NetstackError
from .buffers import buffers
from .consume import consume
from .jobmanager import jobmanager
from .jobs import cancel, jobs, savepoint, submit
from .plan import plan
from .serve import serve
from .taskmanager import taskmanager
from .top import top


@click.group(no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(
    metadata.version("netstack"), prog_name="netstack", message=f"%(prog)s, version %(version)s ({build.describe()})"
)
def cli() -> None:
    """Records between tasks over TCP: what a TaskManager needs, before it is started."""


cli.add_command(buffers)
cli.add_command(cancel)
cli.add_command(consume)
cli.add_command(jobmanager)
cli.add_command(jobs)
cli.add_command(plan)
cli.add_command(savepoint)
cli.add_command(serve)
cli.add_command(submit)
cli.add_command(taskmanager)
cli.add_command(top)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: without the program's name; None takes the process's own.

    Returns:
        The exit code: 0, 1 or 2.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    as_json = not {"--json", "--format=json"}.isdisjoint(words) or ("--format", "json") in pairwise(words)
    try:
        return int(cli.main(words, prog_name="netstack", standalone_mode=False) or 0)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "netstack"
        return _failed(f"{error.format_message()} (see: {where} --help)", 2, as_json)
    except ConfigError as error:
        return _failed(str(error), 2, as_json)
    except (NetstackError, OSError) as error:
        return _failed(str(error), 1, as_json)
    except (KeyboardInterrupt, click.Abort):
        return _failed("stopped by Ctrl-C", 1, as_json)


def _failed(text: str, code: int, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps({"error": text}))
    click.echo(f"netstack: {text}", err=True)
    return code
