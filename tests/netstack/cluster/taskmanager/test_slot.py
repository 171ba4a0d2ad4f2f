"""A slot whose event loop is blocked is reported with its place, also if only a second request finds the place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from netstack.cluster.control.reports import NO_PLACE
from netstack.cluster.taskmanager.slot import BLOCKED_S, Slot, SlotJob

PLACE = {"operator": "read", "file": "/jobs.py", "line": 7, "function": "read"}


@pytest.mark.trio
@pytest.mark.parametrize(
    ("places", "wanted"),
    [
        ([PLACE], [(2.0, PLACE), (4.0, PLACE), (6.0, PLACE)]),
        ([{}, PLACE], [(3.0, PLACE), (5.0, PLACE)]),
        ([{}, {}, {}, PLACE], [(4.0, {}), (6.0, PLACE)]),
    ],
)
async def test_a_blocked_slot_is_reported_with_its_place(
    places: list[dict[str, Any]], wanted: list[tuple[float, dict[str, Any]]], caplog: pytest.LogCaptureFixture
) -> None:
    nothing: Any = None
    slot = Slot(0, "tcp://127.0.0.1:1", 1, None, nothing, nothing, nothing)
    reports: list[tuple[float, dict[str, Any]]] = []
    owner: Any = SimpleNamespace(on_blocked=lambda _, blocked_s, where: reports.append((blocked_s, where)))
    slot.jobs["job"] = SlotJob(nothing, owner)
    left = [*places]

    async def stack() -> list[Any]:
        return [left.pop(0)]

    child: Any = SimpleNamespace(silent_s=0.0, stack=stack, code=SimpleNamespace(located=lambda frames: frames[0]))
    slot._child = child
    for second in range(7):
        child.silent_s = float(second)
        await slot.look(cancellation_timeout_s=60.0)
    assert reports == wanted
    where = "operator 'read', /jobs.py:7 in read" if wanted[0][1] else NO_PLACE
    assert caplog.messages == [f"slot 0 is blocked: its event loop is at {where}"]
    child.silent_s = BLOCKED_S / 2
    await slot.look(cancellation_timeout_s=60.0)
    assert reports[len(wanted) :] == [(0.0, {})]
