"""Log lines that strangers can cause."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, strategies as st

from netstack.base.text.limited_log import LimitedLog


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def logger_with(lines: Lines) -> logging.Logger:
    logger = logging.Logger("one", logging.INFO)
    logger.addHandler(lines)
    return logger


@given(st.lists(st.floats(0, 5)), st.integers(1, 5), st.floats(0.1, 10))
def test_never_more_than_the_limit_and_every_line_is_accounted_for(
    pauses: list[float], burst: int, per_second: float
) -> None:
    lines, now = Lines(), 0.0
    log = LimitedLog(logger_with(lines), lambda: now, per_second=per_second, burst=burst)
    for pause in pauses:
        now += pause
        log.log(logging.WARNING, "refused", "refused")
    assert len(lines.lines) <= burst + now * per_second + 1e-6
    now += 1 + 1 / per_second
    assert log.log(logging.WARNING, "refused", "refused")
    reported = sum(1 if line == "refused" else 1 + int(line.split("(")[1].split()[0]) for line in lines.lines)
    assert reported == len(pauses) + 1


def test_kinds_do_not_hide_each_other() -> None:
    lines = Lines()
    log = LimitedLog(logger_with(lines), lambda: 0.0, burst=1)
    assert [log.log(logging.WARNING, kind, "x") for kind in ("a", "a", "b", "a", "b")] == [
        True,
        False,
        True,
        False,
        False,
    ]


def test_a_level_that_is_off_costs_no_account_and_percent_signs_are_text(caplog: pytest.LogCaptureFixture) -> None:
    lines = Lines()
    log = LimitedLog(logger_with(lines), lambda: 0.0, burst=1)
    assert not log.log(logging.DEBUG, "a", "x")
    assert log.log(logging.WARNING, "a", "100 %s")
    assert lines.lines == ["100 %s"]


def test_kinds_without_end_take_no_memory_without_end() -> None:
    log = LimitedLog(logger_with(Lines()), lambda: 0.0)
    for number in range(1000):
        log.log(logging.WARNING, str(number), "x")
    assert len(log._kinds) <= 64
