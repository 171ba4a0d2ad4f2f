"""Blobs over a link: whole and checked, or an error with the reason."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from netstack.base.errors import ConnectionLost, RemoteProtocolError
from netstack.cluster.control.blob_answers import AT_ONCE, MAX_FETCHES, BlobAnswers
from netstack.cluster.control.codec import Message
from netstack.cluster.control.link import MessageLink
from netstack.cluster.control.messages import SLICE_BYTES, BlobPart, blob_parts
from netstack.cluster.control.reports import BlobKept, FetchBlob
from netstack.cluster.taskmanager.blob_reader import KeptBlob
from netstack.cluster.taskmanager.blobs import BlobFetcher, BlobPlaces
from netstack.schedule.descriptors.blob_store import BlobError, BlobKind, MemoryBlobStore
from netstack.schedule.descriptors.descriptors import BlobKey

DATA = bytes(range(256)) * (3 * SLICE_BYTES // 256) + b"the end"
KEY = MemoryBlobStore().new_key(BlobKind.TASK_INFORMATION, DATA, "somebody")
CODE = BlobKey(f"code-{hashlib.sha256(DATA).hexdigest()}")


def fetched(key: BlobKey, answer: Callable[[FetchBlob], BlobPart | None]) -> bytes:
    """What is fetched from an other end that answers like this; it hangs up where it does not."""

    async def main() -> bytes:
        fetcher: BlobFetcher

        def send(message: Message) -> None:
            if isinstance(message, BlobKept):
                return
            assert isinstance(message, FetchBlob)
            part = answer(message)
            if part is None:
                fetcher.lost("the other end is gone")
            else:
                fetcher.part(part)

        fetcher = BlobFetcher(send)
        blob = KeptBlob(key)
        await fetcher.fetch(blob)
        return blob.read()

    return trio.run(main)


@pytest.mark.parametrize("key", [KEY, CODE])
@pytest.mark.parametrize("data", [DATA, DATA[:SLICE_BYTES], DATA[:1], b""])
def test_a_blob_of_any_length_comes_whole(key: BlobKey, data: bytes) -> None:
    digest = hashlib.sha256(data) if key is CODE else hashlib.sha1(data)
    named = BlobKey(f"{key.partition('-')[0]}-{digest.hexdigest()}")
    assert fetched(named, lambda ask: blob_parts(ask.key, data, ask.offset)) == data


def test_what_is_wrong_is_told() -> None:
    with pytest.raises(BlobError, match="is damaged"):
        fetched(KEY, lambda ask: blob_parts(ask.key, DATA[:-1] + b"x", ask.offset))
    with pytest.raises(BlobError, match="it was deleted"):
        fetched(KEY, lambda ask: BlobPart(ask.key, ask.offset, -1, b"it was deleted"))
    with pytest.raises(BlobError, match="the limit is 268435456"):
        fetched(KEY, lambda ask: BlobPart(ask.key, ask.offset, 1 << 40, b"x"))
    with pytest.raises(BlobError, match="sent an empty part"):
        fetched(KEY, lambda ask: BlobPart(ask.key, ask.offset, 10, b""))
    with pytest.raises(ConnectionLost, match="the other end is gone"):
        fetched(KEY, lambda ask: blob_parts(ask.key, DATA, 0) if not ask.offset else None)


def test_parts_that_nobody_waits_for_are_dropped() -> None:
    async def main() -> bytes:
        def send(message: Message) -> None:
            if isinstance(message, BlobKept):
                return
            assert isinstance(message, FetchBlob)
            fetcher.part(blob_parts(CODE, DATA, 0))  # of another blob
            fetcher.part(blob_parts(KEY, DATA, message.offset + 1))  # of another place
            fetcher.part(blob_parts(KEY, DATA, message.offset))

        fetcher = BlobFetcher(send)
        fetcher.part(blob_parts(KEY, b"of somebody else", 0))
        blob = KeptBlob(KEY)
        await fetcher.fetch(blob)
        return blob.read()

    assert trio.run(main) == DATA


async def test_a_place_is_tried_and_then_told_to_be_of_no_use() -> None:
    """One that is damaged, one that is not there; then the other end sends it itself, and hears that it was kept."""
    text: list[Message] = []
    tried: list[str] = []

    def send(message: Message) -> None:
        text.append(message)
        if isinstance(message, FetchBlob):
            place = next((place for place in ("file:///a", "tcp://b:1") if place not in message.failed), "")
            if place:
                fetcher.part(BlobPart(KEY, 0, len(DATA), b"", place))
            else:
                fetcher.part(blob_parts(KEY, DATA, message.offset))

    async def read_place(place: str, blob: KeptBlob) -> None:
        await trio.lowlevel.checkpoint()
        tried.append(place)
        blob.write(DATA[:-1])
        if place.startswith("tcp"):
            raise ConnectionLost("nobody is there")

    fetcher = BlobFetcher(send, read_place)
    blob = KeptBlob(KEY)
    await fetcher.fetch(blob)
    assert blob.read() == DATA
    assert tried == ["file:///a", "tcp://b:1"]
    assert text[1:3] == [FetchBlob(KEY, 0, ("file:///a",)), FetchBlob(KEY, 0, ("file:///a", "tcp://b:1"))]
    assert text[-1] == BlobKept(KEY, is_kept=True)
    fetcher = BlobFetcher(send)
    with pytest.raises(BlobError, match="reading it from"):
        await fetcher.fetch(KeptBlob(KEY))
    assert text[-1] == BlobKept(KEY, is_kept=False)


class Link:
    """A peer that takes what it is sent when it is let."""

    peer = "a peer"

    def __init__(self) -> None:
        self.sent: list[BlobPart] = []
        self.room = trio.Event()

    def send(self, message: Message) -> None:
        assert isinstance(message, BlobPart)
        self.sent.append(message)

    async def wait_room(self) -> None:
        await self.room.wait()


async def test_a_peer_that_asks_without_end_gets_a_few_parts_at_a_time() -> None:
    link, read = Link(), 0

    async def answer(ask: FetchBlob) -> BlobPart:
        nonlocal read
        read += 1
        await trio.lowlevel.checkpoint()
        return blob_parts(ask.key, b"x", ask.offset)

    answers = BlobAnswers(cast(MessageLink, link), answer)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answers.run)
        for _ in range(MAX_FETCHES):
            answers.enqueue(FetchBlob(KEY, 0))
        await trio.testing.wait_all_tasks_blocked()
        assert (read, link.sent) == (AT_ONCE, [])
        for _ in range(AT_ONCE):
            answers.enqueue(FetchBlob(KEY, 0))
        with pytest.raises(RemoteProtocolError, match=f"{MAX_FETCHES} requests are queued"):
            answers.enqueue(FetchBlob(KEY, 0))
        link.room.set()
        await trio.testing.wait_all_tasks_blocked()
        assert read == len(link.sent) == MAX_FETCHES + AT_ONCE
        answers.stop()


@pytest.mark.parametrize("kind", ["pipe", "folder", "absent", "endless", "other"])
async def test_what_is_at_a_place_is_the_blob_or_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "place"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "other":
        path.write_bytes(DATA[::-1])
    elif kind == "endless":
        path = Path("/dev/zero")

    def send(message: Message) -> None:
        if isinstance(message, FetchBlob):
            place = "" if message.failed else f"file://{path}"
            fetcher.part(BlobPart(KEY, 0, -1, b"nor here") if not place else BlobPart(KEY, 0, 9, b"", place))

    fetcher = BlobFetcher(send, BlobPlaces("", None, 1.0).read)
    with trio.fail_after(30), pytest.raises(BlobError, match="nor here"):
        await fetcher.fetch(KeptBlob(KEY))
