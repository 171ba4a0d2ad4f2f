"""What a job asks for after a failure, as data; `failover.restart` makes the strategy of it.

Takes: values. Gives: frozen settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from ...errors import ConfigError

KINDS: Final = ("none", "fixed_delay", "exponential", "failure_rate")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RestartSettings:
    """How a job restarts.

    Attributes:
        kind: `none`, `fixed_delay`, `exponential` or `failure_rate`.
        delay_s: before each restart; of `exponential` the first delay.
        attempts: so many restarts, of `exponential` without a quiet time between them; None is without end. Not of
            `failure_rate`.
        max_delay_s: of `exponential` the longest.
        multiplier: of `exponential`, from one delay to the next.
        quiet_s: of `exponential`: no failure for so long, and the next delay is the first again.
        max_failures: of `failure_rate`: so many are tolerated in any interval.
        interval_s: of `failure_rate`: how long that is.

    Raises:
        ConfigError: another kind.
    """

    kind: str = "exponential"
    delay_s: float = 1.0
    attempts: int | None = None
    max_delay_s: float = 60.0
    multiplier: float = 1.5
    quiet_s: float = 3600.0
    max_failures: int = 1
    interval_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuses another kind; numbers are checked by the strategy."""
        if self.kind not in KINDS:
            raise ConfigError(f"restart kind {self.kind!r}; give {', '.join(KINDS)}")
