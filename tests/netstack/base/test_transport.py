"""Transports are found by the scheme of a URL, among those that installed distributions register."""

from __future__ import annotations

from typing import Any

import pytest

from netstack.base.errors import ConfigError
from netstack.base.transport import ByteStream, Transport, transport_for


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:0", "unix:///x", "memory://x"])
def test_known_schemes(url: str) -> None:
    assert isinstance(transport_for(url), Transport)


def test_a_transport_is_made_once() -> None:
    assert transport_for("memory://a") is transport_for("memory://b")


@pytest.mark.parametrize("url", ["127.0.0.1:6121", "", "tcp:127.0.0.1:1"])
def test_a_url_needs_a_scheme(url: str) -> None:
    with pytest.raises(ConfigError, match=r"has no scheme; write it like tcp://127.0.0.1:6121") as caught:
        transport_for(url)
    assert repr(url) in str(caught.value)


@pytest.mark.parametrize("url", [None, 5, b"tcp://127.0.0.1:0"])
def test_a_url_is_text(url: Any) -> None:
    with pytest.raises(ConfigError, match=r"give it as str, like tcp://127.0.0.1:6121"):
        transport_for(url)


@pytest.mark.parametrize("scheme", ["http", "TCP", ""])
def test_unknown_schemes_name_the_known_ones(scheme: str) -> None:
    with pytest.raises(ConfigError, match=r"known: .*memory.*tcp.*unix"):
        transport_for(f"{scheme}://host:1")


def test_a_stream_has_no_facts_unless_it_says_so() -> None:
    assert ByteStream.tcp_facts(object()) == {}  # type: ignore[arg-type]
