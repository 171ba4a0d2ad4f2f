"""Whoever changes something leaves a line, over a link as over the page."""

from __future__ import annotations

import logging

import pytest
import trio
from jobmanager.scripted_taskmanager import client, document
from served_pages import ask, pipeline, running

from netstack.cluster.control.link import CLIENT, dial
from netstack.cluster.control.messages import Ask


async def test_who_submits_saves_and_cancels_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "netstack.audit")
    async with running(may_change=True) as (manager, url, job_id), client(manager) as user:
        second = (await user.ask("submit", document=document(pipeline())))["job_id"]
        await user.ask("cancel", job_id=second)
        assert (await ask(f"{url}/jobs/{job_id}/savepoints", method="POST"))[0] == 202
        link, _ = await dial(manager.address, role=CLIENT, name="\x1b[2J\nroot", facts={})
        link.send(Ask(1, "cancel", {"job_id": job_id}))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await manager.dispatcher.records[job_id].ended.wait()
            nursery.cancel_scope.cancel()
    lines = [each.getMessage() for each in caplog.records if each.name == "netstack.audit"]
    assert [line.partition(" of job ")[0] for line in lines] == ["submit", "submit", "cancel", "savepoint", "cancel"]
    assert f"{second} (pipeline) by test at " in lines[1]
    assert lines[3].endswith("by the page, from 127.0.0.1")
    assert r"\x1b[2J\nroot" in lines[4]
    assert all(line.isprintable() for line in lines)
