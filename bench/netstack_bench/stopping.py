"""What was measured before Ctrl-C, SIGTERM or SIGHUP is kept (`netstack.cli.stopping`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import final

from netstack.cli.stopping import keep_results, stopped_by, unwrapped_interrupt


@final
class Stopped:
    """Whether a block was stopped: `by` is then that of `stopped_by`, else None."""

    by: str | None = None


@contextlib.contextmanager
def kept_at_interrupt(has_results: Callable[[], bool]) -> Iterator[Stopped]:
    """Ends the block at Ctrl-C, which is raised only if nothing has been measured."""
    stopped = Stopped()
    try:
        with unwrapped_interrupt():
            yield stopped
    except KeyboardInterrupt:
        if not has_results():
            raise
        keep_results()
        stopped.by = stopped_by()
