"""A JobManager that answers clients as a test says, over memory."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio

from netstack.base.errors import ConnectionLost
from netstack.base.transport import transport_for
from netstack.cluster.control.build import own_build
from netstack.cluster.control.link import JOBMANAGER, ControlLink, full_build
from netstack.cluster.control.messages import Answer, Ask, AskRefused
from netstack.cluster.control.routing import read_route
from netstack.cluster.jobmanager.client import JobClient, open_job_client
from netstack.network.waiting.threads import background_tasks

JobManager = Callable[[ControlLink], Awaitable[None]]
_numbers = itertools.count()


def an_address() -> str:
    """One that nobody listens at."""
    return f"memory://jobmanager{next(_numbers)}"


async def play(url: str, jobmanager: JobManager, role: str = JOBMANAGER) -> None:
    """Listens, serves one client, and is gone."""
    listener = await transport_for(url).listen(url)
    try:
        stream = await listener.accept()
    finally:
        listener.close()
    assert await read_route(stream) is None
    link = ControlLink(stream, heartbeat_timeout_s=9.0)
    await link.greet(full_build(own_build()), "jm", role, {})
    async with trio.open_nursery() as inner:
        inner.start_soon(link.run)
        with suppress(ConnectionLost):
            await jobmanager(link)
        inner.cancel_scope.cancel()


@asynccontextmanager
async def client_of(jobmanager: JobManager, role: str = JOBMANAGER) -> AsyncIterator[JobClient]:
    """A client that is connected to it."""
    url = an_address()
    async with background_tasks() as nursery:
        nursery.start_soon(play, url, jobmanager, role)
        await trio.testing.wait_all_tasks_blocked()
        async with open_job_client(url) as client:
            yield client


def answering(*answers: dict[str, Any] | str, asked: list[Ask] | None = None) -> JobManager:
    """Answers question after question; a text is a refusal."""

    async def jobmanager(link: ControlLink) -> None:
        for answer in itertools.chain(answers, itertools.repeat({"received": 0})):
            ask = await link.receive()
            assert isinstance(ask, Ask)
            if asked is not None:
                asked.append(ask)
            link.send(AskRefused(ask.token, answer) if isinstance(answer, str) else Answer(ask.token, answer))

    return jobmanager


async def goes(link: ControlLink) -> None:
    """Is gone when it is asked something."""
    await link.receive()
