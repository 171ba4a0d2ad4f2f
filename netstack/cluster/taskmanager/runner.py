"""Opens and runs a TaskManager.

Takes: its settings. Gives: `open_taskmanager`, which serves while its block runs.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import trio

from ...base.scratch import remove_leftovers
from ...base.transport import Listener, transport_for
from ...exchange.stored.files import FOLDER_PREFIX
from ...network.connection.handshake import connect_stream
from ...network.waiting.threads import background_tasks, in_thread
from .config import TaskManagerConfig
from .neighbours import Neighbours
from .service import TaskManager
from .slot_pool import SlotProcesses
from .tasks import OnMade

LOGGER: Final = logging.getLogger("netstack.taskmanager")


@asynccontextmanager
async def open_taskmanager(
    config: TaskManagerConfig,
    *,
    metrics_address: str | None = None,
    processes: SlotProcesses | None = None,
    on_made: OnMade | None = None,
) -> AsyncIterator[TaskManager]:
    """Opens a TaskManager that serves while the block runs.

    Args:
        config: settings.
        metrics_address: address of `/metrics` for Prometheus: `host:port`, or `tls+tcp://host:port` with TLS; None: no
            metrics.
        processes: slot processes; None: all tasks run in this event loop.
        on_made: called with each task created in this process, or None.

    Raises:
        OSError: an address cannot be bound; the text names it.
        ConfigError: a setting is invalid.

    Cancellation, like the end of the block, closes every job and connection.
    """
    listeners = [await transport_for(config.listen).listen(config.listen)]
    control: Listener | None = None
    manager: TaskManager | None = None
    connect = connect_stream
    try:
        if config.control is not None:
            control = await transport_for(config.control).listen(config.control)
        if (config.in_slot is not None or processes is not None) and config.shared_memory:
            neighbours = Neighbours()
            connect = neighbours.connect
            near = await neighbours.listen(listeners[0].address)
            listeners += [] if near is None else [near]
        manager = TaskManager(config, listeners[0], control, processes, on_made, connect)
        async with background_tasks() as nursery:
            if metrics_address is not None:
                await _serve_metrics(manager, metrics_address, nursery)
            if config.link_in_thread:  # tests in virtual time have no threads
                nursery.start_soon(_remove_leftovers, config.network.shuffle_directory)
            nursery.start_soon(manager.environments.run)
            if processes is not None:
                nursery.start_soon(processes.run)
            for listener in listeners:
                nursery.start_soon(partial(manager.serve, listener, takes_data=True))
            if control is not None:
                nursery.start_soon(partial(manager.serve, control, takes_data=False))
            if config.jobmanager is not None:
                nursery.start_soon(manager.registration.run, config.jobmanager)
            yield manager
    finally:
        for listener in (*listeners, *(() if control is None else (control,))):
            listener.close()
        if manager is not None:
            manager.close()
        if processes is not None:  # files of slots that were killed at the end
            with suppress(OSError):
                remove_leftovers(config.network.shuffle_directory or tempfile.gettempdir(), FOLDER_PREFIX)


async def _remove_leftovers(folder: str | None) -> None:
    """Removes files of killed TaskManagers from the disk."""
    try:
        for path in await in_thread(partial(remove_leftovers, folder or tempfile.gettempdir(), FOLDER_PREFIX)):
            LOGGER.info("removed %s, which a killed process had left", path)
    except OSError as error:
        LOGGER.warning("files of killed processes cannot be removed: %s", error)


async def _serve_metrics(manager: TaskManager, address: str, nursery: trio.Nursery) -> None:
    from ...network.metrics.prometheus import bind_guarded  # needs prometheus_client

    server = await bind_guarded(address, manager.config.secret)
    manager.metrics_address = server.address

    async def serve() -> None:
        try:
            await server.serve(manager.merged_statistics)
        finally:
            server.close()

    nursery.start_soon(serve)
