"""What a cluster of 1,000 TaskManagers with 10,000 channels each would need, from constants measured in this run.

Takes: the rows of the axes `channels` and `connections`. Gives: memory, connections, set-up time and credit traffic,
and the error of the same prediction at the largest sizes of this run, made without them.

Rules: memory and set-up time are a constant, plus one for each channel, plus one for each connection: least squares of
relative errors, without negative constants. Credit announcements per buffer are those of the largest number of
channels. Where the rows do not suffice there is no prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import numpy as np

TASKMANAGERS: Final = 1_000
CHANNELS: Final = 10_000
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
    """The prediction from the rows of one way to emit, as JSON values; None where there are too few."""
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
        "memory_bytes": each_memory.at(CHANNELS, TASKMANAGERS - 1) - each_memory.base / 2,
        "connections": 2 * (TASKMANAGERS - 1),
        "setup_s": constants["setup_s"].at(CHANNELS, TASKMANAGERS - 1),
        KEPT: _credits(rows),
    }
    return {
        "taskmanagers": TASKMANAGERS,
        "channels": CHANNELS,
        "each": each,
        "all": {"memory_bytes": TASKMANAGERS * each["memory_bytes"], "connections": TASKMANAGERS * (TASKMANAGERS - 1)},
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
