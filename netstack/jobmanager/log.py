"""What happened to a job, for people: a bounded list of sentences with their times.

Takes: sentences. Gives: the last of them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final, final

REMEMBERED: Final = 1_000


@final
@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happened.

    Attributes:
        at: seconds since 1970.
        what: a word to filter by: `job`, `slots`, `deploy`, `failure` (that something was decided about), `task` (that
            failed besides), `restart`, `checkpoint`, `taskmanager`, `speculation`, `blocklist`, `dataset`.
        text: a sentence.
    """

    at: float
    what: str
    text: str

    def document(self) -> dict[str, Any]:
        """As plain data."""
        return {"at": self.at, "what": self.what, "text": self.text}


@final
class JobLog:
    """The happenings of one job."""

    def __init__(self) -> None:
        self.added = 0
        """How many there were ever."""
        self._happenings: deque[Happening] = deque(maxlen=REMEMBERED)

    def add(self, at: float, what: str, text: str) -> None:
        """Something happened."""
        self.added += 1
        self._happenings.append(Happening(at, what, text))

    def all(self) -> list[Happening]:
        """The last of them, the oldest first."""
        return [*self._happenings]

    def since(self, added: int) -> list[Happening]:
        """Those that came after the first `added`, as far as they are remembered."""
        new = self.added - added
        return self.all()[-new:] if new > 0 else []
