"""One run over hosts from an ordinary function: connects to the daemons, measures, disconnects.

Takes: a `MeshSpec`, the file of the shared secret. Gives: the document of the run.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio

from netstack.errors import NetstackError
from netstack.runtime.authentication import Secret
from netstack.taskmanager.client import open_client

from ..runner import OnProgress
from .coordinator import run_mesh
from .spec import MeshSpec


def run_over_hosts(
    spec: MeshSpec, *, secret_file: Path | None = None, on_progress: OnProgress | None = None
) -> dict[str, Any]:
    """Measures once.

    Args:
        spec: the settings.
        secret_file: what all daemons share; None for daemons on loopback.
        on_progress: called a few times a second.

    Returns:
        The document of the run (`coordinator.run_mesh`).

    Raises:
        NetstackError: a daemon cannot be reached, refused, or the run failed; the text names the host.
        ConfigError: the secret file cannot be used.
    """
    secret = None if secret_file is None else Secret.from_file(secret_file)
    return trio.run(_run, spec, secret, on_progress, restrict_keyboard_interrupt_to_checkpoints=True)


async def _run(spec: MeshSpec, secret: Secret | None, on_progress: OnProgress | None) -> dict[str, Any]:
    failure: NetstackError | None = None
    document: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        try:
            daemons = [
                await stack.enter_async_context(open_client(host.address, secret=secret)) for host in spec.parsed_hosts
            ]
            document = await run_mesh(spec, daemons, on_progress)
        except NetstackError as error:  # leaves as it is, not inside the groups of the connections' nurseries
            failure = error
    if failure is not None:
        raise failure
    return document
