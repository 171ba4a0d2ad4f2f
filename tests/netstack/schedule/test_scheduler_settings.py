"""What is set for a scheduler, and what is in force."""

from __future__ import annotations

import pytest

from netstack.base.errors import ConfigError
from netstack.schedule.scheduler_settings import SchedulerSettings


def test_what_would_do_nothing() -> None:
    with pytest.raises(ConfigError, match="step_budget=0; give at least 1"):
        SchedulerSettings(step_budget=0)
