"""The command `netstack demo`: shows flow control in slow motion on the live web page.

Takes: an address for the page. Gives: two small jobs on TaskManagers of this machine, until Ctrl-C.
"""

from __future__ import annotations

import signal
import time
import webbrowser
from collections.abc import AsyncIterator
from typing import Any

import click
import trio

from ..base.errors import ConfigError, JobFailed, NetstackError
from ..cluster.jobmanager.local import LocalCluster, open_local_cluster
from .values import Parsed


def _pace(text: str) -> float:
    try:
        pace = float(text)
    except ValueError:
        pace = 0.0
    if not 0.05 <= pace <= 100:
        raise ConfigError(f"{text!r} is no pace; give a number from 0.05 (fast) to 100 (slow)")
    return pace


@click.command(short_help="Show flow control in slow motion in a browser.")
@click.option(
    "--web", metavar="ADDR:PORT", default="127.0.0.1:8081", show_default=True, help="Address of the web page."
)
@click.option(
    "--pace",
    type=Parsed("FACTOR", _pace),
    default="1",
    show_default=True,
    help="Factor by which the demo is slowed down; below 1 it runs faster.",
)
@click.option("--open/--no-open", "opens", default=False, help="Open the page in a browser.")
def demo(web: str, pace: float, opens: bool) -> int:
    """Show buffers, credit, a stalled consumer and an aligning barrier with two producers and two consumers.

    The command starts a JobManager, four TaskManagers and two jobs of netstack.examples.two_by_two, one with credit and
    one without, and serves a web page that explains them. Ctrl-C ends all of it.
    """
    trio.run(_show, web, pace, opens)
    return 0


async def _show(web: str, pace: float, opens: bool) -> None:
    from ..cluster.web.serve import open_web  # without --web neither h11 nor starlette is needed

    failure: NetstackError | OSError | None = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_on, signals, nursery.cancel_scope)
            try:
                async with open_local_cluster(taskmanagers=4, slots=2, slots_in="loop") as cluster:
                    began = time.time()
                    async with open_web(cluster.jobmanager, web, facts={"demo": story(began, pace)}) as url:
                        click.echo(f"web page: {url} (Ctrl-C ends the demo)")
                        if opens:
                            webbrowser.open(url)
                        await _run_jobs(cluster, began, pace)
            except (NetstackError, OSError) as error:  # keeps this nursery from wrapping it in a group
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _end_on(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()


async def _run_jobs(cluster: LocalCluster, began: float, pace: float) -> None:
    """Submits both jobs one after the other, so that each gets its own TaskManagers, and waits for the first."""
    from ..examples import two_by_two

    jobs = []
    for credit in (1, 0):
        environment = two_by_two.job(began, pace, credit)
        jobs.append(await cluster.client.submit(environment))
        running: dict[str, int] = {}
        while running.get("running") != 4:
            await trio.sleep(0.05)
            running = (await cluster.client.job(jobs[-1]))["tasks"]
            if "failed" in running:
                break
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_take_checkpoints, cluster, jobs[0], began, pace)
        result = await cluster.wait(jobs[0])
        raise JobFailed(f"the demo's job ended early, with the state {result.state}", job_id=jobs[0])


async def _take_checkpoints(cluster: LocalCluster, job_id: str, began: float, pace: float) -> None:
    """Triggers checkpoints in the phase that shows a barrier; in other phases they would only wait for B.4."""
    from ..examples.two_by_two import ALIGN, phase_at

    while True:
        await trio.sleep(3.0 * pace)
        master = cluster.jobmanager.dispatcher.running.get(job_id)
        if master is not None and phase_at(began, pace) == ALIGN:
            await master.checkpoint()


def story(began: float, pace: float) -> dict[str, Any]:
    """The phases that the page explains, with their times."""
    from ..examples.two_by_two import NAMES, PHASES

    return {
        "began": began,
        "names": NAMES,
        "phases": [{**phase, "seconds": phase["seconds"] * pace} for phase in PHASES],
    }
