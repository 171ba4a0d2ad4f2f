"""Where the JobManager is, and the secret shared with it: flags of every command that asks one.

Takes: words of the command line, or the environment. Gives: a connected client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import trio

from ..errors import ConnectionLost
from ..jobmanager.client import DEFAULT_ADDRESS, JobClient, open_job_client
from ..runtime.authentication import Secret

ADDRESS_VARIABLE: Final = "NETSTACK_JOBMANAGER"
SECRET_VARIABLE: Final = "NETSTACK_SECRET_FILE"

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Result = TypeVar("_Result")

secret_flag: Final = click.option(
    "--secret-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar=SECRET_VARIABLE,
    help=f"Shared with everybody who may come in; ${SECRET_VARIABLE} if not given.",
)

json_flag: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def jobmanager_flags(command: _Command) -> _Command:
    """Adds `jobmanager` and `secret_file`."""
    address = click.option(
        "--jobmanager",
        metavar="ADDR:PORT",
        envvar=ADDRESS_VARIABLE,
        default=DEFAULT_ADDRESS,
        help=f"The JobManager; ${ADDRESS_VARIABLE} if not given, else {DEFAULT_ADDRESS}.",
    )
    return address(secret_flag(command))


def secret_of(secret_file: Path | None) -> Secret | None:
    """What is shared with the JobManager.

    Raises:
        ConfigError: it cannot be read.
    """
    return None if secret_file is None else Secret.from_file(secret_file)


@asynccontextmanager
async def connected(jobmanager: str, secret_file: Path | None) -> AsyncIterator[JobClient]:
    """A client for the values of `jobmanager_flags`.

    Raises:
        ConnectionLost: nobody answers; the text says what to do.
        ConfigError: the secret cannot be read.
    """
    is_there = False
    try:
        async with open_job_client(jobmanager, secret=secret_of(secret_file), name="netstack") as client:
            is_there = True
            yield client
    except (ConnectionLost, OSError) as error:
        if is_there:
            raise
        raise ConnectionLost(
            f"no JobManager answers at {jobmanager} ({error}); start one with `netstack jobmanager`, or name it with"
            f" --jobmanager or ${ADDRESS_VARIABLE}"
        ) from error


def ask(jobmanager: str, secret_file: Path | None, question: Callable[[JobClient], Awaitable[_Result]]) -> _Result:
    """Connects, asks, and goes; for commands that do no more."""

    async def run() -> _Result:
        async with connected(jobmanager, secret_file) as client:
            return await question(client)

    return trio.run(run)
