"""The checked job on hosts that are killed, stopped, unplugged and without disk: its history is sound."""

from __future__ import annotations

from pathlib import Path

import pytest
from tool_modules import load_tool

from netstack.testing.namespaces import Hosts
from netstack.testing.simulate.history import APPLIED, SINK

ROOT = Path(__file__).resolve().parents[2]
tool = load_tool("torment")


def test_a_seed_plans_the_same_each_time_and_every_kind_once() -> None:
    for seed in range(50):
        faults = tool.planned(seed, hosts=3)
        assert faults == tool.planned(seed, hosts=3)
        assert {fault.kind for fault in faults} == set(tool.KINDS)
        assert all(fault.host > 0 for fault in faults if fault.kind == tool.CUT), "host 0 has who looks"


@pytest.mark.root
@pytest.mark.long
@pytest.mark.xdist_group("hosts")
def test_its_history_is_sound_whatever_happens_and_a_damaged_one_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with Hosts(3) as hosts:
        verdict = tool.torment(hosts, 1, tmp_path)
    assert verdict.anomalies == ()
    assert tool.KILL in {fault.kind for fault in verdict.faults}
    assert verdict.lives > 2 * tool.SOURCES, "nothing was restarted"
    # The same checker, the same history: one record less, one twice.
    life = min(life for life, _ in verdict.results[SINK].values())
    place = max(number for number, event in enumerate(verdict.events) if event.life == life and event.what == APPLIED)
    before, record, after = verdict.events[:place], verdict.events[place], verdict.events[place + 1 :]
    (lost,) = tool.judged([*before, *after], verdict.results, "aligned")
    assert (lost.kind, "record" in str(lost)) == ("lost", True)
    kinds = {anomaly.kind for anomaly in tool.judged([*before, record, record, *after], verdict.results, "aligned")}
    assert "repeated" in kinds
