"""The command `netstack web-token`: creates a token that the web page and the REST interface of a JobManager accept.

Takes: the secret. Gives: a token on standard output that expires after some time.
"""

from __future__ import annotations

from pathlib import Path

import click

from ..base.errors import ConfigError
from ..network.connection.authentication import Secret
from .jobmanager_flags import SECRET_VARIABLE
from .values import LENGTH


@click.command("web-token", short_help="Create an access token for a JobManager's web page.")
@click.option(
    "--secret-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar=SECRET_VARIABLE,
    required=True,
    show_default=f"${SECRET_VARIABLE}",
    help="File with the secret of the cluster.",
)
@click.option("--expires", "expires_s", type=LENGTH, default="12h", show_default=True, help="Lifetime of the token.")
def web_token(secret_file: Path, expires_s: float) -> None:
    """Create an access token for a JobManager's web page and REST interface (`Authorization: Bearer TOKEN`).

    With the token anyone can see all jobs and, if the JobManager runs with --web-submit, cancel them. The secret cannot
    be derived from it.
    """
    if not expires_s > 0:
        raise ConfigError("--expires 0 makes a token that has expired already; give a lifetime such as 12h")
    click.echo(Secret.from_file(secret_file).web_token(expires_s))
