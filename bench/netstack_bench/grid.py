"""The grid of a sweep and the runs that it consists of, in a fair and repeatable order.

Every point has one throughput run and, by default, one latency run. Each repeat is a whole pass over the grid in its
own shuffled order: the timeouts of a workload follow each other, so that drift of the machine (heat, neighbours)
affects them alike.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from netstack.base.errors import ConfigError
from netstack.base.units import format_count, format_duration, format_link_rate

from .spec import Checkpoints, RunSpec, refuse_below

Kind = Literal["throughput", "latency"]

DEFAULT_TIMEOUTS_S: tuple[float | None, ...] = (None, 0.1, 0.01, 0.001, 0.0)
DEFAULT_RECORD_SIZES: tuple[int, ...] = (8, 1024)
DEFAULT_CHANNELS: tuple[int, ...] = (1, 16)
DEFAULT_SECONDS = 0.7  # 40 runs, process starts included, take about a minute
DEFAULT_LATENCY_RATE_PER_S = 1000.0

MOST_REPEATS: Final = 100_000
"""Of a run and of a sweep, whose plan is in memory."""

_DEFAULT: Final = RunSpec()
_AXES: Final = {
    "timeouts_s": ("--timeouts", "buffer_timeout_s"),
    "record_sizes": ("--record-sizes", "record_bytes"),
    "channels": ("--channels", "channels"),
    "exclusive_buffers": ("--exclusive-buffers", "exclusive_buffers"),
    "floating_buffers": ("--floating-buffers", "floating_buffers"),
    "round_trips_s": ("--round-trip", "round_trip_s"),
    "links_bytes_per_s": ("--link-rate", "link_bytes_per_s"),
    "memories_bytes": ("--memory", "memory_bytes"),
    "checkpoints": ("--checkpoints", "checkpoints"),
    "checkpoint_intervals_s": ("--checkpoint-interval", "checkpoint_interval_s"),
}
"""The flag of each axis of a grid, and its field in the settings of a run."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a sweep; `repeat` is the pass over the grid, `order` its place in the sweep."""

    spec: RunSpec
    repeat: int
    order: int

    @property
    def kind(self) -> Kind:
        """`latency` for a run at a rate, `throughput` for one without."""
        return run_kind(self.spec.rate_per_s)

    @property
    def key(self) -> tuple[str, int]:
        """The key of the run in the store."""
        return self.spec.run_id, self.repeat

    @property
    def expected_s(self) -> float:
        """The expected length, process start included."""
        return self.spec.START_S + (self.spec.seconds or DEFAULT_SECONDS)

    @property
    def _whose(self) -> str:
        if self.spec.ENGINE_KIND == "flink":
            return "Flink: "
        return "" if self.spec.acts_as == _DEFAULT.acts_as else f"as {self.spec.acts_as}: "

    @property
    def _load(self) -> str:
        return "" if self.spec.rate_per_s is None else f" at {format_count(self.spec.rate_per_s)}/s"

    def __str__(self) -> str:
        spec = self.spec
        timeout = format_duration(spec.buffer_timeout_s)
        buffers = spec.exclusive_buffers, spec.floating_buffers
        usual = buffers == (_DEFAULT.exclusive_buffers, _DEFAULT.floating_buffers)
        return (
            f"{self._whose}{self.kind}{self._load}, timeout {timeout}, {spec.rows}, "
            f"{spec.channels} channel{'s' if spec.channels > 1 else ''}"
            f"{'' if usual else f', {buffers[0]} + {buffers[1]} buffers'}"
            f"{f', round trip {format_duration(spec.round_trip_s)}' if spec.round_trip_s else ''}"
            f"{f', link {format_link_rate(spec.link_bytes_per_s)}' if spec.link_bytes_per_s else ''}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The settings that decide which runs a sweep makes, in `repeats` passes over the product of the axes.

    A timeout of None sends only full buffers; memories of None are those of the buffers, links of None the common one.
    `networks` has pairs of a link and a round trip in place of these axes. Latency runs last `seconds` if
    `latency_seconds` is None; 0 leaves them out; each point has one for each rate.
    Every run shares the settings `common`, of the class `spec_type`.
    `points` are the runs of a pass in place of the axes. `turns` gives the settings to run in turn at each point, for
    peers.
    """

    timeouts_s: tuple[float | None, ...] = DEFAULT_TIMEOUTS_S
    record_sizes: tuple[int, ...] = DEFAULT_RECORD_SIZES
    channels: tuple[int, ...] = DEFAULT_CHANNELS
    exclusive_buffers: tuple[int, ...] = (_DEFAULT.exclusive_buffers,)
    floating_buffers: tuple[int, ...] = (_DEFAULT.floating_buffers,)
    round_trips_s: tuple[float, ...] = (_DEFAULT.round_trip_s,)
    links_bytes_per_s: tuple[int, ...] | None = None
    networks: tuple[tuple[int | None, float], ...] | None = None
    memories_bytes: tuple[int, ...] | None = None
    checkpoints: tuple[Checkpoints, ...] = (_DEFAULT.checkpoints,)
    checkpoint_intervals_s: tuple[float, ...] = (_DEFAULT.checkpoint_interval_s,)
    seconds: float = DEFAULT_SECONDS
    latency_seconds: float | None = None
    latency_rate_per_s: float | tuple[float, ...] = DEFAULT_LATENCY_RATE_PER_S
    repeats: int = 1
    seed: int = 0
    common: dict[str, Any] = field(default_factory=dict)
    spec_type: type[RunSpec] = RunSpec
    points: tuple[RunSpec, ...] = ()
    turns: Callable[[RunSpec], Sequence[RunSpec]] = lambda spec: (spec,)

    def __post_init__(self) -> None:
        for name, (flag, _) in _AXES.items():
            values = getattr(self, name)
            if values is not None and not isinstance(values, (tuple, list)):
                raise ConfigError(f"{name}={values!r}: give a list of values: [{values!r}]")
            if values is not None and not values:
                raise ConfigError(f"{flag} is empty; give at least one value")
        if not self.latency_rates:
            raise ConfigError("--latency-rate is empty; give at least one value")
        if self.networks == ():
            raise ConfigError("--network is empty; give at least one value")
        if self.networks:
            for flag, is_given in (
                ("--link-rate", self.links_bytes_per_s is not None),
                ("--round-trip", self.round_trips_s != (_DEFAULT.round_trip_s,)),
            ):
                if is_given:
                    raise ConfigError(f"--network with {flag}: the network says it already; leave one of them out")
        refuse_below(("--repeats", self.repeats, 1))
        if self.repeats > MOST_REPEATS:
            raise ConfigError(f"--repeats {self.repeats}: the maximum is {MOST_REPEATS}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Grid:
        """A grid from its own fields and the settings common to all runs."""
        own = {each.name for each in dataclasses.fields(cls)}
        mine = {name: value for name, value in settings.items() if name in own}
        return cls(**mine, common={name: value for name, value in settings.items() if name not in own})

    def with_spec(self, spec_type: type[RunSpec], **common: Any) -> Grid:
        """The same grid with another class of settings and more settings in each run."""
        return replace(self, spec_type=spec_type, common={**self.common, **common})

    def plan(self) -> list[PlannedRun]:
        """Every run, in order. Raises ConfigError if the settings of a point are invalid."""
        return [run for repeat in range(self.repeats) for run in self.one_pass(repeat)]

    def one_pass(self, repeat: int, wanted: Callable[[RunSpec], bool] = lambda spec: True) -> list[PlannedRun]:
        """The wanted runs of one pass: workload by workload, so that the timeouts of one are measured side by side.

        Throughput comes before latency, because the first answer needs it.
        """
        blocks: dict[tuple[Kind, RunSpec], list[RunSpec]] = {}
        specs = list(self._specs())
        for spec in filter(wanted, specs):
            kind = run_kind(spec.rate_per_s)
            blocks.setdefault((kind, replace(spec, buffer_timeout_s=0.0)), []).append(spec)
        rng = random.Random(self.seed * MOST_REPEATS + repeat)
        shuffled = sorted(rng.sample(list(blocks), len(blocks)), key=lambda block: block[0] == "latency")
        runs: list[PlannedRun] = []
        for block in shuffled:
            for spec in rng.sample(blocks[block], len(blocks[block])):
                turns = self.turns(spec)
                for each in turns if repeat % 2 == 0 else reversed(turns):
                    runs.append(PlannedRun(each, repeat, repeat * len(specs) * len(turns) + len(runs)))
        return runs

    def as_dict(self) -> dict[str, Any]:
        """The grid as JSON values, for `sweep.json`."""
        return {
            **{name: list(getattr(self, name) or ()) for name in _AXES},
            "networks": [list(each) for each in self.networks or ()],
            "seconds": self.seconds,
            "latency_seconds": self._latency_s,
            "latency_rate_per_s": min(self.latency_rates),
            "latency_rates_per_s": list(self.latency_rates),
            "repeats": self.repeats,
            "seed": self.seed,
            "common": dict(self.common),
            "points": [point.as_dict() for point in self.points],
        }

    @property
    def latency_rates(self) -> tuple[float, ...]:
        """The rates of the latency runs, each once."""
        rates = self.latency_rate_per_s
        return tuple(dict.fromkeys(rates if isinstance(rates, (tuple, list)) else (rates,)))

    @property
    def _latency_s(self) -> float:
        return self.seconds if self.latency_seconds is None else self.latency_seconds

    def _specs(self) -> Iterator[RunSpec]:
        if self.points:
            yield from self.points
            return
        axes = {field: getattr(self, name) or (None,) for name, (_, field) in _AXES.items()}
        if self.networks is not None:
            axes["link_bytes_per_s"], axes["round_trip_s"] = zip(*self.networks, strict=True)
        elif self.links_bytes_per_s is None:
            axes["link_bytes_per_s"] = (self.common.get("link_bytes_per_s"),)
        for values in itertools.product(*(dict.fromkeys(axis) for axis in axes.values())):
            point = dict(zip(axes, values, strict=True))
            if self.networks and (point["link_bytes_per_s"], point["round_trip_s"]) not in self.networks:
                continue
            if point["checkpoints"] == "none" and any(mode != "none" for mode in self.checkpoints):
                if point["checkpoint_interval_s"] != self.checkpoint_intervals_s[0]:
                    continue
                point["checkpoint_interval_s"] = _DEFAULT.checkpoint_interval_s
            throughput = self.spec_type(**{**self.common, **point, "seconds": self.seconds})
            yield throughput
            for rate_per_s in self.latency_rates if self._latency_s else ():
                yield replace(throughput, rate_per_s=rate_per_s, seconds=self._latency_s)


def with_rows(grid: Grid, name: str, key: str | None) -> Grid:
    """The same grid with rows of a file as records. Raises ConfigError if record sizes were given as well."""
    if grid.record_sizes not in (DEFAULT_RECORD_SIZES, (_DEFAULT.record_bytes,)):
        raise ConfigError("--record-sizes with --input: the sizes of rows are given; leave one of them out")
    rows = {"input_path": name, "key_column": key}
    return replace(grid, record_sizes=(_DEFAULT.record_bytes,), common={**grid.common, **rows})


def run_kind(rate_per_s: float | None) -> Kind:
    """`latency` for a run at a fixed rate, `throughput` for one as fast as possible."""
    return "throughput" if rate_per_s is None else "latency"


def expected_seconds(runs: Iterable[PlannedRun]) -> float:
    """The expected length of these runs together."""
    return sum(run.expected_s for run in runs)
