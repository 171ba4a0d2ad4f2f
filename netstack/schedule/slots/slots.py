"""Slots and requests for them, as values.

Takes: names and numbers. Gives: frozen data to whatever matches, pools or shares slots.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, final

from ..graph.job_graph import ANY_PROFILE, UNKNOWN_PROFILE, ResourceProfile


class LoadBalanceMode(enum.Enum):
    """How tasks are spread over TaskManagers."""

    NONE = "none"
    """Local exchanges first; slots are taken as they come."""
    SLOTS = "slots"
    """Local exchanges first; every TaskManager gives about the same share of its slots."""
    TASKS = "tasks"
    """Every slot gets about as many tasks, then every TaskManager."""


@final
@dataclass(frozen=True, slots=True)
class Location:
    """Where a task can be.

    Attributes:
        taskmanager: its name.
        host: the machine that it runs on; TaskManagers of one machine are near each other. Empty is near nothing.
    """

    taskmanager: str
    host: str = ""


@final
@dataclass(frozen=True, slots=True)
class PhysicalSlot:
    """A slot that a TaskManager offers.

    Attributes:
        location: whose it is.
        index: which of its slots, from 0.
        profile: what it offers.
    """

    location: Location
    index: int
    profile: ResourceProfile = ANY_PROFILE

    def __hash__(self) -> int:
        """These two tell slots apart; ten thousand of them are looked up at once."""
        return hash((self.location.taskmanager, self.index))


@final
@dataclass(frozen=True, slots=True)
class SlotRequest:
    """An execution slot sharing group that needs a slot.

    Attributes:
        group: its number, by which the caller knows the request.
        profile: what it needs.
        load: how many tasks it has.
        preferred: where it would like to be: the preferred locations of its members, one after the other.
        taskmanager: the only one whose slots will do; empty: any.
    """

    group: int
    profile: ResourceProfile = UNKNOWN_PROFILE
    load: int = 1
    preferred: tuple[Location, ...] = ()
    taskmanager: str = ""


@final
@dataclass(frozen=True, slots=True)
class SlotWish:
    """What a job says of its slots, so that whoever grants them can balance tasks.

    Attributes:
        loads: for each request that waits, how many tasks it has.
        slots: of each TaskManager, how many slots of the job tasks have; those it has besides are free for requests.
        tasks: on each TaskManager, how many tasks of the job there are.
    """

    loads: tuple[int, ...]
    slots: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)


@final
class SlotMatch(NamedTuple):
    """A request and the slot that it gets."""

    request: SlotRequest
    slot: PhysicalSlot
