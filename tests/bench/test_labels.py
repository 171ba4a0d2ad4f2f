from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from netstack_bench.labels import plain, setting, setting_name, setting_text
from netstack_bench.spec import RunSpec


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("buffer_timeout_s", 0.1, "buffer timeout 100 ms"),
        ("buffer_timeout_s", None, "buffer timeout none"),
        ("round_trip_s", 0.0, "round trip 0"),
        ("record_bytes", 1024, "record size 1 KiB"),
        ("segment_size_bytes", 32768, "segment size 32 KiB"),
        ("link_bytes_per_s", 100 << 20, "link rate 100 MiB/s"),
        ("rate_per_s", 1000.0, "rate per s 1000"),
        ("exclusive_buffers", 0, "exclusive buffers 0"),
        ("credit", False, "credit off"),
        ("checksum", True, "checksum yes"),
        ("emit", "batch", "emit batch"),
    ],
)
def test_settings_in_words(name: str, value: Any, words: str) -> None:
    assert f"{setting_name(name)} {setting_text(name, value)}" == words


def test_every_setting_has_words() -> None:
    for field in dataclasses.fields(RunSpec):
        assert setting_name(field.name)
        assert setting_text(field.name, field.default)


def test_a_row_older_than_a_setting_has_its_default() -> None:
    assert setting({}, "credit") is True
    assert setting({"settings_credit": None}, "credit") is True
    assert setting({"settings_credit": False}, "credit") is False
    assert setting({"settings_buffer_timeout_s": None}, "buffer_timeout_s") is None
    assert setting({}, "buffer_timeout_s") == 0.1
    assert setting({"settings_of_the_future": 1}, "of_the_future") == 1


def test_plain_text_of_any_value() -> None:
    assert [plain(value) for value in (3.0, 0.5, True, "x")] == ["3", "0.5", "yes", "x"]
