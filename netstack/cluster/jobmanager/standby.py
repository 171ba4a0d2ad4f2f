"""Ownership of a JobManager's folder: a standby takes over when the owner dies, is stopped, or loses access to it.

Takes: the folder. Gives: the time at which it becomes ours; an error when it is taken over.

Rules: the owner touches its lock every `RENEW_S`. A standby compares successive observations by its own clock, so
clocks need not agree. A lock is free as soon as its process dies; a lock that is not touched for `LEASE_S` is taken
over. A JobManager that resumes and finds that it was replaced ends; until then it can complete no checkpoint and
publish no end of a job (`store`, `schedule.checkpoint.fence`).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

import trio

from ...network.waiting.threads import InThread
from .folder_lock import RENEW_S, sign_of_life
from .store import JobStore, JobStoreFenced
from .stored_files import JobStoreError

LOGGER: Final = logging.getLogger("netstack.jobmanager")

LEASE_S: Final = 5.0
"""Silence after which the folder is taken over: five missed touches."""

_LOOK_S: Final = 0.5


async def wait_for_folder(folder: str, in_thread: InThread) -> bool:
    """Waits until the folder is free or its owner silent. Returns whether it must be taken from an owner."""
    seen, since_s = None, trio.current_time()
    LOGGER.info("standby: waiting for folder %s", folder)
    while True:
        sign = await in_thread(partial(sign_of_life, folder))
        if sign is None:
            return False
        if sign != seen:
            seen, since_s = sign, trio.current_time()
        elif trio.current_time() - since_s > LEASE_S:
            LOGGER.warning(
                "standby: the JobManager on folder %s has been silent for %g s; taking over", folder, LEASE_S
            )
            return True
        await trio.sleep(_LOOK_S)


async def keep_folder(store: JobStore, in_thread: InThread) -> None:
    """Touches the lock of the folder until cancelled. Raises JobStoreFenced if another JobManager took over."""
    while True:
        try:
            await in_thread(store.renew)
        except JobStoreFenced:
            raise
        except JobStoreError as error:
            LOGGER.error("the lock of the folder cannot be touched, so a standby may take over: %s", error)
        await trio.sleep(RENEW_S)
