"""The page in a real browser, beside a job that runs: what is drawn is what `statistics()` says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from browser import Browser, Page, open_browser
from jobmanager.scripted_taskmanager import client, document, jobmanager, taskmanager
from page_jobs import cluster

from netstack.cli import main
from netstack.cluster.jobmanager.children import TaskManagerSettings, open_local_taskmanagers
from netstack.cluster.jobmanager.service import JobManager
from netstack.cluster.taskmanager.service import TaskManager
from netstack.cluster.web.history import snapshot_text
from netstack.cluster.web.recording import Recording
from netstack.cluster.web.serve import open_web
from netstack.network.connection.authentication import Secret
from netstack.schedule.execution import ExecutionState
from netstack.schedule.graph.stream_builder import StreamEnvironment

CHANNELS = (
    "Object.fromEntries([...document.querySelectorAll('[data-channel]')]"
    ".map((row) => [row.dataset.channel, {...row.dataset}]))"
)
LEVELS = (
    "Object.fromEntries([...document.querySelectorAll('button.box')]"
    ".map((box) => [box.dataset.task, box.dataset.level]))"
)
PATIENCE_S = 280.0
"""A browser on a busy machine."""

IS_FOCUSED = "document.activeElement.dataset.key"


def said(taskmanagers: list[TaskManager]) -> dict[str, dict[str, str]]:
    """Every channel by its producer, consumer and subpartition, as the networks of both processes tell it."""
    actual: dict[str, dict[str, str]] = {}
    networks = [
        job.environment.statistics()
        for each in taskmanagers
        for job in each.jobs_in_process
        if job.environment is not None
    ]
    for network in networks:
        for gate in network.gates:
            for channel in gate.channels:  # all to all: a subpartition is for the consumer of the same number
                producer = channel.partition_id.rpartition("/")[2].partition(".")[0]
                actual[f"{producer}-{channel.subpartition}-{channel.subpartition}"] = {
                    "queued": str(channel.queued_buffers),
                    "exclusive": str(channel.exclusive),
                    "freeexclusive": str(channel.free_exclusive),
                    "freefloating": str(channel.free_floating),
                    "unannouncedcredit": str(channel.unannounced_credit),
                }
    for network in networks:
        credits = {
            (channel.partition_id, channel.subpartition): channel.credit
            for connection in network.accepted
            for channel in connection.channels
        }
        for partition in network.partitions:
            producer = partition.partition_id.rpartition("/")[2].partition(".")[0]
            for number, subpartition in enumerate(partition.subpartitions):
                actual.setdefault(f"{producer}-{number}-{number}", {}).update(
                    {
                        "credit": str(credits.get((partition.partition_id, number))),
                        "backlog": str(subpartition.backlog_buffers),
                        "sending": str(subpartition.queued_buffers),
                    }
                )
    return actual


async def at_rest(taskmanagers: list[TaskManager]) -> dict[str, dict[str, str]]:
    """What the networks tell when nothing moves any more: the second sink stalls, and so do both sources."""
    before: dict[str, dict[str, str]] = {}
    while True:
        await trio.sleep(0.3)
        now = said(taskmanagers)
        if now == before and now.get("0-1-1", {}).get("credit") == now.get("1-1-1", {}).get("credit") == "0":
            return now
        before = now


async def edge_is_drawn(page: Page, taskmanagers: list[TaskManager]) -> None:
    """Channels: each figure of each is that of the networks."""
    truth = await at_rest(taskmanagers)
    assert sorted(truth) == ["0-0-0", "0-1-1", "1-0-0", "1-1-1"]
    await page.until("document.querySelector('[data-edge=\"0\"]')")
    await page.value("document.querySelector('[data-edge=\"0\"]').focus()")
    await page.press("Enter")  # by keyboard
    await page.until("location.hash.includes('edge=0')")
    drawn: dict[str, dict[str, str]] = {}
    while any(drawn.get(name, {}).get(key) != value for name, each in truth.items() for key, value in each.items()):
        drawn = await page.value(CHANNELS)
        truth = await at_rest(taskmanagers)  # on a busy machine what rested may have moved again
    assert await page.value(IS_FOCUSED) == "edge-0", "what is drawn anew keeps the focus"
    assert int(truth["0-1-1"]["backlog"]) > 0
    # As many squares as buffers.
    row = "document.querySelector('[data-channel=\"0-1-1\"]').cells"
    assert await page.value(f"{row}[1].querySelectorAll('.full').length") == int(truth["0-1-1"]["sending"])
    assert await page.value(f"{row}[4].querySelectorAll('.full').length") == int(truth["0-1-1"]["queued"])
    assert "stalled" in await page.value("document.querySelector('[data-edge=\"0\"]').getAttribute('class')")
    address = taskmanagers[0].address.removeprefix("tcp://")
    assert address in await page.value(f"{row}[10].textContent"), "which connection"
    assert "custom, prompt" in await page.value("document.querySelector('[data-edge=\"0\"]').textContent")
    assert "4 prompt channels" in await page.value("document.querySelector('#tms').textContent")


async def tasks_are_coloured(page: Page) -> None:
    """Both sources wait for the second sink, which computes for ever; the first one has nothing to do."""
    awaited = {"0.0": "waiting", "0.1": "waiting", "1.0": "idle", "1.1": "busy"}.items()
    seen = set[tuple[str, str]]()  # not always at the same moment on a busy machine
    while not awaited <= seen:
        seen |= set((await page.value(LEVELS)).items())
        await trio.sleep(0.1)


async def why_is_told(page: Page) -> None:
    await page.value("document.querySelector('[data-key=\"task-1.1\"]').click()")
    why = await page.until("document.querySelector('#task-why').textContent")
    assert "slot sharing group B" in why
    assert "load balance none" in why
    assert "0 of the 2 subtasks of its producers are on this TaskManager" in why
    await page.press("/", text="/")
    assert await page.value("document.activeElement.id") == "search"
    await page.value("document.querySelector('#search').value = 'TASKS sent'")
    await page.value("document.querySelector('#search').dispatchEvent(new Event('input'))")
    assert await page.value("[...document.querySelectorAll('#log b')].map((b) => b.textContent.trim())") == ["deploy"]
    assert "not chained" in await page.value("document.querySelector('#chaining').textContent")
    await page.value("document.activeElement.blur()")


async def time_can_be_dragged(page: Page) -> None:
    """Back to a time without a checkpoint, and to now."""
    await page.press("ArrowLeft")
    assert await page.value("document.querySelector('#when').className") == "past"
    await page.value(
        "(() => { const s = document.querySelector('#slider'); s.value = 0; s.dispatchEvent(new Event('input')); })()"
    )
    assert await page.value("document.querySelectorAll('[data-channel]').length") == 0, "nothing ran yet"
    await page.press("l", text="l")
    assert await page.until("document.querySelector('#when').textContent") == "now"
    await page.until("document.querySelectorAll('[data-channel]').length == 4")


async def it_fits(page: Page) -> None:
    """From 400 px to wide: only what is meant to be scrolled is wider than the window."""
    for width in (400, 800, 1600):
        await page.resize(width)
        assert await page.value("document.documentElement.scrollWidth") <= width
    await page.resize(360)  # a phone: the graph runs downwards, the cells of a row are below each other
    parts = "document.querySelectorAll('table, #graph svg')"
    await page.until(f"[...{parts}].every((each) => each.getBoundingClientRect().width < 360)")
    await page.until("[...document.querySelectorAll('#jobs td')].every((cell) => cell.dataset.head)")
    await page.resize(1280)
    await page.until("document.querySelector('#graph svg').getBoundingClientRect().width > 360")


async def states_have_a_legend(page: Page) -> None:
    """Every colour that a subtask can have."""
    keys = "[...document.querySelectorAll('.legend .key')].map((key) => getComputedStyle(key).backgroundColor)"
    legend = await page.value(keys)
    colour_of = """((name) => { const probe = document.createElement('b'); probe.className = name;
        document.body.append(probe); const found = getComputedStyle(probe).color; probe.remove(); return found; })"""
    for state in ExecutionState:
        assert await page.value(f"{colour_of}('{state.value}')") in legend, state
    assert len(set(legend)) == len(legend) == 7


async def the_dead_are_red(page: Page, manager: JobManager) -> None:
    """A process that is killed turns red long before the heartbeat timeout: its connection ends with it."""
    async with open_local_taskmanagers(
        manager.address, ["third"], TaskManagerSettings(is_restarting=False)
    ) as children:
        await page.until("document.querySelectorAll('[data-tm]').length == 3")
        with trio.fail_after(manager.config.heartbeat_timeout_s):
            children.kill("third")
            await page.until("document.querySelectorAll('tr.gone').length == 1")
    red = await page.value("getComputedStyle(document.querySelector('tr.gone .state')).color")
    assert red == "rgb(179, 38, 30)"


@pytest.mark.browser
@pytest.mark.slow
async def test_the_page_draws_what_statistics_say(chromium: str, tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE_S):
        await the_page_draws_what_statistics_say(chromium, tmp_path)


async def the_page_draws_what_statistics_say(chromium: str, tmp_path: Path) -> None:
    async with open_browser(chromium) as browser, cluster() as (manager, taskmanagers, job_id):
        async with open_web(manager, "127.0.0.1:0") as url:
            page = await browser.open(url)
            await edge_is_drawn(page, taskmanagers)
            await tasks_are_coloured(page)
            await why_is_told(page)
            await time_can_be_dragged(page)
            await it_fits(page)
            await states_have_a_legend(page)
            await the_dead_are_red(page, manager)
        await a_recording_opens_alone(browser, manager, job_id, tmp_path)


async def a_recording_opens_alone(browser: Browser, manager: JobManager, job_id: str, folder: Path) -> None:
    """A file with all in it, which needs no server and asks none."""
    with Recording(folder / "recorded") as recording:
        recording.add(990.0, snapshot_text(manager.snapshots.snapshot() | {"jobs": []}))
        recording.add(1000.0, snapshot_text(manager.snapshots.snapshot()))
        recording.add(1005.0, snapshot_text(manager.snapshots.snapshot() | {"changed": "</script>"}))
    alone = folder / "recorded.html"
    assert main(["replay", str(folder / "recorded"), "--output", str(alone)]) == 0
    page = await browser.open(f"file://{alone}#edge=0", dark=True)
    assert await page.until("document.querySelector('[data-job]')?.dataset.job") == job_id
    assert await page.value("document.querySelectorAll('[data-channel]').length") == 4
    assert await page.value("document.querySelector('#slider').max") == "2"
    assert await page.value("document.querySelector('#slider').value") == "1", "it opens where the first job is"
    assert (await page.value("document.querySelector('#head').textContent")).startswith("Recorded: ")
    assert await page.value("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)", "dark"


@pytest.mark.browser
@pytest.mark.slow
async def test_a_token_opens_the_page_and_is_kept_nowhere(chromium: str) -> None:
    secret = Secret.generate()
    with trio.fail_after(PATIENCE_S):
        async with (
            open_browser(chromium) as browser,
            jobmanager() as manager,
            client(manager) as user,
            taskmanager(manager),
            open_web(manager, "127.0.0.1:0", secret=secret, may_change=True) as url,
        ):
            job = StreamEnvironment("secret job")
            job.source("jobs:read", name="source").sink("jobs:keep", name="sink")
            job_id = (await user.ask("submit", document=document(job)))["job_id"]
            page = await browser.open(url)
            await page.until("!document.querySelector('#login').hidden")
            log_in = (
                "document.querySelector('#token').value = %s; document.querySelector('#login').requestSubmit(); true"
            )
            await page.value(log_in % json.dumps("1." + 64 * "0"))
            await page.until("document.querySelector('#login-why').textContent.startsWith('not a valid web token')")
            await page.value(log_in % json.dumps(secret.web_token()))
            assert await page.until("document.querySelector('[data-job]')?.dataset.job") == job_id
            assert await page.value("document.querySelector('#login').hidden")
            kept = "JSON.stringify([document.cookie, {...sessionStorage}, {...localStorage}])"
            assert await page.value(kept) == '["",{},{}]'
            await page.until("document.querySelector('#act button')")
            await page.value("document.querySelector('#act button').click(), true")
            await manager.dispatcher.records[job_id].ended.wait()


@pytest.mark.browser
@pytest.mark.slow
async def test_failures_are_drawn_as_text(chromium: str) -> None:
    """The newest is open; what a user's error says is never a part of the page."""
    frame = {"file": "/jobs.py", "line": 7, "function": "change", "source": "raise KeyError(item)"}
    error = {"type": "KeyError", "message": "<img src=x>", "how": "raised", "frames": [frame]}
    with trio.fail_after(PATIENCE_S):
        async with (
            open_browser(chromium) as browser,
            jobmanager() as manager,
            client(manager) as user,
            taskmanager(manager) as tm,
            open_web(manager, "127.0.0.1:0") as url,
        ):
            job = StreamEnvironment("fails")
            job.source("jobs:read", name="source").sink("jobs:keep", name="sink")
            job_id = (await user.ask("submit", document=document(job)))["job_id"]
            page = await browser.open(url)
            await page.until("document.querySelector('[data-state=\"running\"]')")
            assert await page.value("document.querySelector('#failed').hidden")
            await tm.until(lambda: tm.tasks)
            tm.fail((0, 0, 0), "<b>no</b>", report={"errors": [error]})
            await manager.dispatcher.records[job_id].ended.wait()
            text = await page.until("document.querySelector('#failures details[open] pre')?.textContent")
            assert text.endswith(
                '  File "/jobs.py", line 7, in change\n    raise KeyError(item)\nKeyError: <img src=x>'
            )
            head = await page.value("document.querySelector('#failures summary').textContent")
            assert "<b>no</b>, at jobs.py:7 led to: the end of the job" in head
            assert not await page.value("document.querySelector('#failed').hidden")


async def test_nobody_is_asked_while_nobody_looks() -> None:
    async with cluster() as (manager, taskmanagers, _):
        await at_rest(taskmanagers)
        assert not manager.snapshots._details
        manager.snapshots.request_updates()
        while not manager.snapshots._details:  # noqa: ASYNC110  # told over a connection
            await trio.sleep(0.05)
        edge = manager.snapshots.snapshot()["jobs"][0]["edges"][0]
        assert edge["channel_count"] == len(edge["channels"]) == 4
        assert edge["is_prompt"]
        networks = manager.snapshots.snapshot()["jobs"][0]["networks"]
        assert [each["is_prompt"] for network in networks for each in network["connections"]] == [True, True]
        manager.snapshots._looked_s -= 100.0  # it is long ago
        while manager.snapshots._details:  # noqa: ASYNC110
            await trio.sleep(0.05)
