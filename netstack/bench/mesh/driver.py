"""One run over hosts from a synchronous function: connects to the daemons, measures, releases them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from netstack.runtime.authentication import Secret

from ..pair import OnProgress
from .cluster import open_mesh
from .coordinator import measure_mesh
from .result import document_of
from .spec import MeshSpec


def run_over_hosts(
    spec: MeshSpec, *, secret_file: Path | None = None, on_progress: OnProgress | None = None
) -> dict[str, Any]:
    """Measures once and returns the document of the run.

    Raises:
        NetstackError: a daemon cannot be reached, refused, or the run failed; the text names the host.
        ConfigError: the secret file cannot be used.
    """
    secret = None if secret_file is None else Secret.from_file(secret_file)
    return trio.run(_run, spec, secret, on_progress, restrict_keyboard_interrupt_to_checkpoints=True)


async def _run(spec: MeshSpec, secret: Secret | None, on_progress: OnProgress | None) -> dict[str, Any]:
    async with open_mesh(spec, secret=secret) as mesh:
        return document_of(await measure_mesh(spec, mesh, on_progress), "hosts")
