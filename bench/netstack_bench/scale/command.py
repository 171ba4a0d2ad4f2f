"""The command `netstack-bench scale`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import click
import numpy as np
from rich.console import Console
from rich.markup import escape

from netstack.base.config import KIB, MIB
from netstack.base.errors import ConfigError, NetstackError
from netstack.base.units import counted, format_count, format_latency, three_digits
from netstack.cli.values import COUNT, SECONDS

from .. import console
from ..experiment import with_facts
from ..flags import flag, flag_of, flags, json_flag, list_flag
from ..places.hosts.coordinator import run_over_hosts
from ..places.hosts.result import of_all_channels
from ..places.hosts.spec import MeshSpec
from ..places.hosts.taskmanagers import local_taskmanagers
from ..places.local.runner import run_once
from ..spec import Emit, RunSpec, Settings, refuse_below
from ..stopping import kept_at_interrupt

PREDICTED_TASKMANAGERS: Final = 1_000
PREDICTED_CHANNELS: Final = 10_000
"""Of each TaskManager, in and out, all-to-all: one connection to each other TaskManager and one from it."""

FITTED: Final = ("memory_bytes", "setup_s")
KEPT: Final = "credits_per_buffer"

Row: TypeAlias = Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True)
class Constants:
    """What a quantity takes: `base` for a pair of processes, and for each channel and connection between them."""

    base: float
    per_channel: float
    per_connection: float

    @classmethod
    def of(cls, sizes: Sequence[tuple[int, int]], values: Sequence[float]) -> Constants:
        """Fits values, above 0, at sizes: channels and connections."""
        weights = 1 / np.array(values)
        terms = np.array([(1, channels, connections - 1) for channels, connections in sizes], float) * weights[:, None]
        chosen = [0, 1, 2]
        while True:
            solution = np.linalg.lstsq(terms[:, chosen], np.ones(len(values)), rcond=None)[0]
            if min(solution) >= 0:
                break
            del chosen[int(np.argmin(solution))]
        constants = dict(zip(chosen, map(float, solution), strict=True))
        return cls(constants.get(0, 0.0), constants.get(1, 0.0), constants.get(2, 0.0))

    def at(self, channels: int, connections: int) -> float:
        """The predicted value."""
        return self.base + self.per_channel * channels + self.per_connection * (connections - 1)


def prediction(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """The prediction from the rows of one way to emit, as JSON values; None where there are too few.

    What 1,000 TaskManagers with 10,000 channels each would need, and the error of the same prediction at the largest
    sizes of this run, made without them. Memory and set-up time are a constant, plus one for each channel, plus one for
    each connection: least squares of relative errors, without negative constants. Credit announcements per buffer are
    those of the largest number of channels.
    """
    for emit in dict.fromkeys(row["emit"] for row in result.get("channels") or ()):
        by_axis = {
            axis: [row for row in result.get(axis) or () if row["emit"] == emit and _is_usable(row)]
            for axis in ("channels", "connections")
        }
        if min(len({row[axis] for row in rows}) for axis, rows in by_axis.items()) >= _ENOUGH:
            return {"emit": emit, **_predicted(by_axis)}
    return None


_ENOUGH: Final = 3
"""Sizes of an axis: two give the constants, and one is predicted."""


def _predicted(by_axis: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    rows = [row for each in by_axis.values() for row in each]
    constants = _constants(rows)
    each_memory = constants["memory_bytes"]
    each = {
        # One process has both ends, so one of the two interpreters in the base is left out.
        "memory_bytes": each_memory.at(PREDICTED_CHANNELS, PREDICTED_TASKMANAGERS - 1) - each_memory.base / 2,
        "connections": 2 * (PREDICTED_TASKMANAGERS - 1),
        "setup_s": constants["setup_s"].at(PREDICTED_CHANNELS, PREDICTED_TASKMANAGERS - 1),
        KEPT: _credits(rows),
    }
    return {
        "taskmanagers": PREDICTED_TASKMANAGERS,
        "channels": PREDICTED_CHANNELS,
        "each": each,
        "all": {
            "memory_bytes": PREDICTED_TASKMANAGERS * each["memory_bytes"],
            "connections": PREDICTED_TASKMANAGERS * (PREDICTED_TASKMANAGERS - 1),
        },
        "constants": {
            name: {"base": each.base, "per_channel": each.per_channel, "per_connection": each.per_connection}
            for name, each in constants.items()
        },
        "checked": [_checked(axis, by_axis) for axis in by_axis],
    }


def _checked(axis: str, by_axis: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """The largest size of an axis, predicted from all smaller ones, beside what was measured."""
    number = [*by_axis].index(axis)
    largest = max(by_axis[axis], key=lambda row: _size(row)[number])
    rows = [row for each in by_axis.values() for row in each if _size(row)[number] < _size(largest)[number]]
    channels, connections = _size(largest)
    predicted = {name: each.at(channels, connections) for name, each in _constants(rows).items()}
    predicted[KEPT] = _credits(rows)
    return {
        "channels": channels,
        "connections": connections,
        "predicted": predicted,
        "measured": {name: _value(largest, name) for name in predicted},
        "errors": {name: value / _value(largest, name) - 1 for name, value in predicted.items()},
    }


def _constants(rows: Sequence[Row]) -> dict[str, Constants]:
    sizes = [_size(row) for row in rows]
    return {name: Constants.of(sizes, [_value(row, name) for row in rows]) for name in FITTED}


def _credits(rows: Sequence[Row]) -> float:
    return _value(max(rows, key=_size), KEPT)


def _is_usable(row: Row) -> bool:
    return bool(row["delivered"]) and all(name in row and _value(row, name) > 0 for name in (*FITTED, KEPT))


def _size(row: Row) -> tuple[int, int]:
    return row["channels"], row.get("connections", 1)


def _value(row: Row, name: str) -> float:
    value = row[name]
    return float(sum(value.values()) if isinstance(value, Mapping) else value)


CHANNELS: Final = (1, 10, 100, 1_000, 10_000)
CONNECTIONS: Final = (1, 2, 8, 16, 64)
TASKMANAGERS: Final = (2, 4, 8)
PARALLELISM: Final = (4, 8)
EMITS: Final[tuple[Emit, ...]] = ("record", "batch")
AXES: Final = ("channels", "connections", "taskmanagers")
_VALUES: Final[dict[str, tuple[int, ...]]] = dict(zip(AXES, (CHANNELS, CONNECTIONS, TASKMANAGERS), strict=True))

SEGMENT_BYTES: Final = 4 * KIB
"""Of channels and connections: 10,000 channels of 3 buffers each then take 120 MiB."""

MANY: Final = 10_000
MANY_TIMES_LONGER: Final = 4
"""10,000 channels take as long to open and close as a short run, and the first record of each takes a buffer."""

OnStep = Callable[[str], None]
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSpec(Settings):
    """The settings of the command; `most` limits the number of channels, connections and TaskManagers."""

    axes: tuple[str, ...] = AXES
    most: int | None = None
    emits: tuple[Emit, ...] = EMITS
    seconds: float = 2.0

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ConfigError(f"--seconds {self.seconds:g}: give more than 0")
        refuse_below(("--most", self.most, 1))
        if self.most is not None and not any(self.points(_VALUES[axis]) for axis in self.axes):
            least = min(_VALUES[axis][0] for axis in self.axes)
            raise ConfigError(f"--most {self.most} with --axis {', '.join(self.axes)}: the minimum is {least}")

    def points(self, values: Sequence[int]) -> list[int]:
        """The values within `most`."""
        return [value for value in values if self.most is None or value <= self.most]


def measure(spec: ScaleSpec, on_step: OnStep) -> dict[str, Any]:
    """Measures every point once and returns the document; a point that fails is a row with its error."""
    rows_by_axis: dict[str, Rows] = {axis: [] for axis in spec.axes}
    points = [(axis, emit, settings) for axis in spec.axes for emit in spec.emits for settings in _points(spec, axis)]
    with kept_at_interrupt(lambda: any(rows_by_axis.values())) as stopped:
        for axis, emit, settings in points:
            on_step(f"{axis}, by {emit}: {', '.join(f'{name} {value}' for name, value in settings.items())}")
            row: dict[str, Any] = {"emit": emit, **settings}
            try:
                row |= _all_to_all(spec, emit, **settings) if axis == "taskmanagers" else _pair(spec, emit, settings)
            except NetstackError as error:
                row |= {"error": str(error), "delivered": False}
            rows_by_axis[axis].append(row)
    delivered = all(row["delivered"] for rows in rows_by_axis.values() for row in rows)
    foreseen = prediction(rows_by_axis)
    return with_facts(spec, {**rows_by_axis, "prediction": foreseen, "delivered": delivered, "stopped": stopped.by})


def _points(spec: ScaleSpec, axis: str) -> list[dict[str, int]]:
    if axis == "channels":
        return [{"channels": count} for count in spec.points(CHANNELS)]
    if axis == "connections":
        # The same number of channels at every point; only the channels per connection differ.
        return [{"connections": count, "channels": CONNECTIONS[-1]} for count in spec.points(CONNECTIONS)]
    return [
        {"taskmanagers": count, "parallelism": parallelism}
        for parallelism in PARALLELISM
        for count in spec.points(TASKMANAGERS)
    ]


def _pair(spec: ScaleSpec, emit: Emit, settings: Mapping[str, Any]) -> dict[str, Any]:
    run = RunSpec(
        emit=emit,
        seconds=spec.seconds * (MANY_TIMES_LONGER if settings["channels"] >= MANY else 1),
        segment_size_bytes=SEGMENT_BYTES,
        verify="sample" if emit == "batch" else "all",
        **settings,
    )
    began = time.monotonic()
    result = run_once(run)
    setup_s = max(0.0, time.monotonic() - began - (run.seconds or 0.0))
    cpu_s = sum(each or 0.0 for each in result["cpu_s_per_gb"].values()) * result["payload_bytes"] / 1e9
    memory = result["memory_bytes"]
    row = _row(result, cpu_s, {"producer": memory["producer"], "consumer": memory["consumer"]})
    return {**row, "setup_s": setup_s, "credits_per_buffer": result["credits"] / max(1, result["buffers"])}


def _all_to_all(spec: ScaleSpec, emit: Emit, *, taskmanagers: int, parallelism: int) -> dict[str, Any]:
    with local_taskmanagers(taskmanagers, slots=2 * parallelism, memory_bytes=64 * MIB) as running:
        hosts = running.hosts(parallelism)
        before, began = running.used(), time.monotonic()
        result = of_all_channels(run_over_hosts(MeshSpec(emit=emit, seconds=spec.seconds, hosts=hosts)))
        used = running.used()
        elapsed_s = time.monotonic() - began
    row = _row(result, used.cpu_s - before.cpu_s, {"each": used.memory_bytes // taskmanagers})
    return {**row, "channels": parallelism * parallelism, "elapsed_s": elapsed_s}


def _row(result: Mapping[str, Any], cpu_s: float, memory_bytes: Mapping[str, int]) -> dict[str, Any]:
    records = result["records"]
    return {
        "records_per_s": result["records_per_s"],
        "cpu_us_per_thousand": cpu_s * 1e9 / records if records else None,
        "memory_bytes": dict(memory_bytes),
        "latency_p50_us": result["latency_us"]["p50"],
        "delivered": result["delivered"] is True,
    }


_DEFAULT = ScaleSpec()
_TITLES = {
    "channels": f"channels on one connection, buffers of {SEGMENT_BYTES // 1024} KiB",
    "connections": f"connections between two processes, buffers of {SEGMENT_BYTES // 1024} KiB",
    "taskmanagers": "all-to-all among TaskManagers that are processes of this machine",
}
_COUNTS = ("taskmanagers", "parallelism", "connections", "channels")


@click.command(short_help="More channels, connections, TaskManagers: rate, CPU and memory of each.")
@flags(
    list_flag("--axis", AXES, "What to increase; by default all.", "axes"),
    flag("--most", COUNT, "Limit of channels, connections and TaskManagers."),
    list_flag("--emit", EMITS, "How records are emitted; by default both.", "emits"),
    flag_of(_DEFAULT, "--seconds", SECONDS, "Length of each run."),
    json_flag,
)
def scale(axes: tuple[str, ...], most: int | None, emits: tuple[Any, ...], seconds: float, as_json: bool) -> int:
    """Sends records of 8 bytes at full speed over increasing numbers of channels, connections and TaskManagers.

    CPU is that of all processes together. Memory is the peak of each process, interpreter included; for TaskManagers
    the mean at the end. The default takes about two minutes.

    From the constants of channels and connections it predicts what 1,000 TaskManagers with 10,000 channels each need,
    and shows the error of the same prediction at the largest sizes of this run.

    Exit code 1 if a record did not arrive completely, in order and exactly once, or a point could not be measured.
    """
    spec = ScaleSpec(axes=axes or AXES, most=most, emits=emits or EMITS, seconds=seconds)
    errors = console.err()
    result = measure(spec, lambda text: errors.print(text, soft_wrap=True))
    code = console.finish(result, as_json, print_scale)
    for axis in spec.axes:
        for row in result[axis]:
            if not row["delivered"]:
                errors.print(f"[red]not delivered:[/] {axis} {escape(str(row))}", soft_wrap=True)
    return code


def print_scale(result: Mapping[str, Any], out: Console) -> None:
    """Prints a table for each axis."""
    for axis in (axis for axis in AXES if result.get(axis)):
        rows = result[axis]
        counts = [name for name in _COUNTS if name in rows[0]]
        memories = list(dict.fromkeys(name for row in rows for name in row.get("memory_bytes", {})))
        heads = (*counts, "records/s", "CPU us/1,000", "p50", *(f"MB {name}" for name in memories))
        table = console.table(("by",), heads, title=_TITLES[axis])
        for row in rows:
            parts = [str(row["emit"]), *(f"{row[name]:,}" if name in row else "" for name in counts)]
            if "error" in row:
                table.add_row(*parts, "[red]failed[/]")
                continue
            table.add_row(
                *parts,
                format_count(row["records_per_s"]),
                three_digits(row["cpu_us_per_thousand"] or 0.0),
                "" if row["latency_p50_us"] is None else format_latency(row["latency_p50_us"]),
                *(three_digits(row["memory_bytes"][name] / 1e6) for name in memories),
            )
        out.print(table)
    if result.get("prediction"):
        for line in prediction_lines(result["prediction"]):
            out.print(line, soft_wrap=True)


def prediction_lines(foreseen: Mapping[str, Any]) -> list[str]:
    """The prediction in sentences: for each TaskManager, for all of them, and its errors."""

    def text(needs: Mapping[str, float]) -> str:
        return (
            f"{three_digits(needs['memory_bytes'] / 1e6)} MB, {three_digits(needs['setup_s'])} s of set-up,"
            f" {three_digits(needs['credits_per_buffer'])} credit announcements per buffer"
        )

    each, every = foreseen["each"], foreseen["all"]
    lines = [
        f"predicted, by {foreseen['emit']}: {foreseen['taskmanagers']:,} TaskManagers with {foreseen['channels']:,}"
        f" channels each, all-to-all: each {text(each)}, {each['connections']:,} connections; all of them"
        f" {three_digits(every['memory_bytes'] / 1e9)} GB, {every['connections']:,} connections"
    ]
    for checked in foreseen["checked"]:
        errors = ", ".join(f"{_NAMES[name]} {error:+.0%}" for name, error in checked["errors"].items())
        lines.append(
            f"the same prediction for {counted(checked['channels'], 'channel')} on"
            f" {counted(checked['connections'], 'connection')}, from smaller sizes: {text(checked['predicted'])};"
            f" measured: {text(checked['measured'])}; errors: {errors}"
        )
    return lines


_NAMES: Final = {"memory_bytes": "memory", "setup_s": "set-up", "credits_per_buffer": "credit"}
