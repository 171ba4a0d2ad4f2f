"""A history checker in the manner of Jepsen for keyed exactly-once jobs.

Takes: the history of a job: events that its sources and sinks recorded, per attempt. Gives: anomalies, each with the
few events that show it (`Anomaly.witness`).

The checker trusts only the operators, not the JobManager's counts or the job's result alone. Each snapshot has a token
that is part of the state, so a restore shows its snapshot. This gives the lineage of each sink: the events of its last
attempt, before them the events of the attempt whose snapshot it restored, up to that snapshot, and so on.

Laws:
- lost, repeated: in the lineages of all sinks together every record is exactly once.
- committed: every record is in exactly one committable that a sink committed.
- state too old: a restored operator gets its snapshot of the newest checkpoint whose completion any operator saw.
- overtaken: in a complete checkpoint a sink has no record that its sources sent after the barrier; and every record
  that they sent before it, if the checkpoint is aligned (else the rest is in the channel state).
- stale: an attempt of a sink reads from one attempt of each source; with unaligned checkpoints first in-flight records
  of older attempts, but never again afterwards.
- disorder: in each lineage the records of a source are in the order in which it created them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

BEGUN: Final = "begun"
SENT: Final = "sent"
APPLIED: Final = "applied"
COMMITTED: Final = "committed"
SNAPSHOT: Final = "snapshot"
RESTORED: Final = "restored"
COMPLETE: Final = "complete"
FINISHED: Final = "finished"

SOURCE: Final = "source"
SINK: Final = "sink"

_SHOWN_AT_MOST: Final = 5


@final
@dataclass(frozen=True, slots=True)
class Event:
    """One event of an operator.

    Attributes:
        at_s: time by a common clock.
        what: `BEGUN`, `SENT`, `APPLIED` or `COMMITTED` (a record), `SNAPSHOT`, `RESTORED` (a token), `COMPLETE`
            (a checkpoint), `FINISHED`.
        operator: `SOURCE` or `SINK`.
        subtask: index of the subtask; for a source also its split.
        life: unique per attempt of a subtask, in any process.
        number: number of a record in its split, id of a checkpoint, or sent records at a source's snapshot.
        token: token of a snapshot or committable.
        of_life: life of the source that created a record.
    """

    at_s: float
    what: str
    operator: str
    subtask: int
    life: str
    split: int = -1
    number: int = -1
    token: str = ""
    of_life: str = ""

    def __str__(self) -> str:
        who = f"{self.at_s:9.4f} {self.operator}-{self.subtask} ({self.life}) {self.what}"
        if self.what in (SENT, APPLIED):
            return f"{who} record {self.number} of split {self.split}" + (self.of_life and f" (made by {self.of_life})")
        if self.what == COMPLETE:
            return f"{who} checkpoint {self.number}"
        at = f" at {self.number}" if self.number >= 0 else ""
        return f"{who}{self.token and ' ' + self.token}{at}"


@final
@dataclass(frozen=True, slots=True)
class Anomaly:
    """A violated law.

    Attributes:
        kind: `lost`, `repeated`, `committed`, `state too old`, `overtaken`, `stale`, `disorder` or `unfinished`.
        witness: the events that show it, in order.
    """

    kind: str
    text: str
    witness: tuple[Event, ...]

    def __str__(self) -> str:
        return "\n".join((f"{self.kind}: {self.text}", *(f"  {event}" for event in self.witness)))


@final
@dataclass(slots=True)
class _Life:
    """One attempt."""

    begun: Event
    events: list[Event] = field(default_factory=list)

    def restored(self) -> Event | None:
        return next((event for event in self.events if event.what == RESTORED), None)

    def until(self, token: str) -> list[Event]:
        """Returns the events before a snapshot; all events without one."""
        chosen = []
        for event in self.events:
            if token and event.what == SNAPSHOT and event.token == token:
                break
            chosen.append(event)
        return chosen


def check(
    history: Iterable[Event],
    records: Mapping[int, int],
    final: Mapping[int, str],
    *,
    aligned: bool,
    settled_s: float = 0.0,
) -> list[Anomaly]:
    """Checks a history.

    Args:
        history: history of a finished job; ordered within each life.
        records: records of each split.
        final: the life whose result counts, for each subtask of the sink.
        aligned: whether no checkpoint has in-flight data.
        settled_s: an operator that starts within this time after a checkpoint may have been deployed before it.

    Returns:
        The first few anomalies of each kind.
    """
    return [*_Checker(history, records, final, aligned, settled_s).anomalies()]


@final
class _Checker:
    def __init__(
        self,
        history: Iterable[Event],
        records: Mapping[int, int],
        final: Mapping[int, str],
        aligned: bool,
        settled_s: float,
    ) -> None:
        self._records = records
        self._final = final
        self._aligned = aligned
        self._settled_s = settled_s
        self._lives: dict[str, _Life] = {}
        self._taken: dict[str, tuple[_Life, Event]] = {}  # token -> the life that took it
        self._completed: dict[int, Event] = {}  # checkpoint -> the first life that saw its completion
        for event in history:
            if event.what == BEGUN:
                self._lives[event.life] = _Life(event)
                continue
            life = self._lives[event.life]
            life.events.append(event)
            if event.what == SNAPSHOT:
                self._taken[event.token] = life, event
            elif event.what == COMPLETE:
                first = self._completed.get(event.number)
                if first is None or event.at_s < first.at_s:
                    self._completed[event.number] = event

    def anomalies(self) -> Iterator[Anomaly]:
        for group in (self._stale(), self._too_old(), self._overtaken(), self._effects(), self._commits()):
            kinds: dict[str, int] = defaultdict(int)
            for anomaly in group:
                kinds[anomaly.kind] += 1
                if kinds[anomaly.kind] <= _SHOWN_AT_MOST:
                    yield anomaly

    def _of(self, operator: str) -> Iterator[_Life]:
        return (life for life in self._lives.values() if life.begun.operator == operator)

    def _stale(self) -> Iterator[Anomaly]:
        for life in self._of(SINK):
            last: dict[int, Event] = {}
            makers: set[str] = set()
            for event in life.events:
                if event.what == APPLIED:
                    other = last.get(event.split, event)
                    last[event.split] = event
                    is_known = event.of_life in makers
                    makers.add(event.of_life)
                    if other.of_life != event.of_life and (self._aligned or is_known):
                        yield Anomaly(
                            "stale",
                            f"sink-{life.begun.subtask} read split {event.split} from two attempts of its source",
                            (life.begun, other, event),
                        )
                        break

    def _checkpoints_of(self, life: _Life) -> Iterator[tuple[int, Event, Event]]:
        """Yields (checkpoint, its snapshot, life) where they are certain.

        Operators do not know the checkpoint of a snapshot. Only one is pending at a time, so a single snapshot since
        the last completion belongs to the next completion. Completions reach some operators late: a snapshot that was
        taken after another operator saw the completion belongs to a later checkpoint.
        """
        taken: list[Event] = []
        for event in life.events:
            if event.what == SNAPSHOT:
                taken.append(event)
            elif event.what == COMPLETE:
                if len(taken) == 1 and taken[0].at_s < self._completed[event.number].at_s:
                    yield event.number, taken[0], event
                taken = []

    def _too_old(self) -> Iterator[Anomaly]:
        snapshots: dict[tuple[str, int], dict[int, Event]] = defaultdict(dict)
        for life in self._lives.values():
            for number, snapshot, _ in self._checkpoints_of(life):
                snapshots[life.begun.operator, life.begun.subtask][number] = snapshot
        for life in self._lives.values():
            restored = life.restored()
            known = snapshots[life.begun.operator, life.begun.subtask]
            reported = [
                number
                for number, event in self._completed.items()
                if event.at_s + self._settled_s < life.begun.at_s and number in known
            ]
            if not reported:
                continue
            newest = max(reported)
            snapshot = known[newest]
            taken = None if restored is None else self._taken.get(restored.token)
            if taken is None or taken[1].at_s < snapshot.at_s:
                yield Anomaly(
                    "state too old",
                    f"{life.begun.operator}-{life.begun.subtask} continues from"
                    f" {'nothing' if restored is None else restored.token}, and checkpoint {newest} was complete",
                    tuple(filter(None, (snapshot, self._completed[newest], life.begun, restored))),
                )

    def _overtaken(self) -> Iterator[Anomaly]:
        cuts: dict[int, dict[int, tuple[Event, str]]] = defaultdict(dict)
        for life in self._of(SOURCE):
            for number, snapshot, _ in self._checkpoints_of(life):
                cuts[number][life.begun.subtask] = snapshot, life.begun.life
        for life in self._of(SINK):
            for number, snapshot, _ in self._checkpoints_of(life):
                yield from self._overtaken_in(life, number, snapshot, cuts.get(number, {}))

    def _overtaken_in(
        self, life: _Life, checkpoint: int, snapshot: Event, cut: Mapping[int, tuple[Event, str]]
    ) -> Iterator[Anomaly]:
        is_before = True
        for event in life.events:
            if event is snapshot:
                is_before = False
            if event.what != APPLIED or event.split not in cut:
                continue
            source, maker = cut[event.split]
            if event.of_life != maker:
                continue
            is_sent_before = event.number < source.number
            if is_before and not is_sent_before:
                text = f"was sent after the barrier of checkpoint {checkpoint} but is in the snapshot"
            elif self._aligned and not is_before and is_sent_before:
                text = f"was sent before the barrier of checkpoint {checkpoint} but is not in the snapshot"
            else:
                continue
            witness = (source, event, snapshot) if is_before else (source, snapshot, event)
            yield Anomaly("overtaken", f"record {event.number} of split {event.split} {text}", witness)
            return

    def _effects(self) -> Iterator[Anomaly]:
        applied: dict[tuple[int, int], list[Event]] = defaultdict(list)
        for subtask, name in self._final.items():
            life = self._lives[name]
            if not any(event.what == FINISHED for event in life.events):
                yield Anomaly("unfinished", f"{name} of sink-{subtask} counts but has not finished", (life.begun,))
                continue
            numbers: dict[int, Event] = {}
            for event in self._lineage(life):
                applied[event.split, event.number].append(event)
                before = numbers.get(event.split)
                if before is not None and before.number > event.number:
                    yield Anomaly("disorder", f"record {event.number} came after {before.number}", (before, event))
                numbers[event.split] = event
        for split, count in self._records.items():
            for number in range(count):
                uses = applied.get((split, number), [])
                if len(uses) != 1:
                    yield Anomaly(
                        "repeated" if uses else "lost",
                        f"record {number} of split {split} is in the result {len(uses)} times",
                        self._about(split, number),
                    )

    def _commits(self) -> Iterator[Anomaly]:
        tokens: dict[tuple[int, int], dict[str, Event]] = defaultdict(dict)
        for life in self._of(SINK):
            for event in life.events:
                if event.what == COMMITTED:
                    tokens[event.split, event.number].setdefault(event.token, event)
        for split, count in self._records.items():
            for number in range(count):
                commits = tokens.get((split, number), {})
                if len(commits) != 1:
                    text = f"record {number} of split {split} was committed {len(commits)} times"
                    yield Anomaly("committed", text, (*commits.values(), *self._about(split, number)))

    def _lineage(self, life: _Life) -> list[Event]:
        """Returns the lineage of an attempt, in order."""
        parts = [life.until("")]
        restored = life.restored()
        while restored is not None and restored.token:
            life = self._taken[restored.token][0]
            parts.append(life.until(restored.token))
            restored = life.restored()
        return [event for part in reversed(parts) for event in part if event.what == APPLIED]

    def _about(self, split: int, number: int) -> tuple[Event, ...]:
        """Returns the events of a record, and the restores between them."""
        lives = {
            event.life: life
            for life in self._lives.values()
            for event in life.events
            if event.what in (SENT, APPLIED) and (event.split, event.number) == (split, number)
        }
        related = []
        used = {each.token for other in self._lives.values() if (each := other.restored()) is not None}
        for life in lives.values():
            related.append(life.begun)
            for event in life.events:
                is_it = event.what in (SENT, APPLIED) and (event.split, event.number) == (split, number)
                if is_it or event.what == RESTORED or (event.what == SNAPSHOT and event.token in used):
                    related.append(event)
        return tuple(sorted(related, key=lambda event: event.at_s))


# ---------------------------------------------------------------------------------------------------------------- files


def write_event(file: Any, event: Event) -> None:
    """Returns an event as a line of a history file."""
    values = [getattr(event, name) for name in Event.__dataclass_fields__]
    file.write(json.dumps(values) + "\n")
    file.flush()


def read_history(folder: Path) -> list[Event]:
    """Reads the events of all files of a folder; the last line of a killed writer may be torn."""
    events = []
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            try:
                events.append(Event(*json.loads(line)))
            except ValueError:
                continue
    return events
