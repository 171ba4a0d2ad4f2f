"""The control protocol, byte for byte as section 16 of SPEC.md has it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from daemonworld import virtual

from netstack.control.frames import pack, unpack
from netstack.daemon.link import DaemonLink
from netstack.daemon.messages import GREETING, Message, config_of, decode, encode
from netstack.daemon.routing import read_route, write_route
from netstack.transport import transport_for

SPEC = (Path(__file__).resolve().parents[3] / "netstack/wire/SPEC.md").read_text(encoding="utf-8")


def lines() -> list[tuple[str, bytes, str]]:
    """Who says what, and what it means."""
    found = re.search(r"^```control\n(.*?)^```$", SPEC, re.MULTILINE | re.DOTALL)
    assert found is not None
    return [
        (who, bytes.fromhex(data), meaning)
        for who, data, meaning in re.findall(r"^(\w+) ([0-9a-f]+)\s*; (.*)$", found[1], re.MULTILINE)
    ]


DOCUMENTS: list[tuple[bytes, list[Any]]] = [
    (frame, json.loads(meaning)) for who, frame, meaning in lines() if who != "route"
]


@pytest.mark.parametrize(("frame", "document"), DOCUMENTS, ids=[document[0] for _, document in DOCUMENTS])
def test_every_document_is_what_the_page_says(frame: bytes, document: list[Any]) -> None:
    assert pack(document) == frame
    assert unpack(frame[4:]) == document
    if document[0] != GREETING:
        message = decode(document)
        assert encode(message) == document
        if document[0] == "OpenRun":
            config_of(message.config)  # type: ignore[union-attr]


@virtual
async def test_a_connection_begins_as_the_page_says() -> None:
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
    said = await DaemonLink(theirs, heartbeat_timeout_s=1.0).greet("0.3.0+0123456789ab", "host b", {})
    assert (said.version, said.build, said.name) == (1, "0.3.0+0123456789ab", "host a")
    assert mine.try_receive_into([window]) is not None


def test_the_tables_name_every_message() -> None:
    section = SPEC[SPEC.index("## 16.") :]
    for kind in Message.__args__:
        assert f"| `{kind.__name__}` |" in section
