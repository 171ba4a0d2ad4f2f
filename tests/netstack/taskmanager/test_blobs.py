"""Blobs over a link: whole and checked, or an error with the reason."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import pytest
import trio

from netstack.control.messages import SLICE_BYTES, BlobPart, FetchBlob, Message, blob_parts
from netstack.errors import ConnectionLost
from netstack.schedule.descriptors.blob_store import BlobError, BlobKind, MemoryBlobStore
from netstack.schedule.descriptors.descriptors import BlobKey
from netstack.taskmanager.blobs import BlobFetcher

DATA = bytes(range(256)) * (3 * SLICE_BYTES // 256) + b"the end"
KEY = MemoryBlobStore().new_key(BlobKind.TASK_INFORMATION, DATA, "somebody")
CODE = BlobKey(f"code-{hashlib.sha256(DATA).hexdigest()}")


def fetched(key: BlobKey, answer: Callable[[FetchBlob], BlobPart | None]) -> bytes:
    """What is fetched from an other end that answers like this; it hangs up where it does not."""

    async def main() -> bytes:
        fetcher: BlobFetcher

        def send(message: Message) -> None:
            assert isinstance(message, FetchBlob)
            part = answer(message)
            if part is None:
                fetcher.lost("the other end is gone")
            else:
                fetcher.part(part)

        fetcher = BlobFetcher(send)
        call: Callable[[BlobKey], Awaitable[bytes]] = fetcher.fetch
        return await call(key)

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
    with pytest.raises(BlobError, match="268435456 is the most"):
        fetched(KEY, lambda ask: BlobPart(ask.key, ask.offset, 1 << 40, b"x"))
    with pytest.raises(BlobError, match="a part of it has no bytes"):
        fetched(KEY, lambda ask: BlobPart(ask.key, ask.offset, 10, b""))
    with pytest.raises(ConnectionLost, match="the other end is gone"):
        fetched(KEY, lambda ask: blob_parts(ask.key, DATA, 0) if not ask.offset else None)


def test_parts_that_nobody_waits_for_are_dropped() -> None:
    async def main() -> bytes:
        def send(message: Message) -> None:
            assert isinstance(message, FetchBlob)
            fetcher.part(blob_parts(CODE, DATA, 0))  # of another blob
            fetcher.part(blob_parts(KEY, DATA, message.offset + 1))  # of another place
            fetcher.part(blob_parts(KEY, DATA, message.offset))

        fetcher = BlobFetcher(send)
        fetcher.part(blob_parts(KEY, b"of somebody else", 0))
        return await fetcher.fetch(KEY)

    assert trio.run(main) == DATA
