"""Which resource profile may serve which request, so that a batch of requests can be matched as a whole.

Takes: the profiles of requests and of slots. Gives: a mapping by counts, or None where not every request can be served.

Rules: an unknown request takes any slot, a slot of any profile serves every request, else the two must be equal: a
bigger slot does not serve a smaller request. Exact pairs come first, then concrete requests from slots of any profile,
then unknown requests from whatever is left. What nobody needs is flexible: a request may take it instead, and gives
back one of its own. So no choice that the mapping allows can strand another request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import final

from ...errors import ConfigError
from ..graph.job_graph import ANY_PROFILE, UNKNOWN_PROFILE, ResourceProfile


def can_serve(slot: ResourceProfile, request: ResourceProfile) -> bool:
    """Whether a slot of one profile will do for a request of another."""
    return request == UNKNOWN_PROFILE or slot in (ANY_PROFILE, request)


@final
class ResourceMapping:
    """How many slots of each profile each kind of request may still take."""

    __slots__ = ("_flexible", "_reserved")

    def __init__(self, reserved: dict[ResourceProfile, Counter[ResourceProfile]], flexible: Counter[ResourceProfile]):
        self._reserved = reserved
        self._flexible = flexible

    @property
    def reserved(self) -> dict[ResourceProfile, dict[ResourceProfile, int]]:
        """For each profile that is requested, the slots kept for it: number by profile."""
        return {request: dict(+slots) for request, slots in self._reserved.items()}

    @property
    def flexible(self) -> dict[ResourceProfile, int]:
        """Slots that no request depends on: number by profile."""
        return dict(+self._flexible)

    def allows(self, request: ResourceProfile, slot: ResourceProfile) -> bool:
        """Whether a request may take a slot, by their profiles, without stranding another."""
        return can_serve(slot, request) and (self._reserved[request][slot] > 0 or self._flexible[slot] > 0)

    def take(self, request: ResourceProfile, slot: ResourceProfile) -> None:
        """Counts a slot as taken. It must be allowed."""
        reserved = self._reserved[request]
        if reserved[slot] > 0:
            reserved[slot] -= 1
            return
        self._flexible[slot] -= 1
        given_back = next(profile for profile, count in reserved.items() if count > 0)
        reserved[given_back] -= 1
        self._flexible[given_back] += 1


def map_resources(
    requests: Iterable[ResourceProfile], slots: Iterable[ResourceProfile] | Counter[ResourceProfile]
) -> ResourceMapping | None:
    """Sets slots aside for every request, or finds that it cannot be done.

    Args:
        requests: a profile per request.
        slots: a profile per free slot, or how many there are of each; their order decides which of them serve unknown
            requests.

    Returns:
        The mapping; None if there are no requests, or one of them would go without.

    Raises:
        ConfigError: a request of the profile `any`, or a slot of the profile `unknown`.
    """
    wanted, free = _counted(requests), _counted(slots)
    if ANY_PROFILE in wanted:
        raise ConfigError("a slot is requested with the profile `any`; ask for a concrete profile, or `unknown`")
    if UNKNOWN_PROFILE in free:
        raise ConfigError("a slot has the profile `unknown`; give it a concrete profile, or `any`")
    if not wanted or wanted.total() > free.total():
        return None
    reserved: dict[ResourceProfile, Counter[ResourceProfile]] = {profile: Counter() for profile in wanted}
    for profile in wanted:
        _reserve(reserved, wanted, free, profile, profile)
    for profile in wanted:
        if profile != UNKNOWN_PROFILE:
            _reserve(reserved, wanted, free, profile, ANY_PROFILE)
    if UNKNOWN_PROFILE in wanted:
        for slot in free:
            _reserve(reserved, wanted, free, UNKNOWN_PROFILE, slot)
    return None if wanted.total() else ResourceMapping(reserved, free)


def _counted(profiles: Iterable[ResourceProfile]) -> Counter[ResourceProfile]:
    """How often each occurs, in order; most are one object, which is hashed once."""
    if isinstance(profiles, Counter):
        return Counter(profiles)
    given = list(profiles)
    objects = {id(profile): profile for profile in given}
    counted: Counter[ResourceProfile] = Counter()
    for identity, count in Counter(map(id, given)).items():
        counted[objects[identity]] += count
    return counted


def _reserve(
    reserved: dict[ResourceProfile, Counter[ResourceProfile]],
    wanted: Counter[ResourceProfile],
    free: Counter[ResourceProfile],
    request: ResourceProfile,
    slot: ResourceProfile,
) -> None:
    """Sets as many slots of one profile aside for one kind of request as it still wants and there are."""
    count = min(wanted[request], free[slot])
    if count:
        reserved[request][slot] += count
        wanted[request] -= count
        free[slot] -= count
