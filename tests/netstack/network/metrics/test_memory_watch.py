"""The warning about requested network memory: once when it is reached or changes, and once when it is over."""

from __future__ import annotations

import pytest

from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.network.gate_opening import MemoryWatch


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    actual = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return actual


def test_it_warns_once_for_each_change_and_says_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="netstack")
    network = NetworkBufferPool(10, 1000)
    watch = MemoryWatch()
    network.create_pool(1, 9)
    watch.check(network.statistics())
    assert logged(caplog) == []
    whole = network.create_pool(1, 1)
    watch.check(network.statistics())
    assert logged(caplog) == []  # all of it is requested, and nothing is missing
    more = network.create_pool(2, None)  # counts as 4
    watch.check(network.statistics())
    ((level, text),) = logged(caplog)
    assert level == "WARNING"
    assert "140 % of it is requested (14 of 10 segments, 4 are missing); throughput is reduced" in text
    assert "raise memory_bytes by 4000" in text
    watch.check(network.statistics())
    assert logged(caplog) == []
    more.destroy()
    watch.check(network.statistics())
    assert logged(caplog) == [("INFO", "network memory suffices again: 100 % of it is requested")]
    whole.destroy()
    watch.check(network.statistics())
    assert logged(caplog) == []
