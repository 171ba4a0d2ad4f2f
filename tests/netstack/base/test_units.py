from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import ConfigError
from netstack.base.units import (
    format_count,
    format_duration,
    format_latency,
    format_link_rate,
    format_size,
    parse_amount,
    parse_duration,
    parse_link_rate,
    parse_size,
    three_digits,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("100ms", 0.1),
        ("1s", 1.0),
        ("1.5 s", 1.5),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("20NS", 2e-8),
        ("2min", 120.0),
        ("1h", 3600.0),
        ("0", 0.0),
        ("0.0", 0.0),
        ("0ms", 0.0),
        (".5ms", 0.0005),
        ("1_000ms", 1.0),
        ("none", None),
        (" None ", None),
    ],
)
def test_durations_are_read_exactly(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@given(st.decimals(min_value="1e-3", max_value=10_000, places=3), st.sampled_from(["ms", "s", "min"]))
def test_a_number_without_a_unit_is_refused_with_both_spellings(number: Decimal, unit: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_duration(str(number))
    assert all(each in str(refused.value) for each in (f"{number}ms", f"{number}s"))
    assert parse_duration(str(number), unit=unit) == parse_duration(f"{number}{unit}")


@pytest.mark.parametrize(
    "text", ["", "5x", "ms", "-1s", "1 parsec", "1s2ms", "nan", "inf", "1e3s", "1__0s", "9" * 40 + "s"]
)
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--buffer-timeout"):
        parse_duration(text, what="--buffer-timeout")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8", 8),
        ("512B", 512),
        ("32KiB", 32768),
        ("32kib", 32768),
        ("1.5 MiB", 1572864),
        ("1GiB", 1 << 30),
        ("64kB", 64000),
    ],
)
def test_sizes_are_read_exactly(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(("text", "amount"), [("812", 812), ("10k", 10_000), ("1.5M", 1_500_000), ("2 G/s", 2 * 10**9)])
def test_amounts_are_read_exactly(text: str, amount: int) -> None:
    assert parse_amount(text) == amount


@pytest.mark.parametrize("text", ["", "k", "-1", "10q", "nan", "1e3", "5s"])
def test_what_is_no_amount_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--rate"):
        parse_amount(text, what="--rate")


@pytest.mark.parametrize("text", ["", "KiB", "-1", "1.5", "0.3KiB", "8 bytes", "1e3", "nan", "9" * 40])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--record-bytes"):
        parse_size(text, what="--record-bytes")


@given(st.one_of(st.none(), st.just(0.0), st.floats(min_value=1e-9, max_value=1e6)), st.sampled_from(["", " "]))
def test_a_duration_written_is_read_back(seconds: float | None, space: str) -> None:
    assert parse_duration(format_duration(seconds, space=space)) == seconds


@given(st.integers(min_value=0, max_value=1 << 50), st.sampled_from(["", " "]))
def test_a_size_written_is_read_back(size: int, space: str) -> None:
    assert parse_size(format_size(size, space=space)) == size


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("200MB/s", 200_000_000),
        ("25MB", 25_000_000),
        ("64KiB/s", 65536),
        ("1500B", 1500),
        ("200Mbit", 25_000_000),
        ("1.5 Gbit/s", 187_500_000),
        ("100Mbps", 12_500_000),
        ("10GbE", 1_250_000_000),
        ("800kbit", 100_000),
    ],
)
def test_rates_of_links_are_bytes_per_second(text: str, rate: int) -> None:
    assert parse_link_rate(text) == rate
    assert parse_link_rate(format_link_rate(rate)) == rate


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "'fast': write a rate such as 100MB/s, 100Mbit or 10GbE"),
        ("0MB/s", "give more than 0"),
        ("0", "give more than 0"),
        ("200", "'200' has no unit: write 200Mbit or 200MB, per second"),
        ("200Mb/s", "'200Mb/s' may count bits or bytes: write 200Mbit or 200MB, per second"),
        ("10ms", "write a rate such as"),
        ("9" * 100 + "Gbit", "is no rate of a network"),
    ],
)
def test_what_is_no_rate_of_a_link_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_link_rate(text)


@given(st.integers(1, 1 << 50))
def test_a_rate_written_is_read_back(rate: int) -> None:
    assert parse_link_rate(format_link_rate(rate)) == rate


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.1, "100ms"), (1.0, "1s"), (0.0, "0"), (None, "none"), (0.00025, "250us"), (1.5, "1.5s")]
)
def test_durations_are_written_as_people_do(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (999.4, "999"), (4_650_000, "4.65 M"), (812_345, "812 k"), (999_999, "1 M"), (2.1e9, "2.1 G")],
)
def test_counts(value: float, text: str) -> None:
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(52.13, "52.1 us"), (1250, "1.25 ms"), (999_999, "1 s"), (2.5e6, "2.5 s"), (0.4567, "0.457 us")]
)
def test_latencies(value: float, text: str) -> None:
    assert format_latency(value) == text


@given(st.floats(min_value=1e-6, max_value=1e12))
def test_three_digits_are_within_half_a_percent(value: float) -> None:
    assert float(three_digits(value).replace(",", "")) == pytest.approx(value, rel=0.00501)
