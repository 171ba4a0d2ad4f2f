"""Slots and slot requests, as frozen values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, final

from ..graph.job_graph import ANY_PROFILE, UNKNOWN_PROFILE, ResourceProfile


class LoadBalanceMode(enum.Enum):
    """How tasks are spread over TaskManagers."""

    NONE = "none"
    """Local exchanges first; slots are taken in the order of their arrival."""
    SLOTS = "slots"
    """Local exchanges first; about the same share of slots is used on every TaskManager."""
    TASKS = "tasks"
    """Tasks are spread evenly over slots, then over TaskManagers."""


@final
@dataclass(frozen=True, slots=True)
class Location:
    """The location of a task.

    Attributes:
        host: the machine it runs on; TaskManagers of one machine are near each other. Empty: near none.
    """

    taskmanager: str
    host: str = ""


@final
@dataclass(frozen=True, slots=True)
class PhysicalSlot:
    """A slot that a TaskManager offers.

    Attributes:
        index: among its slots, from 0.
        profile: what it offers.
    """

    location: Location
    index: int
    profile: ResourceProfile = ANY_PROFILE

    def __hash__(self) -> int:
        """Hashes only what identifies a slot; ten thousand slots are looked up at once."""
        return hash((self.location.taskmanager, self.index))


@final
@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A slot request of an execution slot sharing group.

    Attributes:
        group: its number; identifies the request.
        profile: what it needs.
        preferred: the preferred locations of its members, one after the other.
        taskmanager: the only TaskManager whose slots it accepts; empty: any.
    """

    group: int
    profile: ResourceProfile = UNKNOWN_PROFILE
    load: int = 1
    preferred: tuple[Location, ...] = ()
    taskmanager: str = ""


@final
@dataclass(frozen=True, slots=True)
class SlotDemand:
    """The slots that a job requests and holds, so that the JobManager can balance tasks.

    Attributes:
        loads: for each pending request, its number of tasks.
        slots: number of slots of each TaskManager that tasks of the job use; its other slots are free for requests.
    """

    loads: tuple[int, ...]
    slots: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)


@final
class SlotMatch(NamedTuple):
    """A request and the slot that it gets."""

    request: SlotRequest
    slot: PhysicalSlot
