"""Bounds what the messages of one TaskManager hold in the JobManager until they are handled.

Takes: the sizes of its messages. Gives: charges, which are returned when a message has been handled.

Rules: whatever outlives its handling is bounded by the job instead: one report per task, one progress per job vertex,
`RESULTS_BYTES` of results per job. So the memory that a TaskManager costs does not depend on how much it sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from ...base.config import MIB
from ...base.errors import ErrorCode, RemoteProtocolError

MAX_REPORTS: Final = 1 << 16
"""Reports of one TaskManager that may wait until they are handled."""

MAX_REPORT_BYTES: Final = 64 * MIB

RESULTS_BYTES: Final = 64 * MIB
"""Memory for the results of one job."""


@final
class PeerBudget:
    """The budget of one TaskManager.

    Attributes:
        reports: reports that wait.
        bytes: their size on the wire.
    """

    __slots__ = ("_name", "bytes", "reports")

    def __init__(self, name: str) -> None:
        self._name = name
        self.reports = self.bytes = 0

    def charge(self, message_bytes: int) -> Charge:
        """Returns the charge of a message, which `take` applies once for each report that waits because of it."""
        return Charge(self, message_bytes)

    def add(self, reports: int, message_bytes: int) -> None:
        """Adds waiting reports, or removes them. Raises RemoteProtocolError if there are too many."""
        self.reports += reports
        self.bytes += message_bytes
        if reports > 0 and (self.reports > MAX_REPORTS or self.bytes > MAX_REPORT_BYTES):
            raise RemoteProtocolError(
                ErrorCode.UNEXPECTED_FRAME,
                f"{self._name} sends reports faster than they are handled: {self.reports} reports with {self.bytes}"
                f" bytes wait; the limits are {MAX_REPORTS} and {MAX_REPORT_BYTES}",
            )


@final
@dataclass(frozen=True, slots=True)
class Charge:
    """The size of one message, charged to its sender."""

    budget: PeerBudget
    message_bytes: int

    def take(self) -> None:
        """Charges one waiting report. Raises RemoteProtocolError if too many wait."""
        self.budget.add(1, self.message_bytes)

    def give_back(self) -> None:
        """Returns the charge of one report."""
        self.budget.add(-1, -self.message_bytes)
