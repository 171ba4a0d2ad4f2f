"""The experiment decides rightly, its ranges hold the truth as often as they say, and it keeps to its time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from netstack_bench.decision.experiment import Budget, Experiment, continued
from netstack_bench.decision.goal import AT_A_LOOK, LOOKS, MARGIN, Answer, Effects, Goal, Run
from netstack_bench.grid import Grid, PlannedRun
from netstack_bench.interval import t_quantile
from netstack_bench.report.answers import decide
from netstack_bench.report.points import Analysis

TIMEOUTS_S = (0.0, 0.001, 0.01, 0.1)
Kept = Callable[[int, float], float]
GRID = Grid(timeouts_s=TIMEOUTS_S, record_sizes=(8, 1024), channels=(1, 16))
ONE = Grid(timeouts_s=TIMEOUTS_S, record_sizes=(8,), channels=(1,))
GRIDS = {1: ONE, 4: GRID}


def kept_by(shares: Sequence[float]) -> Kept:
    """What each timeout keeps, in every workload."""
    return lambda workload, timeout_s: shares[TIMEOUTS_S.index(timeout_s)]


@dataclass
class Machine:
    """A simulated machine with a clock: it drifts from pass to pass, runs differ by `noise`, some are disturbed."""

    grid: Grid
    kept: Kept
    noise: float
    seed: int = 0
    slower: float = 1.0  # than expected
    disturbed: float = 0.0  # part of the runs, which lose a third
    goal: Goal = field(default_factory=Goal)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.rows: list[dict[str, Any]] = []
        self.drift: dict[Any, float] = {}

    def measure(self, runs: Sequence[PlannedRun]) -> None:
        for run in runs:
            self.now_s += self.slower * run.expected_s
            spec, gauss = run.spec, self.rng.gauss
            timeout_s, workload = spec.buffer_timeout_s, (spec.record_bytes, spec.channels)
            assert timeout_s is not None
            drift = self.drift.setdefault((workload, run.repeat), math.exp(gauss(0, 0.3)))
            bad = 2 / 3 if self.rng.random() < self.disturbed else 1.0
            kept = self.kept(2 * (workload[0] > 8) + (workload[1] > 1), timeout_s)
            row = {
                "settings_record_bytes": workload[0],
                "settings_channels": workload[1],
                "settings_buffer_timeout_s": timeout_s,
                "settings_rate_per_s": spec.rate_per_s,
                "repeat": run.repeat,
                "payload_mb_per_s": 100 * drift * bad * kept * math.exp(gauss(0, self.noise)),
                "started_at": (datetime(2026, 11, 21, tzinfo=UTC) + timedelta(seconds=self.now_s)).isoformat(),
            }
            row["latency_us_p99"] = (400 + timeout_s * 1e6) * math.exp(gauss(0, self.noise / 3))
            self.rows.append(row)

    def ask(self) -> Answer | None:
        actual = decide(Analysis(self.rows), self.goal).values()
        return next((each.main for each in actual), None)

    def experiment(self, budget_s: float = 180.0, *, together: int = 1) -> Answer:
        budget = Budget(budget_s, lambda: self.now_s, 5.0)
        Experiment(self.grid, self.ask, self.measure, budget, together=together).run()
        actual = self.ask()
        assert actual is not None
        return actual


SHAPES = {"an easy one": (0.5, 0.97, 0.99, 1.0), "near the goal": (0.6, 0.88, 0.93, 1.0), "flat": (1.0, 1.0, 1.0, 1.0)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("workloads", [1, 4])
@pytest.mark.parametrize("noise", [0.03, 0.1, 0.25])
def test_the_range_holds_the_truth_and_the_decision_is_right(shape: str, workloads: int, noise: float) -> None:
    """Each experiment looks at its ranges again and again."""
    judge(SHAPES[shape], workloads, noise, rounds=25)


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("disturbed", [0.0, 0.1])
def test_the_same_in_hundreds_of_experiments_also_where_some_runs_are_disturbed(shape: str, disturbed: float) -> None:
    judge(SHAPES[shape], 4, 0.1, rounds=300, disturbed=disturbed)


def judge(shares: Sequence[float], workloads: int, noise: float, *, rounds: int, disturbed: float = 0.0) -> None:
    held = decided = wrong = 0
    for seed in range(rounds):
        actual = Machine(GRIDS[workloads], kept_by(shares), noise, seed, disturbed=disturbed).experiment()
        known, truth = actual.chosen.share, shares[TIMEOUTS_S.index(actual.chosen.timeout_s or 0.0)]
        held += known.range is not None and known.range.low <= truth <= known.range.high
        decided += actual.is_decided
        shorter = [each for each in shares[: shares.index(truth)] if each > 0.9 + MARGIN]
        wrong += actual.is_decided and (truth < 0.9 - MARGIN or bool(shorter))
    assert held >= (0.88 if rounds < 100 else 0.95) * rounds
    assert wrong <= 0.05 * rounds
    if noise == 0.03:
        assert decided == rounds, "little noise is no excuse"


def test_a_machine_that_is_slower_than_expected_does_not_exceed_the_budget() -> None:
    for slower in (0.5, 1.0, 2.0, 4.0):
        for together in (1, 6):
            machine = Machine(GRID, kept_by(SHAPES["near the goal"]), 0.25, slower=slower)
            machine.experiment(180.0, together=together)
            run_s = slower * max(run.expected_s for run in GRID.plan())
            assert machine.now_s <= 180.0
            assert machine.now_s >= 180.0 - max(1.0, slower) * (5.0 + (together + 1) * run_s)


def test_little_noise_ends_the_experiment_early() -> None:
    machine = Machine(GRID, kept_by(SHAPES["an easy one"]), 0.02)
    assert machine.experiment().is_decided
    assert machine.now_s < 100.0


def test_a_first_pass_that_is_promised_is_made_whole() -> None:
    machine = Machine(GRID, kept_by(SHAPES["flat"]), 0.1)
    budget = Budget(10.0, lambda: machine.now_s, covers_first_pass=False)
    Experiment(GRID, machine.ask, machine.measure, budget).run()
    assert len(machine.rows) == len(GRID.plan())


def test_what_was_measured_before_counts_and_is_not_repeated() -> None:
    """Stopped after half of the first pass, and continued."""
    machine = Machine(GRID, kept_by(SHAPES["an easy one"]), 0.02)
    first = GRID.plan()[:20]
    machine.measure(first)
    finished = {run.key for run in first}
    budget = Budget(1000.0, lambda: machine.now_s)
    Experiment(GRID, machine.ask, machine.measure, budget, finished=finished).run()
    points = [(*(row[name] for name in row if name.startswith("settings_")), row["repeat"]) for row in machine.rows]
    assert len(points) == len(set(points))
    actual = machine.ask()
    assert actual is not None
    assert actual.is_decided


def test_further_passes_measure_what_is_contested_and_the_reference() -> None:
    machine = Machine(GRID, kept_by((0.3, 0.9, 0.99, 1.0)), 0.15)
    machine.experiment()
    later = {row["settings_buffer_timeout_s"] for row in machine.rows if row["repeat"] > 1}
    assert {0.001, 0.1} <= later
    assert 0.0 not in later, "it keeps far too little"


def test_runs_that_all_fail_end_the_experiment() -> None:
    machine = Machine(ONE, kept_by(SHAPES["flat"]), 0.1)
    calls: list[int] = []

    def measure(runs: Sequence[PlannedRun]) -> None:
        calls.append(len(runs))
        if len(calls) <= len(ONE.plan()):
            machine.measure(runs)

    Experiment(ONE, machine.ask, measure, Budget(1e9, lambda: 0.0)).run()
    assert len(calls) < 3 * len(ONE.plan())


@pytest.mark.parametrize("bound_us", [500.0, 1000.0, 4000.0, 15_000.0, 90_000.0, 1e6])
def test_the_most_throughput_within_a_latency(bound_us: float) -> None:
    shares = (0.5, 0.7, 0.9, 1.0)
    actual = Machine(ONE, kept_by(shares), 0.02, goal=Goal(p99_us=bound_us)).experiment()
    within = [share for share, timeout_s in zip(shares, TIMEOUTS_S, strict=True) if 400 + timeout_s * 1e6 <= bound_us]
    assert actual.is_decided
    assert actual.is_reached
    assert actual.chosen.timeout_s == TIMEOUTS_S[len(within) - 1]


def test_what_no_timeout_reaches_is_said_with_the_nearest() -> None:
    for goal, nearest in ((Goal(p99_us=100.0), 0.0), (Goal(mb_per_s=9000.0), 0.1)):
        actual = Machine(ONE, kept_by((0.5, 0.7, 0.9, 1.0)), 0.02, goal=goal).experiment()
        assert (actual.is_reached, actual.is_decided, actual.chosen.timeout_s) == (False, True, nearest)
        assert actual.sentence().startswith(f"no timeout measured reaches {goal}; nearest is ")


def test_the_level_of_a_look_is_that_of_pocock() -> None:
    """Of means that are looked at after each of `LOOKS`, 95 % are within the range at every look."""
    rng = random.Random(1)
    most = t_quantile(AT_A_LOOK, 10**6)
    outside = 0
    rounds = 20_000
    for _ in range(rounds):
        total, before = 0.0, 0
        for look in LOOKS:
            total += rng.gauss(0, math.sqrt(look - before))
            before = look
            if abs(total) > most * math.sqrt(look):
                outside += 1
                break
    assert 0.03 <= outside / rounds <= 0.05


def test_a_pass_with_some_timeouts_counts_as_far_as_it_goes() -> None:
    """1 ms was never measured beside the reference, but beside 10 ms, which was."""
    runs = [Run(0.1, 0, 100.0), Run(0.01, 0, 90.0), Run(0.01, 1, 45.0), Run(0.001, 1, 30.0), Run(0.0, 2, 7.0)]
    effects = Effects({"w": runs}, 0.1)
    assert effects.timeouts("w") == {0.01, 0.001}
    share = effects.share(0.001, ["w"])
    assert share is not None
    assert (share.middle, share.range) == (pytest.approx(0.6), None)
    assert effects.share(0.0, ["w"]) is None


@pytest.mark.parametrize(
    ("words", "is_fixed", "again"),
    [
        (["sweep", "--repeats", "3"], True, ["sweep", "--repeats", "9", "--output", "r"]),
        (["sweep", "--budget=1min", "--output", "x"], False, ["sweep", "--budget", "3min", "--output", "r"]),
    ],
)
def test_the_command_that_goes_on_never_repeats_the_number_that_was_too_small(
    words: list[str], is_fixed: bool, again: list[str]
) -> None:
    machine = Machine(GRID, kept_by(SHAPES["near the goal"]), 0.25, seed=3)
    for repeat in range(3):
        machine.measure(GRID.one_pass(repeat))
    asked = machine.ask()
    assert asked is not None
    command = continued(words, Path("r"), asked, is_fixed=is_fixed)
    assert [word for word in command if not word[0].isdigit()] == [word for word in again if not word[0].isdigit()]
    if is_fixed:
        assert int(command[2]) > 3
