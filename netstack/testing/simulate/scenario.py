"""Scenarios of simulations: a cluster, jobs and faults as data, generated from a seed.

Takes: a seed. Gives: a `Scenario`, simpler variants of it for shrinking, and its JSON form.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, final

from .features import KEYS, NUMBERS, Case

JOBMANAGER: Final = "jobmanager"
PORT: Final = 6121
"""Port of every TaskManager; part of its name."""

CUT = "cut"
DELAY = "delay"
DISK_FULL = "disk full"
DISK_SLOW = "disk slow"
HALF = "half link"
KILL = "kill"
LIE = "lie"
POWER = "power off"
REPEAT = "repeat"
SLOW = "slow host"
STOP = "stop"
UNPLUG = "unplug"

KINDS: Final = (CUT, CUT, DELAY, DISK_FULL, DISK_SLOW, HALF, KILL, KILL, KILL, LIE, POWER, REPEAT, SLOW, STOP, UNPLUG)
"""Drawn as often as they are listed here."""

SAVEPOINT = "savepoint"
RESCALE = "rescale"
CANCEL = "cancel"
ACTS: Final = (SAVEPOINT, RESCALE, CANCEL)

STREAMING: Final = "streaming"
BLOCKING: Final = "blocking"
HYBRID: Final = "hybrid"
SELECTIVE: Final = "hybrid selective"
ADAPTIVE: Final = "adaptive"
"""Kept partitions; the parallelism of the counter is decided when its input exists."""
CHECKED: Final = "checked"
"""Streaming, with operators that record a history for `history`."""
FEATURED: Final = "featured"
"""The job of a `Case`: features that are combined (`features`)."""

STAGES: Final = (
    "map",
    "filter",
    "double",
    "rebalance",
    "rescale",
    "arrays",
    "tuples",
    "union",
    "connect",
    "broadcast",
    "custom",
    "side",
    "mistake",
    "mistake",
)
TWO_SOURCES: Final = ("union", "connect")
MODES: Final = ("aligned", "unaligned", "timed")

_CALM_S: Final = 0.6
"""Of a storm that has just begun, and of a job without a pace."""

_LONGEST_FAULT_S: Final = 9.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        at_s: virtual time; for a fault at the end, counted from when a task first waits for its final checkpoint.
        host: the affected host; for links, the sending end.
        other: the other end of a link.
        for_s: duration; after a death or stop, until the next process; for a cut, the wait for bytes in flight; for a
            lie, the wait for an ended attempt.
        amount: seconds of a delay, bytes that a full disk still takes, slowness of a host, or repeated cuts of a link.
        is_at_end: whether it happens while the job ends.
    """

    at_s: float
    kind: str
    host: str
    other: str = ""
    for_s: float = 0.0
    amount: float = 0.0
    is_at_end: bool = False

    def __str__(self) -> str:
        where = f"{self.host} -> {self.other}" if self.other else self.host
        amount = f", {self.amount:g}" if self.amount else ""
        end = " into the end" if self.is_at_end else ""
        return f"{self.at_s:.3f} s{end}: {self.kind} at {where} for {self.for_s:.3f} s{amount}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An action of the user of a job with checkpoints.

    Attributes:
        at_s: virtual time.
        kind: `SAVEPOINT`; `RESCALE`: stop with a savepoint and continue with another parallelism; `CANCEL`: cancel,
            then start again from the newest retained checkpoint.
        widths: parallelism after `RESCALE`, as `Scenario.parallelism`.
    """

    at_s: float
    kind: str
    widths: tuple[int, ...] = ()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulation.

    Attributes:
        seed: seed of task order, pieces of bytes and all other chance.
        taskmanagers: number of hosts `tm-0`, `tm-1`, ...
        movement: `STREAMING` and `CHECKED` take checkpoints; the others keep partitions and restart regions.
        stages: stages between sources and counters, each one of `STAGES`.
        parallelism: parallelism of sources, stages, counters and sinks.
        pace_s: pause of a source between reads of up to `batch` records.
        batch: records per read.
        segment_bytes: size of a network buffer.
        resume_grace_s: `resume_grace_s` of the network.
        faults: faults in order of time.
        acts: user actions in order of time.
        is_placed: whether subtasks have fixed, spread places.
        load_balance: load balance mode otherwise.
        speculates: whether slow tasks get second attempts.
        has_prompt: whether some streaming edges are prompt.
        acts_as: network profile, one of the values of `--as`.
        case: the features of a `FEATURED` job; None for others.
    """

    seed: int
    taskmanagers: int
    slots: int
    movement: str
    mode: str
    interval_s: float
    stages: tuple[str, ...]
    parallelism: tuple[int, ...]
    records: int
    keys: int
    pace_s: float
    batch: int
    segment_bytes: int
    own_network: bool
    debloats: bool
    restart: str
    resume_grace_s: float = 0.0
    faults: tuple[Fault, ...] = ()
    acts: tuple[Act, ...] = ()
    is_placed: bool = False
    load_balance: str = "none"
    speculates: bool = False
    bad_commits: int = 0
    has_second: bool = False
    has_prompt: bool = False
    acts_as: str = "netstack"
    case: Case | None = None

    def __str__(self) -> str:
        if self.case is not None:
            return f"{self.case} on {self.taskmanagers} x {self.slots} slots, {len(self.faults)} faults"
        way = f"{self.mode}, every {self.interval_s:g} s" if takes_checkpoints(self) else "kept partitions"
        return (
            f"{self.movement} ({way}), {' -> '.join(('source', *self.stages, 'count', 'sink'))} on"
            f" {self.taskmanagers} x {self.slots} slots, {self.records} records a source, {len(self.faults)} faults"
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns the scenario as plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Scenario:
        """The inverse of `as_dict`."""
        lists: dict[str, Any] = {name: tuple(values[name]) for name in ("stages", "parallelism")}
        lists["faults"] = tuple(Fault(**each) for each in values["faults"])
        lists["case"] = values.get("case") and Case(**values["case"])
        lists["acts"] = tuple(Act(**{**each, "widths": tuple(each["widths"])}) for each in values["acts"])
        return cls(**{**values, **lists})


def takes_checkpoints(scenario: Scenario) -> bool:
    """Whether its job takes checkpoints."""
    if scenario.case is not None:
        return scenario.case.takes_checkpoints
    return scenario.movement in (STREAMING, CHECKED)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Values from which sizes of scenarios are drawn, each as often as it is listed.

    Attributes:
        width: largest parallelism.
    """

    taskmanagers: tuple[int, ...]
    slots: tuple[int, ...]
    width: int
    stages: tuple[int, ...]
    records: tuple[int, ...]
    lasts_s: tuple[float, ...]


SMALL: Final = Size(
    taskmanagers=(1, 2, 2, 2),
    slots=(1, 1, 2),
    width=2,
    stages=(0, 0, 0, 1, 1),
    records=(20, 20, 60, 100),
    lasts_s=(0.0, 0.3, 0.6, 1.5),
)
BIG: Final = Size(
    taskmanagers=(1, 2, 3, 4),
    slots=(1, 2, 3),
    width=3,
    stages=(0, 1, 2),
    records=(20, 100, 200, 400, 800),
    lasts_s=(0.0, 0.3, 2.0, 4.0),
)
BIG_SHARE: Final = 0.1
"""Of all scenarios. Small ones reach as many situations for the same work, and their failures are easier to read; a bug
that takes many buffers or hosts is found by big ones alone."""


FEATURED_SHARE: Final = 0.15
"""Of all scenarios: jobs that combine features."""


def random_scenario(seed: int) -> Scenario:
    """Returns the scenario of a seed, the same in every process."""
    chance = random.Random(seed)
    size = BIG if chance.random() < BIG_SHARE else SMALL
    records = chance.choice(size.records)
    batch = max(chance.choice((1, 8, 40)), records // 25)
    movement = chance.choice((*(STREAMING,) * 4, BLOCKING, HYBRID, SELECTIVE, ADAPTIVE, CHECKED))
    stages = () if movement == CHECKED else tuple(chance.choice(STAGES) for _ in range(chance.choice(size.stages)))
    taskmanagers = chance.choice(size.taskmanagers)
    slots = chance.choice(size.slots)
    most = min(size.width, taskmanagers * slots)
    hosts = [JOBMANAGER, *(f"tm-{number}" for number in range(taskmanagers))]
    lasts_s = chance.choice(size.lasts_s)
    storm_s = _CALM_S + 1.5 * lasts_s
    is_placed = movement == STREAMING and chance.random() < 0.4

    def widths() -> tuple[int, ...]:
        return tuple(chance.randint(1, most) for _ in range(3 + len(stages)))

    def fault() -> Fault:
        """A place names one life of a TaskManager: a job whose places are decided loses none."""
        while True:
            drawn = _random_fault(chance, hosts, storm_s)
            if not is_placed or drawn.kind in (DISK_FULL, DISK_SLOW, REPEAT, SLOW):
                return drawn
            if drawn.kind == CUT and JOBMANAGER not in (drawn.host, drawn.other):
                return drawn
            if drawn.kind in (KILL, POWER, STOP) and drawn.host == JOBMANAGER:  # the next one knows of no places
                return drawn

    faults = [fault() for _ in range(chance.choice((0, 1, 2, 4, 8)))]
    at_end = [
        replace(
            fault(),
            at_s=round(chance.choice((0.002, 0.02, 0.2)) * chance.random(), 5),
            is_at_end=True,
        )
        for _ in range(chance.choice((0, 0, 1, 2, 3)))
    ]
    acts = [
        Act(at_s=round(chance.uniform(0.3, storm_s), 4), kind=chance.choice(ACTS), widths=widths())
        for _ in range(chance.choice((0, 0, 1, 2)) if movement == STREAMING else 0)
    ]
    scenario = Scenario(
        seed=seed,
        taskmanagers=taskmanagers,
        slots=slots,
        movement=movement,
        mode=chance.choice(MODES),
        interval_s=chance.choice((0.3, 1.0, 3.0)),
        stages=stages,
        parallelism=widths(),
        records=records,
        keys=chance.choice((1, 7, 40)),
        pace_s=round(lasts_s * min(batch, records) / records, 6),
        batch=batch,
        segment_bytes=chance.choice((256, 1024, 4096)),
        own_network=chance.random() < 0.3,
        debloats=chance.random() < 0.2,
        restart=chance.choice(("fixed_delay", "exponential")),
        resume_grace_s=chance.choice((0.0, 1.0, 4.0)),
        faults=(*sorted(faults, key=lambda each: each.at_s), *at_end),
        acts=tuple(sorted(acts, key=lambda each: each.at_s)),
        is_placed=is_placed,
        load_balance=chance.choice(("none", "slots", "none" if is_placed else "tasks")),
        speculates=movement in (BLOCKING, ADAPTIVE) and chance.random() < 0.5,
        bad_commits=chance.choice((0, 0, 0, 1, 2)),
        has_second=chance.random() < 0.1,
        has_prompt=movement == STREAMING and chance.random() < 0.5,
        acts_as=chance.choice(("netstack", "netstack", "netstack", "flink")),
    )
    if chance.random() >= FEATURED_SHARE:
        return scenario
    while not (case := Case.drawn(chance)).is_possible:
        pass
    return featured(case, seed)


def featured(case: Case, seed: int) -> Scenario:
    """Returns the scenario of a case: what it says fails in the middle, at a time that the seed decides."""
    chance = random.Random(seed)
    host = {"TaskManager": f"tm-{chance.randint(0, 1)}", "JobManager": JOBMANAGER}.get(case.failure)
    kill = Fault(at_s=round(chance.uniform(0.3, 1.5), 4), kind=KILL, host=host or "", for_s=chance.choice((0.05, 0.8)))
    other = case.width % 3 + 1
    rescale = Act(at_s=round(chance.uniform(0.4, 1.2), 4), kind=RESCALE, widths=(other, other, other))
    return Scenario(
        seed=seed,
        taskmanagers=2,
        slots=2,
        movement=FEATURED,
        mode="aligned",
        interval_s=0.3,
        stages=(),
        parallelism=(case.width,) * 3,
        records=NUMBERS,
        keys=KEYS,
        pace_s=0.1,
        batch=5,
        segment_bytes=512,
        own_network=True,
        debloats=False,
        restart="fixed_delay",
        faults=(kill,) if host else (),
        acts=(rescale,) if case.rescale == "yes" else (),
        load_balance=case.balance,
        case=case,
    )


def second_of(scenario: Scenario) -> Scenario:
    """The second job: a small one that uses free slots."""
    return Scenario(
        seed=scenario.seed,
        taskmanagers=scenario.taskmanagers,
        slots=scenario.slots,
        movement=BLOCKING if scenario.seed % 2 else STREAMING,
        mode=scenario.mode,
        interval_s=1.0,
        stages=(),
        parallelism=(1, 1, 1),
        records=20,
        keys=7,
        pace_s=0.2,
        batch=4,
        segment_bytes=scenario.segment_bytes,
        own_network=False,
        debloats=False,
        restart="fixed_delay",
        acts_as=scenario.acts_as,
    )


def _random_fault(chance: random.Random, hosts: list[str], storm_s: float) -> Fault:
    kind = chance.choice(KINDS)
    host, other = chance.sample(hosts if kind != CUT or len(hosts) < 3 or chance.random() < 0.3 else hosts[1:], 2)
    if kind in (REPEAT, LIE) and host == JOBMANAGER:
        host = other
    is_link = kind in (CUT, DELAY, HALF)
    amount = {
        DELAY: chance.choice((0.01, 0.3, 2.0)),
        DISK_FULL: float(chance.choice((0, 40, 1000))),
        DISK_SLOW: chance.choice((0.05, 0.5, 3.0)),
        SLOW: chance.choice((3.0, 30.0)),
        CUT: chance.choice((1.0, 3.0, 10.0)),
    }.get(kind, 0.0)
    return Fault(
        at_s=round(chance.uniform(0.0, storm_s) ** 1.5 / storm_s**0.5, 4),
        kind=kind,
        host=host,
        other=other if is_link else "",
        for_s=round(chance.choice((0.05, 1.0, _LONGEST_FAULT_S)) * chance.uniform(0.1, 1.0), 4),
        amount=amount,
    )


def smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Yields simpler scenarios, the largest cuts first; call again with one that still fails."""
    faults = scenario.faults
    size = len(faults)
    while size > 0:
        for first in range(0, len(faults), size):
            yield replace(scenario, faults=faults[:first] + faults[first + size :])
        size //= 2
    for index in range(len(scenario.acts)):
        yield replace(scenario, acts=scenario.acts[:index] + scenario.acts[index + 1 :])
    for index in range(len(scenario.stages)):
        yield replace(
            scenario,
            acts=tuple(
                replace(each, widths=each.widths[: index + 1] + each.widths[index + 2 :]) for each in scenario.acts
            ),
            stages=scenario.stages[:index] + scenario.stages[index + 1 :],
            parallelism=scenario.parallelism[: index + 1] + scenario.parallelism[index + 2 :],
        )
    for index, each in enumerate(scenario.parallelism):
        if each > 1:
            yield replace(scenario, parallelism=(*scenario.parallelism[:index], 1, *scenario.parallelism[index + 1 :]))
    for changes in (
        {"records": scenario.records // 2 or 1},
        {"keys": 1},
        {"debloats": False},
        {"own_network": False},
        {"segment_bytes": 4096},
        {"restart": "fixed_delay"},
        {"resume_grace_s": 0.0},
        {"is_placed": False},
        {"load_balance": "none"},
        {"speculates": False},
        {"bad_commits": 0},
        {"has_second": False},
        {"has_prompt": False},
        {"acts_as": "netstack"},
    ):
        changed = replace(scenario, **changes)
        if changed != scenario:
            yield changed
    for index, fault in enumerate(faults):
        if fault.for_s > 0.05:
            shorter = replace(fault, for_s=round(fault.for_s / 2, 4))
            yield replace(scenario, faults=(*faults[:index], shorter, *faults[index + 1 :]))
