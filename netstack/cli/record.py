"""The commands `netstack record` and `netstack replay`: what the live page shows, in a file; and the page of a file.

Takes: a job or the address of a JobManager, or a file. Gives: a file; a page, in a browser or as a file of its own.
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

from ..errors import ConfigError, ConnectionLost, NetstackError
from ..web.history import History
from ..web.recording import read_recording, recorded
from .job import job_parameters
from .jobmanager_flags import connected, json_flag, secret_flag
from .json_document import print_document
from .run import run
from .values import COUNT, LENGTH

_ADDRESS: Final = re.compile(r"(?:[a-z+]+://)?(?:\[[^\]\s]+\]|[^\s:\[\]/]+):\d{1,5}")


@click.command(short_help="What a cluster does, in a file.")
@click.argument("target", metavar="JOB|ADDR:PORT")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    required=True,
    help="Where it is kept; replaced if it exists.",
)
@click.option("--seconds", "seconds_s", type=LENGTH, help="Of a JobManager: how long; until Ctrl-C if not given.")
@job_parameters
@click.option("--taskmanagers", type=COUNT, help="Of a job: as for `netstack run`.")
@click.option("--slots", type=COUNT, help="Of a job: as for `netstack run`.")
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
    """Records jobs, tasks and channels for `netstack replay`: of JOB, which is run for that, or of a JobManager.

    JOB is named as for `netstack plan`, and is run as `netstack run` does. The file holds no records but what its
    sinks return, and no secret.
    """
    if not _ADDRESS.fullmatch(target):
        if seconds_s is not None:
            raise ConfigError("--seconds goes with the address of a JobManager; a job is recorded to its end")
        code: int = context.invoke(
            run, job=target, input_file=input_file, given=given, taskmanagers=taskmanagers, slots=slots, record=output
        )
        return code
    if given or input_file or taskmanagers or slots:
        raise ConfigError(f"{target} is a JobManager, whose jobs run already: leave -p, --input and the like away")
    trio.run(_record, target, secret_file, output, seconds_s)
    count = read_recording(output).number
    click.echo(f"{count} different looks are in {output}; netstack replay {output} shows them", err=True)
    return 0


async def _record(address: str, secret_file: Path | None, output: Path, seconds_s: float | None) -> None:
    failure: NetstackError | OSError | None = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            ended = trio.Event()
            nursery.start_soon(_end_on, signals, ended)
            try:
                async with (
                    connected(address, secret_file) as client,
                    recorded(output, client.look, fatal=(ConnectionLost, OSError)),
                ):
                    with trio.move_on_after(float("inf") if seconds_s is None else seconds_s):
                        await ended.wait()
            except* (NetstackError, OSError) as errors:  # leaves as it is, not inside this nursery's group
                failure = _first(errors)
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _first(errors: BaseExceptionGroup[NetstackError | OSError]) -> NetstackError | OSError:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def _end_on(signals: AsyncIterator[int], ended: trio.Event) -> None:
    async for _ in signals:
        ended.set()


@click.command(short_help="The page of a recording.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--web", metavar="ADDR:PORT", default="127.0.0.1:8081", show_default=True, help="Where the page is.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.html",
    help="Write the page, with everything in it, and end: it opens in any browser, without netstack.",
)
@click.option("--open/--no-open", "opens", default=False, help="Open the page in a browser.")
@json_flag
def replay(file: Path, web: str, output: Path | None, opens: bool, as_json: bool) -> int:
    """Shows FILE, of `netstack record`, on the page that showed it live; the time line goes through all of it."""
    history = read_recording(file)
    if as_json:
        print_document({"looks": json.loads(History.text(history.kept()))})
    elif output is not None:
        from ..web.page import page

        output.write_text(page(History.text(history.kept())), encoding="utf-8")
    else:
        trio.run(_replay, history, web, opens)
    return 0


async def _replay(history: History, web: str, opens: bool) -> None:
    from ..web.serve import open_replay  # no other command needs hypercorn and starlette

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_replay(history, web) as url:
            click.echo(f"the page is {url}; Ctrl-C ends it")
            if opens:
                webbrowser.open(url)
            async for _ in signals:
                break
