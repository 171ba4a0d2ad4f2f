"""Which of several JobManagers has a folder, when the one that had it dies, is stopped, or cannot reach it any more.

Takes: the folder. Gives: the moment from which on it is ours; an error as soon as it is not any more.

Rules: who has it touches its lock every `RENEW_S`. Who waits compares what it sees with what it saw, by its own clock,
so clocks need not agree. A lock that dies with its process is free at once; one that is held and not touched for
`LEASE_S` is taken. Whoever wakes up and finds that it was replaced ends: before that it cannot complete a checkpoint,
nor tell an end (`store`, `checkpoint.fence`).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

import trio

from ..runtime.threads import InThread
from .store import JobStore, JobStoreFenced, sign_of_life
from .stored_files import JobStoreError

LOGGER: Final = logging.getLogger("netstack.jobmanager")

RENEW_S: Final = 1.0
LEASE_S: Final = 5.0
"""Silence of who has the folder: five touches that did not come."""

_LOOK_S: Final = 0.5


async def wait_for_folder(folder: str, in_thread: InThread) -> bool:
    """Waits until nobody has the folder, or who has it is silent. Returns whether it has to be taken from somebody."""
    seen, since_s = None, trio.current_time()
    LOGGER.info("standing by for %s", folder)
    while True:
        sign = await in_thread(partial(sign_of_life, folder))
        if sign is None:
            return False
        if sign != seen:
            seen, since_s = sign, trio.current_time()
        elif trio.current_time() - since_s > LEASE_S:
            LOGGER.warning("the JobManager that has %s is silent for %g s: it is taken from it", folder, LEASE_S)
            return True
        await trio.sleep(_LOOK_S)


async def keep_folder(store: JobStore, in_thread: InThread) -> None:
    """Says that we live, until cancelled.

    Raises:
        JobStoreFenced: another JobManager has taken over.
    """
    while True:
        try:
            await in_thread(store.renew)
        except JobStoreFenced:
            raise
        except JobStoreError as error:
            LOGGER.error("others cannot see that this JobManager lives: %s", error)
        await trio.sleep(RENEW_S)
