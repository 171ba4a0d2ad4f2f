"""Keeps a server of a process running: its failure ends neither the process nor what else runs there.

Takes: a function that serves one peer, or one server. Gives: a log line where it fails; a server is started again.

Rules: a side service (the page, metrics) can end nothing. Each failure of a server is counted by the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from .causes import root_cause
from .text.limited_log import LimitedLog
from .text.safe_text import safe_error

RESTART_PAUSE_S: Final = 1.0
"""The pause before a failed server is started again."""


async def run_contained(serve: Callable[[], Awaitable[None]], what: str, log: LimitedLog) -> bool:
    """Runs what serves one peer, or one server, until its end.

    Args:
        serve: serves until its end, or until cancelled.
        what: names it in the log: `the page's server`.
        log: gets a line if it fails.

    Returns:
        Whether it failed.
    """
    try:
        await serve()
    except BaseException as error:
        root = root_cause(error)
        if not isinstance(root, Exception):
            raise
        log.log(logging.ERROR, "contained", f"{what} failed because of a bug here: {safe_error(root)}")
        return True
    return False


async def keep_serving(
    serve: Callable[[], Awaitable[None]], what: str, logger: logging.Logger, on_failure: Callable[[], None]
) -> None:
    """Runs a server until cancelled; starts it again after each failure.

    Args:
        serve: serves until cancelled; may be called again.
        what: names the server in the log: `the page's server`.
        logger: gets a line for each failure, at most one per second.
        on_failure: called for each failure.
    """
    log = LimitedLog(logger, trio.current_time)
    while await run_contained(serve, what, log):
        on_failure()
        await trio.sleep(RESTART_PAUSE_S)
