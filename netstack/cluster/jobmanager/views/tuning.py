"""Finds a job's bottleneck, and proposes settings from its live measurements.

Takes: snapshots of the job, a second apart (`ClusterSnapshots.drawn`), with time shares of its subtasks and channels of
its edges; its definition, a job file. Gives: the bottleneck with its reason, measurements, proposals with their
reasons, and the definition with applied proposals.

The parallelism follows DS2 (Kalavri et al., "Three steps is all you need", OSDI 2018): a vertex needs its present
subtasks times the fraction of time that they are busy, times the growth of its sources without backpressure.

The bottleneck is, as in Flink's documentation ("Monitoring Back Pressure"), the first vertex behind a backpressured one
that is not backpressured itself. If its subtasks are busy, they are the cause: all of them, or one with more than its
share of the data. If they are idle although data waits, the path to them is the cause: the channels have no credit, or
the connection is at its limit.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, final

from ....base.config import NetworkConfig
from ....base.units import counted, format_count, format_duration

Reason = Literal["busy", "skew", "credit", "connection", "source", "none"]

PRESSED: Final = 100
"""A vertex that waits for buffers for this share of the time, in thousandths, is backpressured (Flink: LOW, 10 %)."""

BUSY: Final = 600
"""A subtask that is busy for more than this share of the time, in thousandths, causes backpressure."""

SKEWED: Final = 2.0
"""A subtask that is busy this many times longer than the mean of the others is skewed."""


@final
@dataclass(frozen=True, slots=True)
class Share:
    """The time shares of a vertex's subtasks, in thousandths.

    Attributes:
        busy: busy share by subtask, of those that reported.
        idle: mean idle share.
        backpressured: mean backpressured share.
    """

    busy: Mapping[int, int]
    idle: float
    backpressured: float

    @property
    def most_busy(self) -> int:
        """The busiest subtask."""
        return max(self.busy, key=lambda subtask: self.busy[subtask])


def share_of(vertex: Mapping[str, Any]) -> Share | None:
    """Returns the shares of a vertex; None if no subtask has reported."""
    known = [each for each in vertex["subtasks"] if each.get("busy") is not None]
    if not known:
        return None
    mean = {name: sum(each[name] for each in known) / len(known) for name in ("idle", "backpressured")}
    return Share({each["subtask"]: each["busy"] for each in known}, mean["idle"], mean["backpressured"])


def bottleneck_of(job: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any] | None:
    """Finds the bottleneck of a job.

    Args:
        job: `vertices` with `busy`, `idle` and `backpressured` of subtasks; `edges` with `channels`.
        columns: column names of a channel.

    Returns:
        `vertex` (its number; None: no bottleneck), `subtask` (if a single one is the cause), `reason` and `text`; None
        until a vertex has reported its shares.
    """
    vertices = job["vertices"]
    shares = {number: share for number, each in enumerate(vertices) if (share := share_of(each)) is not None}
    if not shares:
        return None
    pressed = {number: each.backpressured for number, each in shares.items() if each.backpressured >= PRESSED}
    behind = [
        edge
        for edge in job["edges"]
        if edge["producer"] in pressed and edge["consumer"] in shares and edge["consumer"] not in pressed
    ]
    if behind:
        edge = max(behind, key=lambda each: (pressed[each["producer"]], max(shares[each["consumer"]].busy.values())))
        return _held_back(vertices, edge, shares, columns)
    number = max(shares, key=lambda each: max(shares[each].busy.values()))
    name, most = vertices[number]["name"], max(shares[number].busy.values())
    if most < BUSY:
        return _finding(None, None, "none", f"none: no task is busy for more than {_percent(most)} of the time")
    if all(edge["consumer"] != number for edge in job["edges"]):
        text = f"{name} is busy for {_percent(most)} of the time without backpressure: the source is the limit"
        return _finding(number, None, "source", text)
    return _finding(
        number, None, "busy", f"{name} is busy for {_percent(most)} of the time, without backpressure so far"
    )


def _held_back(
    vertices: Sequence[Mapping[str, Any]],
    edge: Mapping[str, Any],
    shares: Mapping[int, Share],
    columns: Sequence[str],
) -> dict[str, Any]:
    number, producer = edge["consumer"], edge["producer"]
    name, before, mine = vertices[number]["name"], vertices[producer]["name"], shares[number]
    waits = f"{before} is backpressured for {_percent(shares[producer].backpressured)} of the time"
    most = mine.busy[mine.most_busy]
    if most >= BUSY:
        others = [busy for subtask, busy in mine.busy.items() if subtask != mine.most_busy]
        mean = sum(others) / len(others) if others else float(most)
        if others and most >= SKEWED * mean:
            text = (
                f"{name} ({mine.most_busy}) is busy for {_percent(most)} of the time, the others for {_percent(mean)}"
            )
            return _finding(
                number, mine.most_busy, "skew", f"{text}, so it gets more than its share of the data; {waits}"
            )
        return _finding(number, None, "busy", f"{name} is busy for {_percent(most)} of the time; {waits}")
    credit, backlog, queued = (columns.index(column) for column in ("credit", "backlog", "queued"))
    waiting = [row for row in edge.get("channels", ()) if row[backlog]]
    starved = [row for row in waiting if row[credit] == 0 and not row[queued]]
    idle = f"{name} is idle for {_percent(mine.idle)} of the time while {waits}"
    if starved and 2 * len(starved) >= len(waiting):
        text = f"{idle}: {len(starved)} channels have data and no credit, so the round trip is the limit"
        return _finding(number, None, "credit", text)
    if waiting:
        text = f"{idle}: {len(waiting)} channels have data and credit, so their connection is the limit"
        return _finding(number, None, "connection", text)
    return _finding(number, None, "busy", f"{name} is busy for {_percent(most)} of the time; {waits}")


def _finding(vertex: int | None, subtask: int | None, reason: Reason, text: str) -> dict[str, Any]:
    return {"vertex": vertex, "subtask": subtask, "reason": reason, "text": text}


def _percent(thousandths: float) -> str:
    return f"{thousandths / 10:.0f} %"


Document = Mapping[str, Any]

TARGET_BUSY: Final = 0.8
"""Target busy share of subtasks; the rest absorbs peaks."""

MOST_GROWTH: Final = 4.0
"""Maximum growth of a parallelism in one step: the next bottleneck is unknown until the first one is removed."""

QUIET: Final = 300
"""While no subtask is busy for more than this share, in thousandths, a shorter buffer timeout is affordable."""

PROMPT_TIMEOUT_S: Final = 0.001
LEAST_GAIN_S: Final = 0.005
"""Shorter buffer timeouts are not changed."""

IN_FLIGHT_S: Final = 2.0
"""Barriers behind this much in-flight data are slow; debloating limits it to `DEBLOAT_TARGET_S`."""

DEBLOAT_TARGET_S: Final = 1.0


@final
@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement of a job.

    Attributes:
        records_per_s: records per second that the consumers of its sources read.
        bottleneck: bottleneck of the last snapshot (`bottleneck_of`).
    """

    seconds: float
    records_per_s: float
    bottleneck: Mapping[str, Any] | None


@final
@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed change of one setting.

    Attributes:
        setting: name for people.
        path: path in the definition; for an operator `("operators", its name, the setting)`.
    """

    setting: str
    path: tuple[str, ...]
    before: int | float | None
    after: int | float | None
    why: str


def measured(looks: Sequence[tuple[float, Document]], columns: Sequence[str]) -> Measurement:
    """Measures a job between the first and the last snapshot.

    Args:
        looks: time in seconds and snapshot of the job; at least two.
        columns: column names of a channel.
    """
    (began_s, first), (ended_s, last) = looks[0], looks[-1]
    seconds = ended_s - began_s
    sources = _sources(last)
    readers = {edge["consumer"] for edge in last["edges"] if edge["producer"] in sources}
    name, counted = ("records_in", readers) if readers else ("records_out", set(sources))
    read = sum(_grown(first, last, number, name) for number in counted)
    return Measurement(seconds, read / seconds, bottleneck_of(last, columns))


def proposals(
    looks: Sequence[tuple[float, Document]],
    definition: Document,
    columns: Sequence[str],
    network: NetworkConfig,
    slots: int,
) -> list[Proposal]:
    """Proposes changes of settings.

    Args:
        looks: as in `measured`.
        definition: the job file.
        columns: column names of a channel.
        network: settings that apply where the job sets none.
        slots: slots that the job has or could get.
    """
    shares = _mean_shares([job for _, job in looks])
    if not shares:
        return []
    result = [*_parallelism(looks[-1][1], shares, slots)]
    bottleneck = bottleneck_of(looks[-1][1], columns)
    if bottleneck is not None and bottleneck["reason"] == "credit":
        result += _more_credit(definition, network, bottleneck["text"])
    result += _timeout(definition, shares)
    result += _debloating(looks, definition, columns, network)
    return result


def changed(definition: Document, wanted: Sequence[Proposal]) -> dict[str, Any]:
    """Returns the definition with these proposals applied."""
    document = copy.deepcopy(dict(definition))
    for each in wanted:
        if each.path[0] == "operators":
            operator = next(one for one in document["operators"] if one["name"] == each.path[1])
            operator[each.path[2]] = each.after
        elif len(each.path) == 1:
            document[each.path[0]] = each.after
        else:
            document[each.path[0]] = {**(document.get(each.path[0]) or {}), each.path[1]: each.after}
    return document


def _sources(job: Document) -> list[int]:
    fed = {edge["consumer"] for edge in job["edges"]}
    return [number for number in range(len(job["vertices"])) if number not in fed]


def _grown(first: Document, last: Document, vertex: int, name: str) -> int:
    """Returns the growth of a counter, at least 0 because a restart resets it."""
    return max(0, int(last["vertices"][vertex][name]) - int(first["vertices"][vertex][name]))


def _mean_shares(jobs: Sequence[Document]) -> dict[int, tuple[float, float, float]]:
    """Returns by vertex the mean and maximum busy share and the mean backpressured share, from 0 to 1."""
    result = {}
    for number in range(len(jobs[-1]["vertices"])):
        shares = [share for job in jobs if (share := share_of(job["vertices"][number])) is not None]
        if shares:
            busy = [statistics.fmean(share.busy.values()) for share in shares]
            most = [max(share.busy.values()) for share in shares]
            pressed = [share.backpressured for share in shares]
            mean, highest, waiting = (statistics.fmean(each) / 1000 for each in (busy, most, pressed))
            result[number] = mean, highest, waiting
    return result


def _parallelism(job: Document, shares: Mapping[int, tuple[float, float, float]], slots: int) -> Iterator[Proposal]:
    """Proposes more subtasks for vertices that limit their sources."""
    held: dict[int, float] = {number: shares.get(number, (0.0, 0.0, 0.0))[2] for number in _sources(job)}
    waiting = {number: share for number, (_, _, share) in shares.items() if share >= PRESSED / 1000}
    if not waiting:
        return
    growth = min(MOST_GROWTH, 1 / max(1e-3, 1 - max(held.values(), default=0.0)))
    for number, vertex in enumerate(job["vertices"]):
        busy = shares.get(number, (0.0, 0.0, 0.0))[0]
        now = int(vertex["parallelism"])
        needed = min(int(vertex["max_parallelism"]), math.ceil(now * busy * growth / TARGET_BUSY))
        wanted = min(needed, slots)
        if number in held or wanted <= now or busy < BUSY / 1000 / MOST_GROWTH:
            continue
        why = f"its subtasks are busy for {busy:.0%} of the time; its sources could send {growth:.1f} times as much"
        if wanted < needed:
            why += f"; it needs {needed}, but the cluster has only {counted(slots, 'slot')}"
        for operator in vertex["operators"]:
            yield Proposal(f"parallelism of {operator}", ("operators", operator, "parallelism"), now, wanted, why)


def _more_credit(definition: Document, network: NetworkConfig, why: str) -> Iterator[Proposal]:
    given = definition.get("network") or {}
    for name, times in (("exclusive_buffers_per_channel", 2), ("floating_buffers_per_gate", 4)):
        before = int(given.get(name, getattr(network, name)))
        yield Proposal(name, ("network", name), before, max(1, before * times), why)


def _timeout(definition: Document, shares: Mapping[int, tuple[float, float, float]]) -> Iterator[Proposal]:
    before = definition.get("buffer_timeout_s", 0.1)
    most = max(highest for _, highest, _ in shares.values())
    if before is None or before < LEAST_GAIN_S or most >= QUIET / 1000 or definition.get("is_batch"):
        return
    why = f"no task is busy for more than {most:.0%} of the time: records need not wait {format_duration(before)}"
    yield Proposal("buffer timeout", ("buffer_timeout_s",), before, PROMPT_TIMEOUT_S, why)


def _debloating(
    looks: Sequence[tuple[float, Document]], definition: Document, columns: Sequence[str], network: NetworkConfig
) -> Iterator[Proposal]:
    given = (definition.get("network") or {}).get("debloat_target_s", network.debloat_target_s)
    if given is not None or not definition.get("checkpoints"):
        return
    (began_s, first), (ended_s, last) = looks[0], looks[-1]
    queued, backlog, buffers = (columns.index(name) for name in ("queued", "backlog", "buffers"))
    for before, after in zip(first["edges"], last["edges"], strict=True):
        stand = sum(row[queued] + (row[backlog] or 0) for row in after.get("channels", ()))
        came = sum(row[buffers] for row in after.get("channels", ()))
        came -= sum(row[buffers] for row in before.get("channels", ()))
        if came <= 0:
            continue
        in_flight_s = stand * (ended_s - began_s) / came
        if in_flight_s >= IN_FLIGHT_S:
            edge = " to ".join(last["vertices"][after[end]]["name"] for end in ("producer", "consumer"))
            why = f"barriers wait behind {format_count(stand)} buffers from {edge}: {in_flight_s:.0f} s of data"
            yield Proposal("debloat target", ("network", "debloat_target_s"), None, DEBLOAT_TARGET_S, why)
            return
