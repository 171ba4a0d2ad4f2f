"""The command `netstack top`: a live terminal view of TaskManagers and JobManagers; or one snapshot, or JSON.

Takes: addresses of either. Gives: a view that is redrawn every interval, until `q` or Ctrl-C. A process that cannot be
reached is shown with the reason, and contacted again; if none has answered in `PATIENCE_S`, the command ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import click
import trio
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ..base.errors import ConfigError, ConnectionLost, NetstackError
from ..base.units import format_count
from ..cluster.control.link import JOBMANAGER
from ..cluster.jobmanager.client import open_job_client
from ..cluster.taskmanager.client import NotATaskManager, open_client
from ..network.connection.authentication import Secret
from .jobmanager_flags import secret_flag, secret_of
from .json_document import print_document
from .stopping import keep_results, note_signal
from .top_jobs import JobManagerHistory, JobManagerView, jobmanager_document, jobmanager_lines, line_of
from .top_view import History, JobView, TaskManagerHistory, TaskManagerView, snapshot_document, sparkline
from .values import LENGTH

Histories: TypeAlias = dict[str, TaskManagerHistory | JobManagerHistory]
"""By address. Each address is taken for a TaskManager until the process there reports another role."""

View: TypeAlias = TaskManagerView | JobManagerView

HEARTBEAT_TIMEOUT_S: Final = 5.0
PATIENCE_S: Final = 10.0
"""How long to wait for the first answer of any address."""

_FIXED_WIDTH: Final = 58  # of a line of a job, without its sparkline
_ADDRESS: Final = re.compile(r"(?:[a-z+]+://)?(?:\[[^\]\s]+\]|[^\s:\[\]]+):\d{1,5}")


@click.command(short_help="Show a live view of jobs and TaskManagers.")
@click.argument("addresses", metavar="ADDR...", nargs=-1, required=True)
@secret_flag
@click.option("--interval", "interval_s", type=LENGTH, default="1s", show_default=True, help="Refresh interval.")
@click.option("--once", is_flag=True, help="Print one snapshot, with rates measured over one interval, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print each snapshot as one JSON document per line.")
def top(addresses: tuple[str, ...], secret_file: Path | None, interval_s: float, once: bool, as_json: bool) -> int:
    """Show JobManagers with their jobs, and TaskManagers with throughput and credit over the last minute.

    ADDR is HOST:PORT of a JobManager, or of a TaskManager's control port.

    Press `q` or Ctrl-C to quit. If standard output is no terminal, one snapshot is printed as with --once. The exit
    code is then 1 if an address cannot be reached; otherwise, if no address has answered within 10 seconds.
    """
    addresses = tuple(each for several in addresses for each in several.split(",") if each)
    for address in addresses:
        if not _ADDRESS.fullmatch(address):
            raise ConfigError(f"{address!r} is no address; give HOST:PORT, such as 10.0.0.1:6121")
    if not interval_s:
        raise ConfigError("--interval 0 is not allowed; give 100ms or more")
    secret = secret_of(secret_file)
    histories: Histories = {address: TaskManagerHistory(address) for address in addresses}
    once = once or not (as_json or sys.stdout.isatty())
    try:
        return trio.run(_watch, histories, secret, interval_s, once, as_json)
    except BrokenPipeError:  # the reader of standard output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


async def _watch(histories: Histories, secret: Secret | None, interval_s: float, once: bool, as_json: bool) -> int:
    failure: BrokenPipeError | ConnectionLost | None = None
    code = 0
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            nursery.start_soon(_end_on, signals, nursery.cancel_scope, once)
            for address in histories:
                nursery.start_soon(_follow, address, histories, secret, interval_s)
            try:
                if once:
                    code = await _show_once(histories, interval_s, as_json)
                else:
                    await _show(histories, interval_s, as_json)
            except (BrokenPipeError, ConnectionLost) as error:
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return code


async def _end_on(signals: AsyncIterator[int], scope: trio.CancelScope, once: bool) -> None:
    async for number in signals:
        note_signal(number)
        if once:  # it would have ended by itself
            keep_results()
        scope.cancel()


async def _follow(address: str, histories: Histories, secret: Secret | None, interval_s: float) -> None:
    """Polls one process, and reconnects whenever the connection is lost."""
    while True:
        try:
            history = histories[address]
            if isinstance(history, JobManagerHistory):
                await _follow_jobs(address, history, secret, interval_s)
            else:
                await _follow_taskmanager(address, history, secret, interval_s)
        except NotATaskManager as error:
            histories[address] = JobManagerHistory(address) if error.role == JOBMANAGER else TaskManagerHistory(address)
            continue
        except NetstackError as error:
            histories[address].lost(str(error))
        await trio.sleep(interval_s)


async def _follow_taskmanager(
    address: str, history: TaskManagerHistory, secret: Secret | None, interval_s: float
) -> None:
    async with open_client(
        address,
        secret=secret,
        name="netstack top",
        heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S,
        connect_timeout_s=HEARTBEAT_TIMEOUT_S,
    ) as client:
        while True:
            history.add(await client.statistics(), trio.current_time())
            await trio.sleep(interval_s)


async def _follow_jobs(address: str, history: JobManagerHistory, secret: Secret | None, interval_s: float) -> None:
    async with open_job_client(address, secret=secret, name="netstack top") as client:
        while True:
            history.add(await client.look(), trio.current_time())
            await trio.sleep(interval_s)


_HELP: Final = Text("q quits\n", style="dim", no_wrap=True)


async def _show_once(histories: Histories, interval_s: float, as_json: bool) -> int:
    with trio.move_on_after(2 * HEARTBEAT_TIMEOUT_S + interval_s):
        while True:
            await trio.sleep(interval_s / 10)
            if all(history.is_known for history in histories.values()):
                break
    views = _views(histories)
    if as_json:
        _print_document(views)
    else:
        console = Console(highlight=False)
        console.print(rendered(views, console.width))
    return 1 if any(view.gone for view in views) else 0


def _unanswered(histories: Histories, began_s: float) -> str:
    """Why the command ends: no address has answered for `PATIENCE_S` since the start; empty if it goes on."""
    if trio.current_time() < began_s + PATIENCE_S or any(each.has_answered for each in histories.values()):
        return ""
    reasons = "; ".join(f"{view.address}: {view.gone}" for view in _views(histories))
    return (
        f"no process answered within {PATIENCE_S:g} s ({reasons}); check that these are addresses of a JobManager, or"
        " of control ports of TaskManagers"
    )


async def _show(histories: Histories, interval_s: float, as_json: bool) -> None:
    began_s, why = trio.current_time(), ""
    if as_json:
        while not why:
            await trio.sleep(interval_s)
            why = _unanswered(histories, began_s)
            _print_document(_views(histories))
        raise ConnectionLost(why)
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live, _keys() as keyboard:
        async with trio.open_nursery() as nursery:
            if keyboard is not None:
                nursery.start_soon(_until_q, keyboard, nursery.cancel_scope)
            while not why:
                live.update(Group(_HELP, rendered(_views(histories), console.width)), refresh=True)
                await trio.sleep(interval_s)
                why = _unanswered(histories, began_s)
            nursery.cancel_scope.cancel()
    if why:
        raise ConnectionLost(why)


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """Standard input without line buffering and echo; None if it is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


async def _until_q(keyboard: int, scope: trio.CancelScope) -> None:
    while True:
        await trio.lowlevel.wait_readable(keyboard)
        if os.read(keyboard, 1) in (b"q", b"Q", b""):
            scope.cancel()


def _views(histories: Histories) -> list[View]:
    return [history.view(trio.current_time()) for history in histories.values()]


def _print_document(views: list[View]) -> None:
    document = snapshot_document([view for view in views if isinstance(view, TaskManagerView)])
    jobs = jobmanager_document([view for view in views if isinstance(view, JobManagerView)])
    print_document(document | {"jobmanagers": jobs})


def rendered(views: Iterable[View], width: int) -> Group:
    """Renders the views for a terminal of this width."""
    seen = [*views]
    hosts = {_host(view.address): view.hostname for view in seen if isinstance(view, TaskManagerView)}
    lines = (
        jobmanager_lines(view) if isinstance(view, JobManagerView) else _taskmanager_lines(view, width, hosts)
        for view in seen
    )
    return Group(*(line for each in lines for line in each))


def _host(address: str) -> str:
    """The host of an address or URL. The port of a peer is different for each connection."""
    return (address.partition("://")[2] or address).rpartition(":")[0].strip("[]")


def _taskmanager_lines(view: TaskManagerView, width: int, hosts: Mapping[str, str]) -> list[Text]:
    name = Text.assemble((view.address, "bold"), f"  {view.hostname}" if view.hostname else "")
    if view.gone:
        return [line_of(name, ("  lost, reconnecting", "bold red")), Text(f"  {view.gone}", style="red"), Text("")]
    cpu = "" if view.cpu_percent is None else f"  CPU {view.cpu_percent:.0f} % of {100 * view.cpus} %"
    facts = f"  up {_clock(view.uptime_s)}  slots {view.used_slots}/{view.slots}{cpu}"
    memory = (
        f"  buffers {_bytes(view.used_memory_bytes)} in use, {_bytes(view.held_memory_bytes)} held by jobs,"
        f" of {_bytes(view.memory_bytes)}"
    )
    lines = [line_of(name, facts), line_of(memory)]
    for job in view.jobs:
        lines += _job_lines(job, width, hosts)
    if not view.jobs:
        lines.append(Text("  no jobs", style="dim"))
    return [*lines, Text("")]


def _job_lines(job: JobView, width: int, hosts: Mapping[str, str]) -> list[Text]:
    tasks = ", ".join(f"{count} {state}" for state, count in job.tasks.items() if count) or "no tasks yet"
    slots = f"  {job.slots} slot{'s' * (job.slots != 1)}" if job.slots else ""
    head = f"  {_clock(job.age_s)}{slots}  "
    if not job.is_open:
        return [line_of("  ", (job.name, "cyan"), head, ("waiting for slots", "yellow"))]
    used = f"  buffers {_percent(job.used_memory_bytes / job.memory_bytes)}" if job.memory_bytes else ""
    style = "red" if job.tasks["failed"] else ""
    lines = [line_of("  ", (job.name, "cyan"), head, (tasks, style), used)]
    bars = max(8, width - _FIXED_WIDTH)
    titles = f"    {'':3} {'bytes':>10} {'records':>12} {'the last minute':{bars}}  waits"
    lines.append(line_of((titles, "dim")))
    waits = f"backpressured {job.backpressured_ms_per_s:4.0f} ms/s"
    lines.append(_flow("out", job.out_bytes_per_s, job.out_records_per_s, job.out_history, bars, waits))
    waits = f"idle          {job.idle_ms_per_s:4.0f} ms/s"
    lines.append(_flow("in", job.in_bytes_per_s, job.in_records_per_s, job.in_history, bars, waits))
    lines.append(
        line_of(
            f"    pool usage out {_percent(job.out_pool_usage)}, in {_percent(job.in_pool_usage)};",
            f" network out {_rate(job.sent_bytes_per_s, 'B/s')}, in {_rate(job.received_bytes_per_s, 'B/s')}",
        )
    )
    if job.channels:
        lines.append(line_of((f"    {'credit':>13}  {'the last minute':{bars}}  channel", "dim")))
    most = max((credit for channel in job.channels for _, _, credit in channel.credits), default=0.0)
    for channel in job.channels:
        host = _host(channel.peer)
        label = f"{channel.partition}[{channel.subpartition}] to {hosts.get(host) or host or channel.peer}"
        style = "red" if channel.credit == 0 else ""
        lines.append(
            line_of(
                (f"    {channel.credit:13,.0f}  ", style),
                (sparkline(channel.credits, bars, top=most), "green"),
                f"  {label}",
            )
        )
    more = job.channel_count - len(job.channels)
    if more > 0:
        lines.append(line_of((f"    and {more:,} more channels, with at least as much credit", "dim")))
    return lines


def _flow(
    what: str, bytes_per_s: float | None, records_per_s: float | None, history: History, bars: int, waits: str
) -> Text:
    return line_of(
        f"    {what:3} {_rate(bytes_per_s, 'B/s'):>10} {_rate(records_per_s, 'rec/s'):>12} ",
        (sparkline(history, bars), "green"),
        f"  {waits}",
    )


def _rate(per_s: float | None, unit: str) -> str:
    if per_s is None:
        return "..."
    text = format_count(per_s)
    return text + unit if text[-1].isalpha() else f"{text} {unit}"


def _bytes(count: int) -> str:
    return _rate(count, "B")


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"


def _clock(seconds: float) -> str:
    """Formats a duration as `2:03`, `1:02:03` or `4 d 1:02:03`."""
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
