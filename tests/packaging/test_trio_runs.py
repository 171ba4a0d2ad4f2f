"""No async test runs for ever, in real time or in virtual time."""

from __future__ import annotations

import pytest
import trio
import trio_runs


def test_a_test_in_virtual_time_that_never_waits_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trio_runs, "REAL_S", 0)

    async def never_waits() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(trio.TooSlowError):
        trio_runs.run_virtual(never_waits)


def test_a_test_that_waits_for_nothing_fails_at_once_in_virtual_time() -> None:
    with pytest.raises(trio.TooSlowError):
        trio_runs.run_virtual(trio.sleep_forever)
