"""The cost of the codecs: every dialect has one, and the table shows it."""

from __future__ import annotations

import pytest

from netstack.bench import codec_cost


def test_every_dialect_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(codec_cost, "LOOPS", 2)
    costs = codec_cost.measure(turns=2)
    assert list(costs) == ["netstack", "flink-2.3.0"]
    assert all(cost.codec > 0 and cost.path > 0 for cost in costs.values())
    monkeypatch.setattr(codec_cost, "measure", lambda: costs)
    codec_cost.main()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["ns", "codec", "path"]
