"""Waits for the end of a job, whatever becomes of its JobManager meanwhile.

Takes: the address of a JobManager, the id of a job. Gives: how the job ended.

Rules: a JobManager that has gone may come back on its folder, and then goes on with the job; so whoever waits asks
again at the same address, for as long as its patience lasts. Only the loss of a connection is waited out: what a
JobManager answers, its refusals included, is the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from ..errors import AuthenticationFailed, ConnectionLost, RemoteProtocolError, RequestRefused
from ..runtime.authentication import Secret
from .client import DEFAULT_ADDRESS, JobResult, open_job_client

PATIENCE_S: Final = 60.0
"""A supervisor has started the JobManager again by then, or a person has to."""

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0


async def wait_for_job(
    job_id: str,
    address: str = DEFAULT_ADDRESS,
    *,
    secret: Secret | None = None,
    name: str = "",
    patience_s: float = PATIENCE_S,
    on_lost: Callable[[Exception], None] | None = None,
    on_found: Callable[[], None] | None = None,
) -> JobResult:
    """Waits until a job has ended, across deaths of its JobManager.

    Args:
        job_id: its id, or a beginning that no other id has.
        address: URL of the JobManager's port; without a scheme it is `tcp://`.
        secret: shared with it.
        name: of this client, for the JobManager's log.
        patience_s: for how long after its loss a JobManager may stay away; 0 does not wait for it.
        on_lost: told how the JobManager was lost, once each time.
        on_found: told when one has answered there again.

    Raises:
        JobFailed: the job failed; the text is its root cause.
        RequestRefused: there is no such job; or the JobManager that came back does not know it.
        ConnectionLost: nobody has answered for `patience_s`.
        AuthenticationFailed: the secrets differ.
        RemoteProtocolError: there is something else at the address.

    Cancellation: the job goes on.
    """
    lost_s: float | None = None  # since when, on trio's clock
    connections = 0
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            async with open_job_client(address, secret=secret, name=name) as client:
                connections += 1
                if lost_s is not None and on_found is not None:
                    on_found()
                lost_s, pause_s = None, _FIRST_PAUSE_S
                return await client.wait(job_id)
        except RequestRefused as error:
            if connections < 2:
                raise
            raise RequestRefused(
                f"{error}; the JobManager at {address} was lost while job {job_id} ran, and the one that answers now"
                " goes on with it only if it is on the same --folder"
            ) from error
        except (AuthenticationFailed, RemoteProtocolError) as error:
            if lost_s is None:
                raise
            failure: Exception = error  # one that is killed while we prove ourselves looks like a stranger
        except (ConnectionLost, OSError) as error:
            failure = error
        now_s = trio.current_time()
        if lost_s is None:
            lost_s = now_s
            if on_lost is not None:
                on_lost(failure)
        if now_s - lost_s >= patience_s:
            raise ConnectionLost(
                f"no JobManager has answered at {address} for {patience_s:g} s ({failure}); job {job_id} goes on when"
                f" one is started on its folder again, and `netstack jobs {job_id}` tells how it is"
            ) from failure
        await trio.sleep(min(pause_s, lost_s + patience_s - now_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
