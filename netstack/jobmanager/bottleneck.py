"""Which vertex holds a job back, and why.

Takes: a job of a snapshot (`ClusterWatch.drawn`): the shares of time of its subtasks, and the channels of its edges.
Gives: one finding, plain data.

The rule is that of Flink's documentation ("Monitoring Back Pressure"): the bottleneck is the first vertex behind a
back-pressured one that is not back-pressured itself. If its subtasks are busy they are the reason: all of them, or one
that gets more than its share. If they wait for input although there is some, the way to them is the reason: the
channels have no credit, or their connection does not carry more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, final

Reason = Literal["busy", "skew", "credit", "connection", "source", "none"]

PRESSED: Final = 100
"""Who waits for buffers for this share of the time, in thousandths, is back-pressured (Flink: LOW from 10 %)."""

BUSY: Final = 600
"""A subtask that works for more than this share of the time, in thousandths, holds back whoever waits for it."""

SKEWED: Final = 2.0
"""A subtask that is busy so many times as long as the mean of the others has more than its share."""


@final
@dataclass(frozen=True, slots=True)
class Share:
    """What the subtasks of a vertex do, as parts of a second, in thousandths.

    Attributes:
        busy: by subtask, of those that told.
        idle: the mean of them.
        backpressured: likewise.
    """

    busy: Mapping[int, int]
    idle: float
    backpressured: float

    @property
    def most_busy(self) -> int:
        """The busiest subtask."""
        return max(self.busy, key=lambda subtask: self.busy[subtask])


def share_of(vertex: Mapping[str, Any]) -> Share | None:
    """The shares of a vertex; None if no subtask has told any."""
    known = [each for each in vertex["subtasks"] if each.get("busy") is not None]
    if not known:
        return None
    mean = {name: sum(each[name] for each in known) / len(known) for name in ("idle", "backpressured")}
    return Share({each["subtask"]: each["busy"] for each in known}, mean["idle"], mean["backpressured"])


def bottleneck_of(job: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any] | None:
    """What holds the job back.

    Args:
        job: `vertices`, with `busy`, `idle` and `backpressured` of subtasks; `edges`, with `channels`.
        columns: of a channel.

    Returns:
        `vertex` (its number, None if nothing holds the job back), `subtask` (if it is that one alone), `reason` and
        `text`; None as long as no vertex has told its shares.
    """
    vertices = job["vertices"]
    shares = {number: found for number, each in enumerate(vertices) if (found := share_of(each)) is not None}
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
        return _finding(None, None, "none", f"nothing: no task is busy for more than {_percent(most)} of its time")
    if all(edge["consumer"] != number for edge in job["edges"]):
        text = f"{name} is busy for {_percent(most)} of its time, and waits for nobody: the source is the limit"
        return _finding(number, None, "source", text)
    return _finding(number, None, "busy", f"{name} is busy for {_percent(most)} of its time; nobody waits for it yet")


def _held_back(
    vertices: Sequence[Mapping[str, Any]],
    edge: Mapping[str, Any],
    shares: Mapping[int, Share],
    columns: Sequence[str],
) -> dict[str, Any]:
    number, producer = edge["consumer"], edge["producer"]
    name, before, mine = vertices[number]["name"], vertices[producer]["name"], shares[number]
    waits = f"{before} waits for buffers for {_percent(shares[producer].backpressured)} of its time"
    most = mine.busy[mine.most_busy]
    if most >= BUSY:
        others = [busy for subtask, busy in mine.busy.items() if subtask != mine.most_busy]
        mean = sum(others) / len(others) if others else float(most)
        if others and most >= SKEWED * mean:
            text = (
                f"{name} ({mine.most_busy}) is busy for {_percent(most)} of its time, the others for {_percent(mean)}"
            )
            return _finding(number, mine.most_busy, "skew", f"{text}: it gets more than its share; {waits}")
        return _finding(number, None, "busy", f"{name} is busy for {_percent(most)} of its time; {waits}")
    credit, backlog, queued = (columns.index(column) for column in ("credit", "backlog", "queued"))
    waiting = [row for row in edge.get("channels", ()) if row[backlog]]
    starved = [row for row in waiting if row[credit] == 0 and not row[queued]]
    idle = f"{name} is idle for {_percent(mine.idle)} of its time, and {waits}"
    if starved and 2 * len(starved) >= len(waiting):
        text = f"{idle}: {len(starved)} channels have data and no credit, so the round trip is the limit"
        return _finding(number, None, "credit", text)
    if waiting:
        text = f"{idle}: {len(waiting)} channels have data and credit, so their connection is the limit"
        return _finding(number, None, "connection", text)
    return _finding(number, None, "busy", f"{name} is busy for {_percent(most)} of its time; {waits}")


def _finding(vertex: int | None, subtask: int | None, reason: Reason, text: str) -> dict[str, Any]:
    return {"vertex": vertex, "subtask": subtask, "reason": reason, "text": text}


def _percent(thousandths: float) -> str:
    return f"{thousandths / 10:.0f} %"
