"""What the URL of an impaired stream may say, and what it is told when it says something else."""

from __future__ import annotations

import pytest
import trio

from netstack.base.errors import ConfigError
from netstack.base.transport import transport_for
from netstack_transports._parameters import Parameters, split_url


@pytest.mark.parametrize(
    ("url", "inner"),
    [
        ("impaired+tcp://[::1]:0", "tcp://[::1]:0"),
        ("impaired+unix:///path/to?delay=1s", "unix:///path/to"),
        ("impaired+impaired+memory://a?delay=1s", "impaired+memory://a"),
    ],
)
def test_the_transport_underneath(url: str, inner: str) -> None:
    assert split_url(url)[0] == inner


def test_everything_at_once() -> None:
    query = "delay=5ms&rate=100MiB&queue=1MiB&cut=10MB&name=lab_1.a-b&loss=0.01&jitter=1ms&congestion=cubic"
    parameters = Parameters(0.005, 100 << 20, 1 << 20, 10_000_000, "lab_1.a-b", 0.01, 0.001, "cubic")
    assert split_url(f"impaired+tcp://127.0.0.1:0?{query}") == ("tcp://127.0.0.1:0", query, parameters)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("dely=5ms", "parameter 'dely' is unknown; known are delay, rate, queue, cut, loss, jitter, congestion, name"),
        ("delay", "delay=; give a duration such as 0, 250us, 5ms or 1.5s"),
        ("delay=5", "delay=5; give a duration such as 0, 250us, 5ms"),
        ("delay=5x", "delay=5x; give a duration"),
        ("delay=5parsecs", "delay=5parsecs; give a duration"),
        ("delay=-5ms", "delay=-5ms; give a duration"),
        (f"delay={'9' * 400}s", "; give a duration"),
        ("delay=1s&delay=1s", "delay is given twice"),
        (
            "rate=0",
            "rate=0; give a rate such as 200Mbit, 25MB or 64KiB, per second; or none",
        ),
        ("rate=1.5B", "rate=1.5B; give"),
        ("rate=fast", "rate=fast; give"),
        (f"rate={'9' * 400}", "; give"),
        ("queue=none", "queue=none; give a size"),
        ("queue=0", "queue=0; give a size"),
        ("cut=0", "cut=0; give a size"),
        ("cut=5ms", "cut=5ms; give a size"),
        ("congestion=bbr", "congestion=bbr; give cubic or none"),
        ("name=", "name=; give letters, digits, dots, dashes and underscores"),
        ("name=a/b", "name=a/b; give letters"),
    ],
)
def test_parameters_that_cannot_be(query: str, message: str) -> None:
    address = f"impaired+memory://parameters?{query}"
    with pytest.raises(ConfigError) as caught:
        split_url(address)
    assert message in str(caught.value)
    assert repr(address) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "delay_s"),
    [
        ("0", 0),
        ("0ms", 0),
        ("250us", 0.00025),
        ("100ns", 1e-7),
        (".5S", 0.5),
        ("1.5ms", 0.0015),
        ("2min", 120),
        ("1h", 3600),
    ],
)
def test_durations(text: str, delay_s: float) -> None:
    assert split_url(f"impaired+memory://a?delay={text}")[2].delay_s == delay_s


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("none", None),
        ("8", 8),
        ("512B", 512),
        ("1.5KiB", 1536),
        ("100MiB", 100 << 20),
        ("1gib", 1 << 30),
        ("10MB", 10**7),
    ],
)
def test_sizes(text: str, rate: int | None) -> None:
    parameters = split_url(f"impaired+memory://a?rate={text}&cut={text}")[2]
    assert (parameters.rate_bytes_per_s, parameters.cut_bytes) == (rate, rate)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("impaired://x", "names no transport to impair; write it like impaired+tcp://127.0.0.1:6121"),
        ("impaired+nope://x", "scheme 'nope'"),
        ("impaired+tcp://x?delay=1s", "needs a host and a port"),
    ],
)
def test_addresses_that_cannot_be(address: str, message: str) -> None:
    transport = transport_for(address)
    for attempt in (transport.listen, transport.connect):
        with pytest.raises(ConfigError) as caught:
            trio.run(attempt, address)
        assert message in str(caught.value)
