"""Laws of every option of `netstack` and `netstack-bench`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pytest

from netstack.cli import cli as netstack
from netstack.cli.values import DURATION, DURATIONS, LENGTH, LENGTHS, SECONDS, Several
from netstack_bench.cli import cli as bench


def _options(name: str, command: click.Command) -> Iterator[tuple[str, click.Option]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            assert inner is not None
            yield from _options(f"{name} {each}", inner)
    for option in command.params:
        if isinstance(option, click.Option):
            yield f"{name} {option.opts[0]}", option


OPTIONS = dict([*_options("netstack", netstack), *_options("netstack-bench", bench)])
TIMES = [name for name, option in OPTIONS.items() if option.type in (DURATION, DURATIONS, LENGTH, LENGTHS)]


@pytest.mark.parametrize("name", TIMES)
def test_a_duration_needs_a_unit(name: str) -> None:
    option = OPTIONS[name]
    for text in ("5", "2.5") if option.type in (DURATION, LENGTH) else ("5", "0,1ms,10"):
        with pytest.raises(click.BadParameter) as refused:
            option.type.convert(text, option, None)
        number = text.rpartition(",")[2]
        assert f"{number}ms or {number}s" in str(refused.value)
    assert option.type.convert("0", option, None) in (0.0, (0.0,))


def test_a_flag_whose_name_says_seconds_takes_a_number() -> None:
    named = {name for name, option in OPTIONS.items() if name.endswith("seconds")}
    assert named == {name for name, option in OPTIONS.items() if option.type is SECONDS}
    assert len(named) > 10
    assert {OPTIONS[name].type.convert("5", None, None) for name in named} == {5.0}
    assert {OPTIONS[name].type.convert("50ms", None, None) for name in named} == {0.05}


ONE_VALUE_EACH = {"-p", "--only", "--release", "--checkpoint-root"}
"""Values that may contain a comma."""


def given(option: click.Option, *words: str) -> Any:
    """The value of an option that was given these words."""
    seen: dict[str, Any] = {}
    command = click.Command("x", params=[option], callback=lambda **values: seen.update(values))
    command.main([*words], standalone_mode=False)
    (value,) = seen.values()
    return value


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.multiple])
def test_a_flag_of_several_values_takes_them_with_commas_and_repeated(name: str) -> None:
    option = OPTIONS[name]
    flag = option.opts[0]
    if flag in ONE_VALUE_EACH:
        return
    assert isinstance(option.type, Several), "`several` makes it"
    texts = next(
        each
        for each in (option.type._kind.choices if _is_choice(option.type) else (), ("1", "2"), ("p99>1ms", "p99>2ms"))
        if each and _is_valid(option, each[0])
    )
    first, last = texts[0], texts[-1]
    actual = given(option, flag, f"{first},{last}")
    assert len(actual) == 2
    assert actual == given(option, flag, first, flag, last) == given(option, f"{flag}={first}, {last}")
    assert given(option) in ((), None) or option.default is not None


def _is_choice(kind: Any) -> bool:
    return isinstance(kind, Several) and isinstance(kind._kind, click.Choice)


def _is_valid(option: click.Option, text: str) -> bool:
    try:
        option.type.convert(text, option, None)
    except click.BadParameter:
        return False
    return True
