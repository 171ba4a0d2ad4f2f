"""A cluster that is upgraded host by host: who is of another release is refused on both sides, until it is upgraded."""

from __future__ import annotations

import pytest
import trio
from jobmanager.scripted_taskmanager import client, jobmanager
from trio.testing import MockClock

from netstack.cluster.control import link as link_module
from netstack.cluster.taskmanager.config import TaskManagerConfig
from netstack.cluster.taskmanager.runner import open_taskmanager


async def test_a_taskmanager_of_another_release_comes_when_it_is_upgraded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with jobmanager() as manager, client(manager) as user:
        with monkeypatch.context() as older:
            older.setattr(link_module, "own_build", lambda: "0123456789ab")
            config = TaskManagerConfig(listen="memory://older", jobmanager=manager.address, link_in_thread=False)
            async with open_taskmanager(config):
                await trio.sleep(60.0)
                assert not [*manager.taskmanagers.all()]
                assert await user.ask("jobs") == {"jobs": []}, "nobody else is disturbed"
        for logger in ("netstack.jobmanager", "netstack.taskmanager"):
            lines = [record.getMessage() for record in caplog.records if record.name == logger]
            refused = [line for line in lines if "install one release on every host" in line]
            assert refused, f"{logger} does not say why"
            assert all("runs netstack " in line and "+0123456789ab" in line for line in refused)
        config = TaskManagerConfig(listen="memory://newer", jobmanager=manager.address, link_in_thread=False)
        async with open_taskmanager(config):
            with trio.fail_after(30.0):
                while not [*manager.taskmanagers.all()]:  # noqa: ASYNC110 - nobody tells
                    await trio.sleep(0.1)
