"""Two JobManagers of different hosts with one folder, on a network file system whose locks only hold on each host."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from jobmanager.scripted_taskmanager import client, document, jobmanager, taskmanager
from served_pages import pipeline

from netstack.base.errors import ConfigError
from netstack.cluster.jobmanager import folder_lock, service
from netstack.cluster.jobmanager.folder_lock import sign_of_life
from netstack.cluster.jobmanager.store import open_job_store
from netstack.network.waiting.threads import in_thread

YEAR_S = 365 * 86_400


@pytest.fixture(autouse=True)
def network_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every lock is granted at once."""
    monkeypatch.setattr(fcntl, "flock", lambda file, operation: None)
    monkeypatch.setattr(folder_lock, "RENEW_S", 0.6)
    monkeypatch.setattr(folder_lock, "_LOOK_S", 0.02)
    monkeypatch.setattr(service, "RENEW_S", 0.05)


@contextmanager
def on_host(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: name)
        yield


@contextmanager
def alive(folder: Path, clock_s: float) -> Iterator[None]:
    """Touches the lock as a living JobManager does, by the clock of a file system that may be years off."""
    ended = threading.Event()

    def touch() -> None:
        at = clock_s
        while not ended.wait(0.05):
            at += 0.05
            os.utime(folder / "lock", (at, at))

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("skew_s", [0.0, YEAR_S])
def test_a_folder_whose_holder_lives_on_another_host_is_in_use(tmp_path: Path, skew_s: float) -> None:
    """Without this each JobManager ended the other one, and their jobs restarted for ever."""
    now_s = (tmp_path.stat().st_mtime) + skew_s
    with on_host("first"), open_job_store(tmp_path) as store, alive(tmp_path, now_s):
        with on_host("second"):
            assert sign_of_life(tmp_path) is not None, "a standby waits"
            with pytest.raises(
                ConfigError, match=rf"in use by another JobManager \(process {os.getpid()} of host first"
            ):
                open_job_store(tmp_path).__enter__()
        store.check()


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_folder_whose_holder_is_gone_is_free(tmp_path: Path, is_killed: bool) -> None:
    with on_host("first"), open_job_store(tmp_path) as store:
        text = (tmp_path / "lock").read_text()
    if is_killed:
        (tmp_path / "lock").write_text(text)
    with on_host("second"):
        assert (sign_of_life(tmp_path) is None) is not is_killed
        with open_job_store(tmp_path) as next_one:
            assert (next_one.life, next_one.is_stolen) == (store.life + 1, False)
            assert (tmp_path / "lock").read_text() == f"{os.getpid()} second"
    assert (tmp_path / "lock").read_text() == "", "it was left"
    assert not [*tmp_path.glob("*.probe")]


def test_a_standby_takes_the_folder_of_a_holder_that_is_silent(tmp_path: Path) -> None:
    with (
        on_host("first"),
        open_job_store(tmp_path) as store,
        on_host("second"),
        open_job_store(tmp_path, steal=True) as next_one,
    ):
        assert next_one.is_stolen
        with pytest.raises(service.JobStoreFenced):
            store.check()


async def test_jobs_are_not_disturbed_by_a_second_jobmanager(tmp_path: Path) -> None:
    with on_host("first"):
        async with jobmanager(folder=str(tmp_path)) as manager, taskmanager(manager) as tm, client(manager) as user:
            job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
            await tm.until(lambda: len(tm.tasks) == 4)
            with on_host("second"):
                for _ in range(3):
                    with pytest.raises(ConfigError, match="of host first"):
                        await in_thread(open_job_store(tmp_path).__enter__)
            tm.finish()
            assert (await user.ask("wait", job_id=job_id))["state"] == "finished"
            assert (await user.ask("job", job_id=job_id))["restarts"] == 0
            await trio.lowlevel.checkpoint()
