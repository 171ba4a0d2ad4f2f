"""What is set for a scheduler, and what is in force."""

from __future__ import annotations

import pytest

from netstack.errors import ConfigError
from netstack.schedule.scheduler_settings import SchedulerSettings


@pytest.mark.parametrize("name", ["connections", "step_budget"])
def test_what_would_do_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0; give at least 1"):
        SchedulerSettings(**{name: 0})  # type: ignore[arg-type]
