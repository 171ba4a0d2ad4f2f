"""Registers a TaskManager at its JobManager, and again after every loss of the connection.

Takes: the JobManager's address. Gives: one link at a time to the session.

The link runs in its own thread, so that blocking user code does not delay heartbeats.
"""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, final

import trio

from ...base.causes import root_cause
from ...base.errors import NetstackError, RequestRefused
from ...base.text.limited_log import LimitedLog
from ...base.text.safe_text import safe_error, safe_text
from ...network.connection.authentication import prove_dialler
from ..control.codec import Plain
from ..control.link import JOBMANAGER, TASKMANAGER, MessageLink, dial
from ..control.threaded import open_threaded
from .config import TaskManagerConfig
from .slot_pool import SlotProcesses

LOGGER: Final = logging.getLogger("netstack.taskmanager")

_LEAST_BACKOFF_S: Final = 0.1
_MOST_BACKOFF_S: Final = 5.0


@final
class Registration:
    """The registration of a TaskManager at one JobManager; `run` maintains it.

    Args:
        serve_driver: serves the JobManager at the other end of a link until the link is lost.
        processes: the slot processes, which must be ready first; None: tasks run in this process.
    """

    def __init__(
        self,
        config: TaskManagerConfig,
        facts: Callable[[], Plain],
        serve_driver: Callable[[MessageLink], Awaitable[None]],
        processes: SlotProcesses | None,
    ) -> None:
        self.count = 0
        self._config = config
        self._facts = facts
        self._serve_driver = serve_driver
        self._processes = processes
        self._log = LimitedLog(LOGGER, trio.current_time)

    async def run(self, address: str) -> None:
        """Registers at a JobManager and serves it, again after every loss, until cancelled."""
        backoff_s = _LEAST_BACKOFF_S
        while True:
            began_s = trio.current_time()
            try:
                await self._work_for(address)
            except BaseException as error:
                root = root_cause(error)
                if not isinstance(root, Exception):
                    raise
                if not isinstance(root, NetstackError | OSError):
                    self._log.log(
                        logging.ERROR,
                        "jobmanager broke",
                        f"JobManager {address}: internal error of this TaskManager",
                        error=root,
                    )
                self._log.log(
                    logging.WARNING, "jobmanager", f"JobManager {address}: {safe_error(root)}; connecting again"
                )
            if trio.current_time() - began_s > _MOST_BACKOFF_S:
                backoff_s = _LEAST_BACKOFF_S
            await trio.sleep(backoff_s * random.uniform(0.8, 1.2))  # spreads the connections of many TaskManagers
            backoff_s = min(2 * backoff_s, _MOST_BACKOFF_S)

    async def _work_for(self, address: str) -> None:
        """Runs one registration, from connecting to the loss of the JobManager."""
        if self._processes is not None:
            await self._processes.wait_ready()  # before the facts, which have their addresses: a taken port changes one
        secret = self._config.secret
        connect = partial(
            dial,
            address,
            role=TASKMANAGER,
            name=self._config.name or socket.gethostname(),
            facts=self._facts(),
            prove=None if secret is None else partial(prove_dialler, secret=secret),
            heartbeat_timeout_s=self._config.heartbeat_timeout_s,
            connect_timeout_s=self._config.handshake_timeout_s,
        )
        if self._processes is None and self._config.link_in_thread:
            async with open_threaded(connect) as threaded:
                await self._registered_at(threaded, threaded.greeting.role)
            return
        link, greeting = await connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await self._registered_at(link, greeting.role)
            nursery.cancel_scope.cancel()

    async def _registered_at(self, link: MessageLink, role: str) -> None:
        if role != JOBMANAGER:
            raise RequestRefused(
                f"{link.peer} is a {safe_text(role)}, not a JobManager; give --jobmanager the address of a JobManager"
            )
        self.count += 1
        LOGGER.info("registered at JobManager %s", safe_text(link.peer))
        await self._serve_driver(link)
