"""The control protocol, byte for byte as section 16 of SPEC.md has it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from netstack.base.transport import transport_for
from netstack.cluster.control.frames import pack, unpack
from netstack.cluster.control.link import JOBMANAGER, TASKMANAGER, ControlLink
from netstack.cluster.control.messages import CODEC, GREETING, VERSION, OpenJob
from netstack.cluster.control.routing import read_route, write_route
from netstack.cluster.taskmanager.slot_settings import config_of

SPEC = (Path(__file__).resolve().parents[4] / "netstack/exchange/wire/SPEC.md").read_text(encoding="utf-8")


def lines() -> list[tuple[str, bytes, str]]:
    """Who says what, and what it means."""
    actual = re.search(r"^```control\n(.*?)^```$", SPEC, re.MULTILINE | re.DOTALL)
    assert actual is not None
    return [
        (who, bytes.fromhex(data), meaning)
        for who, data, meaning in re.findall(r"^(\w+) ([0-9a-f]+)\s*; (.*)$", actual[1], re.MULTILINE)
    ]


DOCUMENTS: list[tuple[bytes, list[Any]]] = [
    (frame, json.loads(meaning)) for who, frame, meaning in lines() if who != "route"
]


@pytest.mark.parametrize(("frame", "document"), DOCUMENTS, ids=[document[0] for _, document in DOCUMENTS])
def test_every_document_is_what_the_page_says(frame: bytes, document: list[Any]) -> None:
    if document[0] == "OpenJob":
        document = [*document[:-1], document[-1].encode()]  # bytes, which JSON has not
    assert pack(document) == frame
    assert unpack(frame[4:]) == document
    if document[0] != GREETING:
        message = CODEC.decode(document)
        assert pack(CODEC.encode(message)) == frame
        if isinstance(message, OpenJob) and message.network is not None:
            config_of(message.network)


async def test_a_connection_begins_as_the_page_says(autojump_clock: MockClock) -> None:
    (route,) = (data for who, data, _ in lines() if who == "route")
    listener = await transport_for("memory://vectors").listen("memory://vectors")
    mine = await transport_for("memory://vectors").connect("memory://vectors")
    theirs = await listener.accept()
    listener.close()
    await write_route(mine, None)
    window = memoryview(bytearray(100))
    assert theirs.try_receive_into([window]) == len(route)
    assert window[: len(route)] == route
    mine.try_send([route])
    assert await read_route(theirs) is None
    greeting, _ = DOCUMENTS[0]
    mine.try_send([greeting])
    message = await ControlLink(theirs, heartbeat_timeout_s=1.0).greet("0.4.0+0123456789ab", "host b", TASKMANAGER, {})
    assert (message.version, message.build, message.name, message.role) == (
        VERSION,
        "0.4.0+0123456789ab",
        "host a",
        JOBMANAGER,
    )
    assert mine.try_receive_into([window]) is not None


def test_the_tables_name_every_message() -> None:
    section = SPEC[SPEC.index("## 16.") :]
    for kind in CODEC.kinds:
        assert f"| `{kind.__name__}` |" in section
