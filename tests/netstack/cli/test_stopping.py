"""Exit codes of commands that a signal stops."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import click
import pytest
import trio

from netstack.cli import cli as netstack, main as netstack_main
from netstack.cli.exchange import until_stopped
from netstack.cli.stopping import keep_results, signals_are_ctrl_c, stopped_by
from netstack_bench.cli import cli as bench, main as bench_main

SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
MAINS: dict[str, tuple[click.Group, Callable[..., int]]] = {
    "netstack": (netstack, netstack_main),
    "netstack-bench": (bench, bench_main),
}
COMMANDS = [
    (program, name) for program, (group, _) in MAINS.items() for name in group.list_commands(click.Context(group))
]
NORMAL_END = ("jobmanager", "taskmanager")


def stopped(
    monkeypatch: pytest.MonkeyPatch, program: str, name: str, callback: Callable[..., object], *words: str
) -> int:
    """The exit code of a command that does `callback` instead."""
    group, main = MAINS[program]
    command = group.get_command(click.Context(group), name)
    assert command is not None
    if isinstance(command, click.Group):
        monkeypatch.setattr(command, "commands", {})
        monkeypatch.setattr(command, "invoke_without_command", True)
        monkeypatch.setattr(command, "no_args_is_help", False)
    json_flag = click.Option(["--json"], is_flag=True)
    monkeypatch.setattr(command, "params", [json_flag])
    monkeypatch.setattr(command, "callback", callback)
    return main([name, *words])


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(("program", "name"), COMMANDS)
def test_a_signal_is_the_exit_code_of_every_command(
    program: str, name: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            signal.raise_signal(number)
            await trio.sleep_forever()

    before = {each: signal.getsignal(each) for each in SIGNALS}
    code = stopped(monkeypatch, program, name, lambda **_: trio.run(work), "--json")
    printed = capsys.readouterr()
    assert code == (0 if program == "netstack" and name in NORMAL_END else 128 + number)
    assert f"{program}: stopped by {SIGNALS[number]}" in printed.err
    assert "Traceback" not in printed.err
    assert f"stopped by {SIGNALS[number]}" in json.loads(printed.out)["error"]
    assert {each: signal.getsignal(each) for each in SIGNALS} == before


@pytest.mark.parametrize(("result", "code"), [(0, 143), (None, 143), (1, 1)])
@pytest.mark.parametrize("program", MAINS)
def test_results_that_are_kept_do_not_hide_the_signal_nor_a_failure(
    program: str, result: int | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(**_: Any) -> int | None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            keep_results()
        return result

    assert stopped(monkeypatch, program, "run", work) == code
    assert stopped(monkeypatch, program, "run", lambda **_: result) == (result or 0), "a new command begins anew"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_a_command_receives_itself_has_its_name(number: signal.Signals) -> None:
    async def work() -> None:
        signal.raise_signal(number)
        await trio.sleep_forever()

    with signals_are_ctrl_c():
        assert trio.run(until_stopped, work)
        assert stopped_by() == SIGNALS[number]


@pytest.mark.parametrize("program", MAINS)
def test_the_help_says_the_exit_codes(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert MAINS[program][1](["--help"]) == 0
    displayed = " ".join(capsys.readouterr().out.split())
    assert all(text in displayed for text in ("Exit codes: 0 for success; 1", "130 after Ctrl-C", "143 after SIGTERM"))
