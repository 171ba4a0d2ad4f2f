"""Packages and blobs: who wants or sends too much pushes out its own, and what nobody uses goes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import trio
from jobmanager.scripted_taskmanager import client, document, jobmanager, taskmanager

from netstack.base.errors import ConfigError
from netstack.cluster.control.blob_answers import MAX_FETCHES
from netstack.cluster.control.messages import BlobPart
from netstack.cluster.control.reports import FetchBlob
from netstack.cluster.jobmanager.blobs import MAX_UPLOADS, UNUSED_S, Upload, Uploads
from netstack.cluster.jobmanager.store import JobStore
from netstack.schedule.graph.stream_builder import StreamEnvironment

PORT = "tcp://127.0.0.1:0"
PACKAGE = os.urandom(1 << 20)
DIGEST = hashlib.sha256(PACKAGE).hexdigest()


async def in_thread(function: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return function()


def part(data: bytes, offset: int = 0, size: int = 1 << 19) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    return {"sha256": digest, "offset": offset, "total": len(data), "data": data[offset : offset + size]}


async def test_who_sends_many_pushes_out_its_own(tmp_path: Path) -> None:
    uploads = Uploads(JobStore(tmp_path), in_thread, set)
    honest = Upload(uploads, "10.0.0.1")
    await honest.add(DIGEST, 0, len(PACKAGE), PACKAGE[:1000])
    flood = [Upload(uploads, "10.0.0.2") for _ in range(3 * MAX_UPLOADS)]
    for each in flood:
        assert await each.add(DIGEST, 0, 100, b"x") == 1
    with pytest.raises(ConfigError, match="submit the job"):
        await flood[0].add(DIGEST, 1, 100, b"x")
    assert await flood[-1].add(DIGEST, 1, 100, b"x") == 2
    assert await honest.add(DIGEST, 1000, len(PACKAGE), PACKAGE[1000:]) == len(PACKAGE)
    assert JobStore(tmp_path).code_part(DIGEST, 0, len(PACKAGE)) == PACKAGE


async def test_uploads_of_one_client_are_not_those_of_another() -> None:
    async with jobmanager(listen=PORT) as manager, client(manager) as one:
        async with client(manager) as two:
            await two.ask("code", **part(PACKAGE))
            await one.ask("code", **part(PACKAGE))
            with pytest.raises(AssertionError, match="submit the job"):
                await one.ask("code", **part(b"another" * 1000, 1 << 10))
            await two.ask("code", **part(PACKAGE, 1 << 19))
        await one.ask("code", **part(PACKAGE, 1 << 19))


async def test_packages_that_no_job_has_named_go(tmp_path: Path) -> None:
    job = StreamEnvironment("job")
    job.source("shipped:read", name="source").sink("shipped:keep", name="sink")
    async with jobmanager(listen=PORT, folder=str(tmp_path)) as manager, client(manager) as user:
        for data in (PACKAGE, b"unused", b"young"):
            await user.ask("code", **part(data, size=len(data)))
        job_id = (await user.ask("submit", document=document(job), code={"shipped": DIGEST}))["job_id"]
        for data in (PACKAGE, b"unused"):
            path = tmp_path / "code" / f"{hashlib.sha256(data).hexdigest()}.zip"
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - UNUSED_S - 1))
        await manager.prune_packages()
        left = {path.stem for path in (tmp_path / "code").iterdir()}
        assert left == {DIGEST, hashlib.sha256(b"young").hexdigest()}
    async with jobmanager(listen=PORT, folder=str(tmp_path)) as manager, client(manager) as user:
        assert manager.parts.store.code_bytes(DIGEST) == len(PACKAGE), "its job is taken up again"
        await user.ask("cancel", job_id=job_id)
        await manager.prune_packages()
        assert {path.stem for path in (tmp_path / "code").iterdir()} == {hashlib.sha256(b"young").hexdigest()}


def test_unused_packages_take_bounded_room(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    digests = [store.put_code(bytes([number]) * 100) for number in range(10)]
    for number, digest in enumerate(digests):
        os.utime(tmp_path / "code" / f"{digest}.zip", (number + 1e9, number + 1e9))
    store.prune_code({digests[0]}, 1e12, 350)
    assert {path.stem for path in (tmp_path / "code").iterdir()} == {digests[0], *digests[-3:]}


async def test_who_asks_for_blobs_and_does_not_read_has_us_hold_a_few() -> None:
    async with (
        jobmanager(listen=PORT) as manager,
        taskmanager(manager, reads=False) as deaf,
        taskmanager(manager) as tm,
    ):
        digest = manager.parts.store.put_code(PACKAGE)
        read = 0
        code_part = manager.parts.store.code_part

        def counted(digest: str, offset: int, size: int) -> bytes:
            nonlocal read
            read += 1
            return code_part(digest, offset, size)

        manager.parts.store.code_part = counted  # type: ignore[method-assign]
        for _ in range(MAX_FETCHES):
            deaf.link.send(FetchBlob(f"code-{digest}", 0))
        tm.link.send(FetchBlob("no-such-blob", 0))
        tm.link.send(FetchBlob("", -1))
        tm.link.send(FetchBlob(f"code-{digest}", 1 << 19))
        await tm.until(lambda: len(tm.said) == 3)
        assert [each.total for each in tm.said if isinstance(each, BlobPart)] == [-1, -1, len(PACKAGE)]
        assert read < 20
        for _ in range(MAX_FETCHES):
            deaf.link.send(FetchBlob(f"code-{digest}", 0))
        while len([*manager.taskmanagers.all()]) == 2:  # noqa: ASYNC110  # nobody tells
            await trio.sleep(0.02)
        assert read < 20
