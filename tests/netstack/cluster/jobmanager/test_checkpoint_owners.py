"""A job that names the checkpoint folder of another is refused, and the other goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from jobmanager.scripted_taskmanager import client, document, jobmanager, taskmanager
from trio.testing import MockClock

from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.descriptors.information import JobInformation
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings

PORT = "tcp://127.0.0.1:0"


def job(folder: Path | str | None, name: str = "victim") -> dict[str, Any]:
    settings = StreamSettings(
        checkpoints=CheckpointSettings(interval_s=0.05), checkpoint_folder=None if folder is None else str(folder)
    )
    actual = StreamEnvironment(name, settings=settings)
    actual.source("jobs:read", name="source").sink("jobs:keep", name="sink")
    return document(actual)


async def test_the_folder_of_a_running_job_is_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    link = tmp_path / "link"
    link.symlink_to(folder)
    other = tmp_path / "other"
    async with jobmanager(listen=PORT) as manager, taskmanager(manager, slots=4) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=job(folder)))["job_id"]
        await tm.until(tm.triggered)
        other_id = (await user.ask("submit", document=job(other)))["job_id"]
        for same in (folder, link, f"{folder}/../checkpoints/"):
            for more in ({}, {"from_savepoint": str(other)}):
                with pytest.raises(AssertionError, match=f"job {job_id} \\(victim\\), which has not ended, uses"):
                    await user.ask("submit", document=job(same, "thief"), **more)
        assert sorted(manager.dispatcher.running) == sorted([job_id, other_id])
        storage = manager.dispatcher.records[job_id].storage
        assert storage is not None
        assert storage._fence.epoch == 1
        await user.ask("cancel", job_id=job_id)
        assert (await user.ask("submit", document=job(folder, "next")))["job_id"]


async def test_a_job_that_waits_for_its_disk_keeps_its_folder(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = tmp_path / "checkpoints", str(tmp_path / "store")
    async with jobmanager(folder=store) as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=job(folder)))["job_id"]
        await tm.until(tm.triggered)
    for epoch in folder.glob("epoch-*"):
        epoch.unlink()
    folder.rename(tmp_path / "away")
    folder.write_text("no folder")
    async with jobmanager(folder=store) as manager, client(manager) as user:
        assert manager.dispatcher.records[job_id].waits_for
        with pytest.raises(AssertionError, match=rf"job {job_id} .*checkpoint folder"):
            await user.ask("submit", document=job(folder, "thief"))
        await user.ask("cancel", job_id=job_id)
        with pytest.raises(AssertionError, match="cannot be taken over"):
            await user.ask("submit", document=job(folder, "next"))


async def test_folders_lie_below_the_roots(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (tmp_path / "rooted").mkdir()
    root.mkdir()
    (root / "out").symlink_to(tmp_path / "rooted")
    async with jobmanager(listen=PORT, checkpoint_roots=(str(root),)) as manager, client(manager) as user:
        for outside in (tmp_path / "rooted", root / "out", f"{root}/../rooted", "relative"):
            with pytest.raises(AssertionError, match=f"is not below {root}"):
                await user.ask("submit", document=job(outside))
            with pytest.raises(AssertionError, match=f"is not below {root}"):
                await user.ask("submit", document=job(None), from_savepoint=str(outside))
        for more in ({"document": job(f"{root}/a\0b")}, {"document": job(None), "from_savepoint": f"{root}/a\0b"}):
            with pytest.raises(AssertionError, match=r"a\\x00b' is no path"):
                await user.ask("submit", **more)
        assert not manager.dispatcher.records
        assert not list((tmp_path / "rooted").iterdir())
        await user.ask("submit", document=job(root / "mine"))
        await user.ask("submit", document=job(None))
        assert len(manager.dispatcher.running) == 2


async def test_a_job_s_folder_that_becomes_a_link_after_its_submission_is_not_followed(tmp_path: Path) -> None:
    """Nor is one that was a link at its submission, and led elsewhere below the root then."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "real").mkdir(parents=True)
    (root / "link").symlink_to(root / "real")
    outside.mkdir()
    store = str(tmp_path / "store")
    settings = {"listen": PORT, "checkpoint_roots": (str(root),), "folder": store}
    async with jobmanager(**settings) as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=job(root / "link")))["job_id"]
        await tm.until(tm.triggered)
        storage = manager.dispatcher.records[job_id].storage
        assert storage is not None
        assert (storage.folder, storage.root) == (str(root / "real"), str(root))
        information = JobInformation.parse(bytes(next(iter(tm.tasks.values())).job_information))
        assert (information.checkpoint_folder, information.checkpoint_root) == (str(root / "real"), str(root))
    (root / "real").rename(root / "moved")
    for name in ("real", "link"):
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(outside)
    async with jobmanager(**settings) as manager:
        assert manager.dispatcher.records[job_id].waits_for
        assert [*outside.iterdir()] == []


@pytest.mark.parametrize("epoch", ["99999999", "999999999999999999"])
async def test_a_planted_epoch_fences_the_job_and_the_end_says_so(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture, epoch: str
) -> None:
    folder = tmp_path / "checkpoints"
    settings = StreamSettings(checkpoints=CheckpointSettings(interval_s=10.0), checkpoint_folder=str(folder))
    job = StreamEnvironment("saves", settings=settings)
    job.source("jobs:read", name="source").sink("jobs:keep", name="sink")
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        await tm.until(lambda: tm.triggered() == [1])
        (folder / f"epoch-{epoch}").write_text('{"owner": "\\u202e", "pid": 1, "host": "x", "used": 1}')
        tm.store(1, folder)
        with trio.fail_after(100.0):
            end = await user.ask("wait", job_id=job_id)
        assert end["state"] == "failed"
        assert f"epoch {epoch} of the checkpoint folder {folder} " in end["reason"]
        assert "internal error" not in end["reason"]
        assert end["reason"].isprintable()
