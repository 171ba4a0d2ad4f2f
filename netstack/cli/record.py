"""The commands `netstack record` and `netstack replay`: store the data of the live web page, and show it later.

Takes: a job or the address of a JobManager; a recording. Gives: a recording; a web page or an HTML file.
"""

from __future__ import annotations

import json
import re
import signal
import webbrowser
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import click
import trio

from ..base.errors import ConfigError, ConnectionLost
from ..base.units import counted
from ..cluster.web.history import History
from ..cluster.web.recording import read_recording, recorded
from .job import job_parameters
from .jobmanager_flags import connected, json_flag, secret_flag
from .json_document import print_document
from .run import run
from .stopping import keep_results, note_signal
from .values import COUNT, SECONDS

_ADDRESS: Final = re.compile(r"(?:[a-z+]+://)?(?:\[[^\]\s]+\]|[^\s:\[\]/]+):\d{1,5}")


@click.command(short_help="Record the activity of a cluster in a file.")
@click.argument("target", metavar="JOB|ADDR:PORT")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    required=True,
    help="File for the recording; an existing file is replaced.",
)
@click.option(
    "--seconds",
    "seconds_s",
    type=SECONDS,
    show_default="until Ctrl-C",
    help="How long to record; only with the address of a JobManager.",
)
@job_parameters
@click.option("--taskmanagers", type=COUNT, help="As for `netstack run`; only with a job.")
@click.option("--slots", type=COUNT, help="As for `netstack run`; only with a job.")
@secret_flag
@click.pass_context
def record(
    context: click.Context,
    target: str,
    output: Path,
    seconds_s: float | None,
    input_file: Path | None,
    given: tuple[tuple[str, str], ...],
    taskmanagers: int | None,
    slots: int | None,
    secret_file: Path | None,
) -> int:
    """Record jobs, tasks and channels for `netstack replay`.

    With JOB, named as for `netstack plan`, the command runs the job as `netstack run` does and records it. With the
    address ADDR:PORT of a JobManager it records that JobManager. The file contains no secret, and no records except
    the results of sinks.
    """
    if not _ADDRESS.fullmatch(target):
        if seconds_s is not None:
            raise ConfigError("--seconds requires the address of a JobManager; a job is recorded until it ends")
        code: int = context.invoke(
            run, job=target, input_file=input_file, given=given, taskmanagers=taskmanagers, slots=slots, record=output
        )
        return code
    if given or input_file or taskmanagers or slots:
        raise ConfigError(
            f"{target} is a JobManager, whose jobs already run: omit -p, --input, --taskmanagers and --slots"
        )
    trio.run(_record, target, secret_file, output, seconds_s)
    count = read_recording(output).number
    click.echo(f"wrote {counted(count, 'snapshot')} to {output}; to view them: netstack replay {output}", err=True)
    return 0


async def _record(address: str, secret_file: Path | None, output: Path, seconds_s: float | None) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            ended = trio.Event()
            nursery.start_soon(_end_on, signals, ended, seconds_s is not None)
            async with (
                connected(address, secret_file) as client,
                recorded(output, client.look, fatal=(ConnectionLost, OSError)),
            ):
                with trio.move_on_after(float("inf") if seconds_s is None else seconds_s):
                    await ended.wait()
            nursery.cancel_scope.cancel()


async def _end_on(signals: AsyncIterator[int], ended: trio.Event, is_early: bool) -> None:
    async for number in signals:
        note_signal(number)
        if is_early:
            keep_results()
        ended.set()


@click.command(short_help="Show a recording on a web page.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--web", metavar="ADDR:PORT", default="127.0.0.1:8081", show_default=True, help="Address of the web page."
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.html",
    help="Write a self-contained page to this file, which opens in any browser without netstack, and end.",
)
@click.option("--open/--no-open", "opens", default=False, help="Open the page in a browser.")
@json_flag
def replay(file: Path, web: str, output: Path | None, opens: bool, as_json: bool) -> int:
    """Serve the web page for FILE, a recording of `netstack record`. Drag its time line to any moment."""
    history = read_recording(file)
    if as_json:
        print_document({"looks": json.loads(History.text(history.kept()))})
    elif output is not None:
        from ..cluster.web.page import page

        output.write_text(page(History.text(history.kept())), encoding="utf-8")
    else:
        trio.run(_replay, history, web, opens)
    return 0


async def _replay(history: History, web: str, opens: bool) -> None:
    from ..cluster.web.serve import open_replay  # no other command needs h11 and starlette

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_replay(history, web) as url:
            click.echo(f"web page: {url} (Ctrl-C ends it)")
            if opens:
                webbrowser.open(url)
            async for _ in signals:
                break
