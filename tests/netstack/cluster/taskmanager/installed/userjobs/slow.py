"""A module whose import takes as long as a test wants."""

from __future__ import annotations

from taskmanagerworld import SLOW_IMPORT_BEGAN, SLOW_IMPORT_MAY_END

SLOW_IMPORT_BEGAN.set()
SLOW_IMPORT_MAY_END.wait(120)
