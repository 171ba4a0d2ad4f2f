"""What is set for a scheduler, and what is in force."""

from __future__ import annotations

import pytest

from netstack.errors import ConfigError
from netstack.schedule.scheduler_settings import SchedulerSettings
from netstack.schedule.slots.slots import LoadBalanceMode


@pytest.mark.parametrize(
    ("mode", "evenly", "expected"),
    [
        (None, True, LoadBalanceMode.SLOTS),
        (None, False, LoadBalanceMode.NONE),
        (LoadBalanceMode.NONE, True, LoadBalanceMode.NONE),
        (LoadBalanceMode.TASKS, True, LoadBalanceMode.TASKS),
    ],
)
def test_an_explicit_mode_wins_over_the_older_switch(
    mode: LoadBalanceMode | None, evenly: bool, expected: LoadBalanceMode
) -> None:
    assert SchedulerSettings(mode=mode, evenly_spread_out_slots=evenly).load_balance is expected


@pytest.mark.parametrize("name", ["connections", "step_budget"])
def test_what_would_do_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0; give at least 1"):
        SchedulerSettings(**{name: 0})  # type: ignore[arg-type]
