"""The port of every service: what strangers and clients do there stays with them, and costs few lines of log."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from netstack.base.errors import ConnectionLost, RequestRefused
from netstack.base.text.limited_log import LimitedLog
from netstack.base.transport import transport_for
from netstack.cluster.control.codec import Plain
from netstack.cluster.control.frames import unpack
from netstack.cluster.control.link import CLIENT, QUESTION_CONTAINERS, ControlLink, Greeting, dial
from netstack.cluster.control.messages import Ask
from netstack.cluster.control.port import Answers, ControlPort, Questions, answer_questions
from netstack.network.connection.admission import Admission
from netstack.network.connection.fair_share import FREE_SHARE, measure_with

LOGGER = logging.getLogger("netstack.tests.port")
FLOOD = 300
MAX_ASKS = 8

_numbers = itertools.count()


@asynccontextmanager
async def port_with(answers: Answers) -> AsyncIterator[str]:
    """A service with nothing but a port; gives its URL."""

    async def talk(link: ControlLink, greeting: Greeting) -> None:
        if greeting.role != CLIENT:
            raise RequestRefused("this is a test: clients may connect")
        await answer_questions(link, answers, log, who="this test", max_asks=MAX_ASKS)

    log = LimitedLog(LOGGER, trio.current_time)
    url = f"memory://port{next(_numbers)}"
    listener = await transport_for(url).listen(url)
    port = ControlPort(
        Admission(None, timeout_s=1.0), LOGGER, "test", dict, talk, handshake_timeout_s=1.0, heartbeat_timeout_s=10.0
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.serve, listener)
        yield url
        nursery.cancel_scope.cancel()
    listener.close()


@asynccontextmanager
async def asking(url: str, role: str = CLIENT) -> AsyncIterator[Questions]:
    link, _ = await dial(url, role=role, name="a client", facts={})
    questions = Questions(link)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        nursery.start_soon(questions.receive_all)
        yield questions
        nursery.cancel_scope.cancel()


async def test_questions_that_find_a_mistake_of_ours_are_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Each was a traceback, and a client can ask thousands of them in a second, on as many connections as it likes."""

    async def breaks(document: Plain) -> Plain:
        raise KeyError("\x1b[2J")

    refused = 0
    async with port_with({"breaks": breaks}) as url:
        for _ in range(10):
            async with asking(url) as questions:
                for _ in range(20):
                    with pytest.raises(RequestRefused, match="KeyError"):
                        await questions.ask("breaks", {})
                    refused += 1
    assert refused == 200
    lines = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert 1 <= len(lines) < 30
    assert all(each.getMessage().isprintable() for each in lines)


async def test_a_flood_of_strangers_is_a_few_lines(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with port_with({}) as url:
        for _ in range(FLOOD):
            stream = await transport_for(url).connect(url)
            await stream.wait_writable()
            stream.try_send((b"\x1b[2J\nnetstack: all is well".ljust(20),))
            stream.close()
        await trio.sleep(0.01)
        async with asking(url):
            pass
    assert 1 <= len(caplog.records) < 20
    assert all(record.getMessage().isprintable() for record in caplog.records)


async def test_who_says_nothing_is_told_apart_from_who_is_refused(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with port_with({}) as url:
        stream = await transport_for(url).connect(url)
        async with asking(url, role="taskmanager") as questions:
            with pytest.raises(RequestRefused, match="clients may connect"):
                await questions.ask("anything", {})
        await trio.sleep(1.5)
        stream.close()
    texts = [record.getMessage() for record in caplog.records]
    assert any("sent no route or greeting within 1 s" in text for text in texts)
    assert any("clients may connect" in text for text in texts)


async def test_questions_of_one_client_are_answered_a_few_at_a_time(autojump_clock: MockClock) -> None:
    under_way = most = 0
    release = trio.Event()

    async def wait(document: Plain) -> Plain:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await release.wait()
        under_way -= 1
        return {"number": document["number"]}

    answered: list[int] = []
    async with port_with({"wait": wait}) as url, asking(url) as questions:

        async def ask(number: int) -> None:
            answered.append((await questions.ask("wait", {"number": number}))["number"])

        async with trio.open_nursery() as nursery:
            for number in range(5 * MAX_ASKS):
                nursery.start_soon(ask, number)
            await trio.sleep(1.0)
            assert under_way == MAX_ASKS
            release.set()
    assert sorted(answered) == list(range(5 * MAX_ASKS))
    assert most == MAX_ASKS


async def test_a_question_has_few_parts_unless_it_submits_a_job(autojump_clock: MockClock) -> None:
    async def count(document: Plain) -> Plain:
        return {"count": len(document["many"])}

    async with port_with({"count": count, "submit": count}) as url:
        many = {"many": [[]] * (2 * QUESTION_CONTAINERS)}
        async with asking(url) as questions:
            assert await questions.ask("submit", many) == {"count": 2 * QUESTION_CONTAINERS}
            assert await questions.ask("count", {"many": [[]] * 1000}) == {"count": 1000}
            with pytest.raises(ConnectionLost):
                await questions.ask("count", many)


async def test_all_who_ask_without_end_have_a_quarter_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = asked_s = others_s = 0.0

    def costly(body: bytes, most: int) -> list[Any]:
        nonlocal now_s, asked_s
        document = unpack(body, most)
        if body.find(b"question") > 0:
            now_s += 0.05
            asked_s += 0.05
        return document

    async def flood(url: str) -> None:
        link, _ = await dial(url, role=CLIENT, name="a flood", facts={})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            while True:
                await link.wait_room()
                link.send(Ask(1, "question", {}))

    monkeypatch.setattr("netstack.cluster.control.frames.unpack", costly)
    measure_with(lambda: now_s)
    async with port_with({}) as url, trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(flood, url)
        while now_s < 20.0:
            await trio.lowlevel.checkpoint()
            now_s += 0.001
            others_s += 0.001
        nursery.cancel_scope.cancel()
    assert asked_s > 1.0, "the flood is heard"
    assert others_s > 2.5 * (asked_s - 4 * (0.05 + FREE_SHARE * now_s))


async def test_what_cannot_be_answered_is_refused_and_the_client_goes_on(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def too_much(document: Plain) -> Plain:
        return {"data": b"." * (64 << 20)}

    async def mistake(document: Plain) -> Plain:
        return {"found": document["not there"]}

    async def echo(document: Plain) -> Plain:
        return document

    answers: Answers = {"too much": too_much, "mistake": mistake, "echo": echo}
    async with port_with(answers) as url, asking(url) as questions:
        for what, text in (
            ("too much", "the answer cannot be sent"),
            ("mistake", "KeyError"),
            ("unheard of", "this test does not know the question 'unheard of'"),
        ):
            with pytest.raises(RequestRefused, match=text):
                await questions.ask(what, {})
        assert await questions.ask("echo", {"is": "well"}) == {"is": "well"}
    (line,) = [record.getMessage() for record in caplog.records if record.exc_info]
    assert re.fullmatch(r"answering the question 'mistake' of a client at a client of memory://port\d+ failed", line)


async def test_answers_of_a_client_that_has_gone_are_dropped(autojump_clock: MockClock) -> None:
    ended = trio.Event()

    async def hold(document: Plain) -> Plain:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
        return {}

    async with port_with({"hold": hold}) as url:
        async with asking(url) as questions:
            with trio.move_on_after(1.0):
                await questions.ask("hold", {})
        with trio.fail_after(5.0):
            await ended.wait()
        async with asking(url) as questions:
            with pytest.raises(RequestRefused, match="does not know the question"):
                await questions.ask("other", {})
    with pytest.raises(ConnectionLost):
        await dial(url, role=CLIENT, name="late", facts={})
