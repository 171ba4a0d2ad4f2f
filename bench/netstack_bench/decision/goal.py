"""What is wanted of a buffer timeout, and the answer: which measured timeout reaches it, with what confidence.

Rules: a timeout reaches a goal, misses it, or leaves it open, as its whole range says (`Candidate.judged`). The answer
is the first that reaches it, in the order of preference: the shortest, or for a bound of the p99 the one with the most
throughput (within 3 % the lowest latency). Where a preferable one is open, the answer has two candidates.

What a timeout keeps of the throughput is estimated by least squares over blocked runs: the logarithm of a rate is the
sum of its pass over the workload (the machine at that time), of its timeout in this workload, and of noise. A pass in
which only some timeouts were measured counts as far as it has two of them. The noise is estimated from all timeouts and
workloads together, so a few passes suffice.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, final

import numpy as np

from netstack.base.units import counted, format_duration, format_latency, three_digits

from ..interval import Interval, t_quantile

LOOKS: Final = (2, 3, 4, 6, 8, 12, 16, 24)
"""Numbers of passes after which the experiment looks at its intervals; it ends after the last."""

AT_A_LOOK: Final = 0.99
"""Confidence of an interval at one look. Over all eight looks together it is 95 % (Pocock's boundary, 0.9884)."""


@dataclass(frozen=True, slots=True)
class Run:
    """One throughput run: its timeout, its pass over the workload, and its payload in MB/s."""

    timeout_s: float | None
    passed: Hashable
    mb_per_s: float


@dataclass(frozen=True, slots=True)
class Share:
    """The estimated share of the throughput at the reference; `range` is None while the noise is unknown."""

    middle: float
    range: Interval | None

    @property
    def text(self) -> str:
        """`93 % (88 to 97)`."""
        if self.range is None or self.range.high - self.range.low < 0.005:
            return f"{self.middle:.0%}".replace("%", " %")
        return f"{100 * self.middle:.0f} % ({100 * self.range.low:.0f} to {100 * self.range.high:.0f})"


@final
class Effects:
    """The estimates of several workloads, each with its runs."""

    def __init__(self, workloads: Mapping[Hashable, Sequence[Run]], reference_s: float | None) -> None:
        self._reference_s = reference_s
        self._fits = {name: _Fit(runs, reference_s) for name, runs in workloads.items()}
        self._degrees = sum(fit.degrees for fit in self._fits.values())
        squares = sum(fit.squares for fit in self._fits.values())
        self._variance = squares / self._degrees if self._degrees else 0.0

    def timeouts(self, name: Hashable) -> Collection[float | None]:
        """The timeouts of a workload that can be compared with the reference."""
        return self._fits[name].effects.keys()

    def share(self, timeout_s: float | None, names: Sequence[Hashable], judgements: int = 1) -> Share | None:
        """The geometric mean over these workloads; None where one of them cannot be compared.

        `judgements` are made at once: the ranges of all hold together (Bonferroni).
        """
        if timeout_s == self._reference_s:
            return Share(1.0, Interval(1.0, 1.0, 1.0))
        effects = [self._fits[name].effects.get(timeout_s) for name in names]
        known = [each for each in effects if each is not None]
        if not known or len(known) < len(effects):
            return None
        middle = sum(effect for effect, _ in known) / len(known)
        if not self._degrees:
            return Share(math.exp(middle), None)
        error = math.sqrt(self._variance * sum(factor for _, factor in known)) / len(known)
        half = t_quantile(1 - (1 - AT_A_LOOK) / judgements, self._degrees) * error
        return Share(math.exp(middle), Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half)))


class _Fit:
    """One workload: the effect of each timeout, and the factor of the noise in its variance."""

    def __init__(self, runs: Sequence[Run], reference_s: float | None) -> None:
        joined = _joined(runs, reference_s)
        passes = {each: place for place, each in enumerate(dict.fromkeys(run.passed for run in joined))}
        others = dict.fromkeys(run.timeout_s for run in joined if run.timeout_s != reference_s)
        columns = {timeout_s: len(passes) + place for place, timeout_s in enumerate(others)}
        design = np.zeros((len(joined), len(passes) + len(columns)))
        figures = np.array([math.log(run.mb_per_s) for run in joined])
        for place, run in enumerate(joined):
            design[place, passes[run.passed]] = 1.0
            if run.timeout_s in columns:
                design[place, columns[run.timeout_s]] = 1.0
        self.effects: dict[float | None, tuple[float, float]] = {}
        self.degrees, self.squares = 0, 0.0
        if not joined:
            return
        inverse = np.linalg.inv(design.T @ design)
        solution = inverse @ design.T @ figures
        self.squares = float(np.sum((figures - design @ solution) ** 2))
        self.degrees = len(joined) - design.shape[1]
        self.effects = {t: (float(solution[place]), float(inverse[place, place])) for t, place in columns.items()}


def _joined(runs: Sequence[Run], reference_s: float | None) -> list[Run]:
    """The runs that share a pass with the reference, or with a timeout that does, and so on."""
    timeouts: set[float | None] = {reference_s}
    passes: set[Hashable] = set()
    size = -1
    while size != len(timeouts) + len(passes):
        size = len(timeouts) + len(passes)
        passes |= {run.passed for run in runs if run.timeout_s in timeouts}
        timeouts |= {run.timeout_s for run in runs if run.passed in passes}
    return [run for run in runs if run.passed in passes and run.mb_per_s > 0]


DEFAULT_KEPT: Final = 0.9
"""The part of the throughput that the answer without a goal keeps."""

MARGIN: Final = 0.05
"""Of the throughput: so much the truth may lie on the other side of `kept` with 95 % confidence."""

Judgement = Literal["meets", "misses", "open"]


@dataclass(frozen=True, slots=True)
class Goal:
    """An upper bound of the p99, a lower bound of the payload (10^6 bytes a second), or neither.

    Without them it is the shortest timeout with the part `kept` of the throughput at the reference timeout.
    """

    p99_us: float | None = None
    mb_per_s: float | None = None
    kept: float = DEFAULT_KEPT

    @classmethod
    def of(cls, p99_s: float | None, mb_per_s: float | None) -> Goal:
        """The goal with a bound of the p99 in seconds, or of the payload."""
        return cls(p99_us=None if p99_s is None else p99_s * 1e6, mb_per_s=mb_per_s)

    @property
    def is_relative(self) -> bool:
        """Whether it is a part of the throughput at the reference."""
        return self.p99_us is None and self.mb_per_s is None

    def __str__(self) -> str:
        if self.p99_us is not None:
            return f"p99 up to {format_latency(self.p99_us)}"
        if self.mb_per_s is not None:
            return f"{three_digits(self.mb_per_s)} MB/s"
        return f"{self.kept:.0%} of the throughput".replace("%", " %")


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """The figures at one buffer timeout, of one workload or of several together.

    `shares` are those of each workload by its name, their ranges all at once. `other` is the one workload that differs,
    with its share and the timeout to set there: `share` leaves it out.
    """

    timeout_s: float | None
    share: Share
    passes: int  # in which it was measured, in every workload
    shares: tuple[tuple[str, Share], ...] = ()
    other: tuple[str, Share, str] | None = None
    mb_per_s: Sequence[float] = ()  # of each throughput run; of several workloads none
    p99_us: Sequence[float] = ()  # of each latency run, of the workload with the longest
    bottleneck: str = ""

    @property
    def label(self) -> str:
        """The timeout as text."""
        return format_duration(self.timeout_s, space=" ")

    @property
    def rate(self) -> Interval | None:
        """The range of the payload rate."""
        return Interval.of(self.mb_per_s, AT_A_LOOK)

    @property
    def p99(self) -> Interval | None:
        """The range of the p99."""
        return Interval.of(self.p99_us, AT_A_LOOK)

    @property
    def rate_middle(self) -> float:
        """The median payload a second; 0 where it is that of several workloads."""
        return statistics.median(self.mb_per_s) if self.mb_per_s else 0.0

    @property
    def p99_middle(self) -> float:
        """The median p99 in microseconds; the timeout where no latency was measured."""
        if self.p99_us:
            return statistics.median(self.p99_us)
        return math.inf if self.timeout_s is None else self.timeout_s * 1e6

    @property
    def rate_text(self) -> str:
        """The payload rate, with its range where it is known."""
        return megabytes(self.rate_middle) if self.rate is None else self.rate.text(megabytes)

    @property
    def p99_text(self) -> str:
        """The p99, with its range where it is known."""
        return format_latency(self.p99_middle) if self.p99 is None else self.p99.text(format_latency)

    def judged(self, goal: Goal) -> Judgement:
        """Compares the figures with the goal."""
        if goal.p99_us is not None:
            p99 = self.p99
            return "open" if p99 is None else _judged(p99.high <= goal.p99_us, p99.low > goal.p99_us)
        if goal.mb_per_s is not None:
            rate = self.rate
            return "open" if rate is None else _judged(rate.low >= goal.mb_per_s, rate.high < goal.mb_per_s)
        share = self.share
        below = sum(each.range is not None and each.range.high < goal.kept for _, each in self.shares)
        if below > (self.other is not None):
            return "misses"
        if share.range is None:
            return "open"
        return _judged(
            share.middle >= goal.kept and share.range.low >= goal.kept - MARGIN,
            share.middle < goal.kept and share.range.high <= goal.kept + MARGIN,
        )

    def leans(self, goal: Goal) -> bool:
        """Compares the estimate with the goal, for figures whose range leaves it open."""
        if goal.p99_us is not None:
            return self.p99_middle <= goal.p99_us
        return self.share.middle >= goal.kept if goal.mb_per_s is None else self.rate_middle >= goal.mb_per_s

    def figure(self, goal: Goal, reference: str) -> str:
        """What is compared with the goal, as the rest of a sentence about the timeout."""
        if goal.p99_us is not None:
            return f"has a p99 of {self.p99_text}"
        if goal.mb_per_s is not None:
            return f"carries {self.rate_text}"
        return f"keeps {self.share.text} of the throughput at {reference}"

    def passes_needed(self, goal: Goal) -> int | None:
        """About how many more passes bring its range to one side of the goal; None while the noise is unknown."""
        if goal.p99_us is not None:
            known, away = self.p99, abs(math.log(goal.p99_us / self.p99_middle))
        elif goal.mb_per_s is not None:
            known, away = self.rate, abs(math.log(goal.mb_per_s / self.rate_middle))
        else:
            known, middle = self.share.range, self.share.middle
            bound = goal.kept - MARGIN if middle >= goal.kept else goal.kept + MARGIN
            away = abs(math.log(middle / bound))
        if known is None or not away:
            return None
        half = math.log(known.high / known.low) / 2
        return max(1, math.ceil(self.passes * ((half / away) ** 2 - 1)))


def megabytes(value: float) -> str:
    """`520 MB/s`."""
    return f"{three_digits(value)} MB/s"


def _judged(meets: bool, misses: bool) -> Judgement:
    return "meets" if meets else "misses" if misses else "open"


ALIKE: Final = 0.03
"""A throughput that is higher by less than this part is not worth a longer latency."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The timeout to set, and the one that it cannot be distinguished from."""

    goal: Goal
    chosen: Candidate  # where none reaches the goal, the nearest
    rival: Candidate | None  # None where the answer is decided
    reference_s: float | None  # the timeout whose throughput counts as 100 %
    reference: str  # the same as text
    is_reached: bool  # False where no timeout reaches the goal, or where that is open
    rate_per_s: float | None = None  # of the latency runs
    run_s: float = 0.0  # about how long a run takes, to say what more of them cost
    contested: tuple[Candidate, ...] = ()  # those that more passes should measure

    @property
    def is_decided(self) -> bool:
        """Whether more passes would not change it."""
        return not self.contested

    @property
    def passes_needed(self) -> int | None:
        """About how many more passes decide; None where it is decided, or the noise is unknown."""
        needed = [each.passes_needed(self.goal) for each in self.contested]
        known = [each for each in needed if each is not None]
        return max(known) if known and len(known) == len(needed) else None

    @property
    def cost_s(self) -> float | None:
        """About how long they take: runs of the contested timeouts and of the reference, in each workload."""
        needed = self.passes_needed
        timeouts = {self.reference_s, *(each.timeout_s for each in self.contested)}
        if needed is None or not self.run_s:
            return None
        return needed * len(timeouts) * max(1, len(self.chosen.shares)) * self.run_s

    @property
    def head(self) -> str:
        """The timeout, or both candidates: how `sentence` begins, where a timeout reaches the goal."""
        return self.chosen.label if self.rival is None else f"{self.chosen.label} or {self.rival.label}"

    def sentence(self) -> str:
        """The whole answer, to follow the words `Buffer timeout:`."""
        if self.is_decided:
            return self._decided() if self.is_reached else self._missed()
        return self._open()

    def brief(self) -> str:
        """The answer of one workload beside others."""
        of = "" if self.chosen.timeout_s == self.reference_s else f" keeps {self.chosen.share.text}"
        return f"{self.chosen.label}{of}{'' if self.rival is None else f' (or {self.rival.label})'}"

    def figures(self) -> str:
        """What else is known of the chosen timeout; empty where nothing is."""
        chosen, parts = self.chosen, []
        if self.goal.is_relative is False and chosen.timeout_s != self.reference_s:
            parts.append(f"it keeps {chosen.share.text} of the throughput at {self.reference}")
        if chosen.mb_per_s and self.goal.mb_per_s is None:
            parts.append(chosen.rate_text)
        if chosen.p99_us and self.goal.p99_us is None:
            at = "" if self.rate_per_s is None else f" at {self.rate_per_s:,.0f} records/s"
            most = "up to " if len(chosen.shares) > 1 else ""
            parts.append(f"p99 {most}{chosen.p99_text}{at}")
        if chosen.bottleneck:
            parts.append(f"bottleneck: {chosen.bottleneck}")
        return "; ".join(parts)

    def _decided(self) -> str:
        chosen = self.chosen
        if self.goal.is_relative and chosen.timeout_s == self.reference_s:
            return self._with_figures(f"{chosen.label}: every shorter timeout measured keeps less than {self.goal}")
        text = f"{chosen.label} {chosen.figure(self.goal, self.reference)}{self._scope()}"
        return self._with_figures(text)

    def _missed(self) -> str:
        nearest = f"no timeout measured reaches {self.goal}; nearest is {self.chosen.label}, which"
        return self._with_figures(f"{nearest} {self.chosen.figure(self.goal, self.reference)}")

    def _open(self) -> str:
        chosen, rival = self.chosen, self.rival
        figure = chosen.figure(self.goal, self.reference)
        if rival is None:
            return f"{chosen.label}, as far as these runs go: it {figure}, and {self._why()}. {self._cost()}"
        both = f"{chosen.label} or {rival.label}, which these runs cannot separate"
        figures = f"{chosen.label} {figure}, {rival.label} {self._short(rival)}"
        if self.goal.is_relative and self.reference_s in (chosen.timeout_s, rival.timeout_s):
            other = rival if chosen.timeout_s == self.reference_s else chosen
            figures = f"{other.label} {other.figure(self.goal, self.reference)}"
        return f"{both}: {figures}. Take {chosen.label}: {self._why()}. {self._cost()}"

    def _short(self, each: Candidate) -> str:
        if self.goal.is_relative:
            return each.share.text
        return each.figure(self.goal, self.reference)

    def _why(self) -> str:
        chosen, rival, goal = self.chosen, self.rival, self.goal
        if not chosen.leans(goal):
            return f"it comes nearest to {goal}"
        if rival is None:
            return "it probably reaches the goal"
        if chosen.p99_us and rival.p99_us and chosen.p99_middle < rival.p99_middle:
            sooner = f"its p99 is {format_latency(chosen.p99_middle)}, not {format_latency(rival.p99_middle)}"
            return f"it probably reaches {goal}, and {sooner}"
        if goal.is_relative and chosen.timeout_s == self.reference_s:
            return f"{rival.label} probably keeps less than {goal}"
        if chosen.judged(goal) == "meets":
            return (
                f"it reaches {goal}, and {rival.label} probably does not"
                if not rival.leans(goal)
                else (f"it reaches {goal} for certain")
            )
        return f"it probably reaches {goal}"

    def _cost(self) -> str:
        needed, cost_s = self.passes_needed, self.cost_s
        if needed is None:
            return "How far runs differ by chance is not known yet: that takes a second pass at least"
        time = "" if cost_s is None else f", {_length(cost_s)}"
        passes = "1 more pass" if needed == 1 else f"{needed:,} more passes"
        why = ": this machine is too noisy now" if self.chosen.passes + needed > LOOKS[-1] else ""
        return f"To know takes about {passes}{time}{why}"

    def _scope(self) -> str:
        """Of which workloads this was said."""
        chosen, count = self.chosen, len(self.chosen.shares)
        if count < 2 or not self.goal.is_relative:
            return ""
        if chosen.other is not None:
            name, share, instead = chosen.other
            there = f"{name} differs: there it keeps {share.text}, set {instead}"
            return f" in {count - 1} of {count} workloads; {there}"
        name, lowest = min(chosen.shares, key=lambda each: each[1].middle)
        if all(share.range is not None and share.range.low >= self.goal.kept - MARGIN for _, share in chosen.shares):
            return " in every workload measured"
        return f" over {count} workloads (least {lowest.middle:.0%}".replace("%", " %") + f", {name})"

    def _with_figures(self, text: str) -> str:
        more = self.figures()
        return f"{text}; {more}" if more else text


def answer(
    candidates: Sequence[Candidate],
    goal: Goal,
    reference_s: float | None,
    reference: str,
    *,
    rate_per_s: float | None = None,
    run_s: float = 0.0,
) -> Answer | None:
    """Chooses one of the timeouts of a workload for a goal; None where none has the runs that the goal needs."""
    known = [each for each in candidates if _is_eligible(each, goal, reference_s)]
    if not known:
        return None
    ordered = _by_preference(known, goal)
    judged = {each.timeout_s: each.judged(goal) for each in ordered}
    met = next((each for each in ordered if judged[each.timeout_s] == "meets"), None)
    before = ordered if met is None else ordered[: ordered.index(met)]
    rivals = [each for each in before if judged[each.timeout_s] == "open"]
    made = Answer(goal, met or ordered[0], None, reference_s, reference, met is not None, rate_per_s, run_s)
    if not rivals:
        return replace(made, chosen=met or _nearest(known, goal))
    likely = next((each for each in rivals if each.leans(goal)), None)
    if likely is not None:
        after = ordered[ordered.index(likely) + 1 :]
        rival = next((each for each in after if each.leans(goal) and judged[each.timeout_s] != "misses"), None)
        return replace(made, chosen=likely, rival=rival, is_reached=False, contested=tuple(rivals))
    if met is not None:
        return replace(made, chosen=met, rival=_nearest(rivals, goal), contested=tuple(rivals))
    return replace(made, chosen=_nearest(rivals, goal), is_reached=False, contested=tuple(rivals))


def _length(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 90 else counted(round(seconds / 60), "minute")


def most_named(bottlenecks: Sequence[str]) -> str:
    """The most frequent name that is not empty."""
    parts = [name for name in bottlenecks if name]
    return max(sorted(set(parts)), key=parts.count, default="")


def _is_eligible(each: Candidate, goal: Goal, reference_s: float | None) -> bool:
    if goal.p99_us is not None:
        return bool(each.p99_us)
    if goal.mb_per_s is not None:
        return bool(each.mb_per_s)
    return each.timeout_s is not None and reference_s is not None and each.timeout_s <= reference_s


def _by_preference(candidates: Sequence[Candidate], goal: Goal) -> list[Candidate]:
    """The shortest first; with a bound of the p99 the one with the most throughput."""
    if goal.p99_us is None:
        return sorted(candidates, key=lambda each: (each.timeout_s is None, each.timeout_s))
    rest, ordered = list(candidates), []
    while rest:
        most = max(each.share.middle for each in rest)
        best = min((each for each in rest if each.share.middle >= most - ALIKE), key=lambda each: each.p99_middle)
        ordered.append(best)
        rest.remove(best)
    return ordered


def _nearest(candidates: Sequence[Candidate], goal: Goal) -> Candidate:
    if goal.p99_us is not None:
        return min(candidates, key=lambda each: each.p99_middle)
    return max(candidates, key=lambda each: each.share.middle if goal.mb_per_s is None else each.rate_middle)
