"""The command `netstack web-token`: what the page of a JobManager, and programs that ask it, want to be shown.

Takes: the secret. Gives: a token on standard output, good for a while.
"""

from __future__ import annotations

from pathlib import Path

import click

from ..runtime.authentication import Secret
from .jobmanager_flags import SECRET_VARIABLE
from .values import LENGTH


@click.command("web-token", short_help="A token for the page of a JobManager.")
@click.option(
    "--secret-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar=SECRET_VARIABLE,
    required=True,
    help=f"Of the cluster; ${SECRET_VARIABLE} if not given.",
)
@click.option("--expires", "expires_s", type=LENGTH, default="12h", show_default=True, help="How long it is good.")
def web_token(secret_file: Path, expires_s: float) -> None:
    """A token for the page of a JobManager, and for its REST interface: `Authorization: Bearer TOKEN`.

    Whoever has it sees all jobs, and with --web-submit cancels them; the secret cannot be had from it.
    """
    click.echo(Secret.from_file(secret_file).web_token(expires_s))
