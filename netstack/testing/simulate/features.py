"""Features that a job can combine: cases for a covering array, and what must come of each.

Takes: values of `AXES`, or chance. Gives: a `Case`; whether a refusal names two of its features.

A case ends in one of two ways: the job's results are exact, although something fails in the middle, or the job is
refused when it is submitted, in words that name two features which do not go together (`names_two`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from types import MappingProxyType
from typing import Final, Self, final

AXES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "format": ("bytes", "str", "int64", "float64", "msgpack", "tuples", "named tuples", "maps", "arrow"),
        "shape": ("records", "arrays"),
        "edge": (
            "forward",
            "rebalance",
            "rescale",
            "key_by",
            "broadcast",
            "custom",
            "prompt",
            "side output",
            "union",
            "connect",
        ),
        "exchange": ("pipelined", "blocking", "hybrid", "one blocking edge"),
        "checkpoints": ("none", "aligned", "unaligned", "timed"),
        "sink": ("plain", "two-phase"),
        "dialect": ("netstack", "flink", "flink-1.x"),
        "credit": ("on", "off"),
        "debloating": ("off", "on"),
        "checksum": ("off", "on"),
        "slots": ("loop", "processes"),
        "balance": ("none", "slots", "tasks"),
        "plan": ("static", "adaptive"),
        "failure": ("user code", "TaskManager", "JobManager"),
        "parallelism": ("1", "2", "3"),
        "rescale": ("no", "yes"),
    }
)
"""The values of every feature."""

NUMBERS: Final = 60
"""Records of each split."""

KEYS: Final = 7

_KEPT: Final = ("blocking", "hybrid", "one blocking edge")
INCOMPATIBLE: Final[tuple[tuple[tuple[str, str], tuple[str, str]], ...]] = (
    *((("edge", "prompt"), ("exchange", each)) for each in ("blocking", "one blocking edge")),
    *((("exchange", each), ("plan", "adaptive")) for each in ("pipelined", "one blocking edge")),
    *((("exchange", "one blocking edge"), ("checkpoints", each)) for each in ("aligned", "unaligned", "timed")),
    *((("exchange", each), ("rescale", "yes")) for each in _KEPT),
    (("checkpoints", "none"), ("rescale", "yes")),
    (("plan", "adaptive"), ("rescale", "yes")),
)
"""Pairs of features that no job can have: it is refused when submitted, or when its parallelism is to change."""
_RESCALE: Final = ("rescale", "yes")

_SAID_AS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "arrays": r"array",
        "forward": r"forward",
        "prompt": r"prompt",
        "side output": r"side output",
        "connect": r"connect|two inputs",
        "custom": r"custom",
        "key_by": r"key",
        "blocking": r"blocking|kept|batch",
        "hybrid": r"hybrid|kept|batch",
        "one blocking edge": r"blocking|kept|batch",
        "pipelined": r"pipelined|streaming|set is_batch",
        "aligned": r"checkpoint",
        "none": r"takes no checkpoints",
        "unaligned": r"checkpoint|unaligned",
        "timed": r"checkpoint|aligned",
        "flink": r"[Ff]link",
        "flink-1.x": r"[Ff]link",
        "off": r"credit",
        "on": r"debloat|checksum",
        "tasks": r"load balance|balanc|tasks",
        "slots": r"load balance|balanc|slots",
        "adaptive": r"adaptive|dynamic",
        "yes": r"savepoint|parallelism|set `checkpoints`",
    }
)
"""How a message names a value that is not the default of its axis."""


@final
@dataclass(frozen=True, slots=True)
class Case:
    """One value of each axis of `AXES`, in their order."""

    format: str = "msgpack"
    shape: str = "records"
    edge: str = "rebalance"
    exchange: str = "pipelined"
    checkpoints: str = "none"
    sink: str = "plain"
    dialect: str = "netstack"
    credit: str = "on"
    debloating: str = "off"
    checksum: str = "off"
    slots: str = "loop"
    balance: str = "none"
    plan: str = "static"
    failure: str = "user code"
    parallelism: str = "1"
    rescale: str = "no"

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value not in AXES[each.name]:
                raise ValueError(f"{each.name}={value!r}; give one of {', '.join(AXES[each.name])}")

    def __str__(self) -> str:
        values = ((name, value) for name, value in self.values().items() if value != AXES[name][0])
        return ", ".join(f"{name} {value}" for name, value in values) or "defaults"

    def values(self) -> dict[str, str]:
        """The value of each axis."""
        return dict(zip(AXES, astuple(self), strict=True))

    @classmethod
    def drawn(cls, chance: random.Random) -> Self:
        """A case with every value drawn."""
        return cls(**{name: chance.choice(values) for name, values in AXES.items()})

    @property
    def is_possible(self) -> bool:
        """Whether none of its pairs is `INCOMPATIBLE`."""
        values = self.values()
        pairs = values.items()
        return not any(first in pairs and second in pairs for first, second in INCOMPATIBLE)

    @property
    def is_refused(self) -> bool:
        """Whether it is refused when it is submitted, whatever happens then."""
        pairs = self.values().items()
        return any(
            first in pairs and second in pairs for first, second in INCOMPATIBLE if _RESCALE not in (first, second)
        )

    @property
    def is_batch(self) -> bool:
        """Whether the whole job is a batch job."""
        return self.exchange in ("blocking", "hybrid")

    @property
    def takes_checkpoints(self) -> bool:
        """Whether the job takes any: a batch job runs without those that it asks for."""
        return self.checkpoints != "none" and not self.is_batch

    @property
    def width(self) -> int:
        """The parallelism of its operators."""
        return int(self.parallelism)

    def names_two(self, refusal: str) -> bool:
        """Whether a refusal names two features of the case that do not go together."""
        named = {
            name
            for name, value in self.values().items()
            if value in _SAID_AS and (value != AXES[name][0] or value in ("pipelined", "none"))
            if re.search(_SAID_AS[value], refusal)
        }
        return len(named) >= 2
