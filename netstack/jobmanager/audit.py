"""Who changed what: a line for each submission, cancellation and savepoint, whether it came over a link or the page.

Takes: what was asked for, of which job, by whom. Gives: lines of the logger `netstack.audit`, at INFO.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ..shown import shown_text

if TYPE_CHECKING:
    from .jobs import JobRecord

LOGGER: Final = logging.getLogger("netstack.audit")


def audit(what: str, record: JobRecord, who: str) -> None:
    """Says that it was asked for; whether it succeeded the job's log says.

    Args:
        what: `submit`, `cancel`, `savepoint`, `savepoint and stop`.
        record: of the job.
        who: name and address, as far as they are known.
    """
    LOGGER.info("%s of job %s (%s) by %s", what, record.stored.job_id, shown_text(record.name), shown_text(who))
