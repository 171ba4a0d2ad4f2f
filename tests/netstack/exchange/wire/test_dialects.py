"""Dialects by name."""

from __future__ import annotations

import pytest

from netstack.base.errors import ConfigError
from netstack.exchange.wire.dialects import FLINK, NATIVE, Dialect, dialect_named


def named(name: str) -> Dialect:
    return dialect_named(name, segment_size_bytes=256, new_id=lambda: bytes(16))


def test_every_connection_of_flinks_has_a_codec_of_its_own() -> None:
    flink = named(FLINK)
    assert flink.consumer_codec() is not flink.consumer_codec()
    assert flink.producer_codec() is not flink.producer_codec()
    native = named(NATIVE)
    assert native.consumer_codec() is native.producer_codec()


def test_an_unknown_dialect() -> None:
    with pytest.raises(ConfigError, match=r"dialect 'flink'; give 'netstack' or 'flink-2\.3\.0'"):
        named("flink")
