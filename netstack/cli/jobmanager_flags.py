"""Command-line flags for the address of the JobManager and for the shared secret, and a client that uses them.

Takes: command-line arguments or environment variables. Gives: a connected client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import trio

from ..base.errors import ConnectionLost
from ..cluster.jobmanager.client import DEFAULT_ADDRESS, JobClient, open_job_client
from ..network.connection.authentication import Secret

ADDRESS_VARIABLE: Final = "NETSTACK_JOBMANAGER"
SECRET_VARIABLE: Final = "NETSTACK_SECRET_FILE"

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Result = TypeVar("_Result")

secret_flag: Final = click.option(
    "--secret-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar=SECRET_VARIABLE,
    show_default=f"${SECRET_VARIABLE}",
    help="File with the secret that all processes of the cluster share.",
)

json_flag: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def jobmanager_flags(command: _Command) -> _Command:
    """Adds `jobmanager` and `secret_file`."""
    address = click.option(
        "--jobmanager",
        metavar="ADDR:PORT",
        envvar=ADDRESS_VARIABLE,
        default=DEFAULT_ADDRESS,
        show_default=f"${ADDRESS_VARIABLE}, else {DEFAULT_ADDRESS}",
        help="Address of the JobManager.",
    )
    return address(secret_flag(command))


def secret_of(secret_file: Path | None) -> Secret | None:
    """Reads the secret that is shared with the JobManager. Raises ConfigError if the file cannot be read."""
    return None if secret_file is None else Secret.from_file(secret_file)


@asynccontextmanager
async def connected(jobmanager: str, secret_file: Path | None) -> AsyncIterator[JobClient]:
    """Connects a client with the values of `jobmanager_flags`.

    Raises:
        ConnectionLost: no JobManager answers; the text says what to do.
        ConfigError: the secret cannot be read.
    """
    is_connected = False
    try:
        async with open_job_client(jobmanager, secret=secret_of(secret_file), name="netstack") as client:
            is_connected = True
            yield client
    except (ConnectionLost, OSError) as error:
        if is_connected:
            raise
        raise ConnectionLost(
            f"no JobManager answers at {jobmanager} ({error}); start one with `netstack jobmanager`, or give its"
            f" address with --jobmanager or ${ADDRESS_VARIABLE}"
        ) from error


def call(jobmanager: str, secret_file: Path | None, request: Callable[[JobClient], Awaitable[_Result]]) -> _Result:
    """Connects to the JobManager, makes one request and disconnects."""

    async def run() -> _Result:
        async with connected(jobmanager, secret_file) as client:
            return await request(client)

    return trio.run(run)
