"""Entry points of an installed distribution that are not what they should be: errors by name, and nothing else ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netstack.base.errors import ConfigError
from netstack.base.transport import transport_for
from netstack.cluster.taskmanager import code
from netstack.cluster.taskmanager.code import AllowList

TRANSPORTS = {
    "raises": ("odd_raises:T", r"cannot be loaded: RuntimeError: \\x1b\[2J\\n"),
    "exits": ("odd_exits:T", "cannot be loaded: SystemExit: 3"),
    "syntax": ("odd_syntax:T", "cannot be loaded: SyntaxError"),
    "missing": ("odd_missing:T", "cannot be loaded: ModuleNotFoundError"),
    "lacks": ("odd:Nothing", "cannot be loaded: AttributeError"),
    "thing": ("odd:Thing", "'odd:Thing', is a Thing instead of a Transport"),
    "needs": ("odd:Needs", "cannot be loaded: TypeError"),
    "empty": ("", "cannot be loaded: AttributeError"),
    "tcp": ("odd:Thing", ""),
    "\u202eeman": ("odd:Thing", "instead of a Transport"),
}
INVOKABLES = {
    "good": "odd.jobs",
    "empty": "",
    "attribute": "odd:Thing",
    "all": "*",
    "dots": "..",
    "escape": "odd\x1b[2J",
}
MODULES = {
    "odd": "class Thing: pass\nclass Needs:\n    def __init__(self, more): pass\n",
    "odd_raises": "raise RuntimeError('\\x1b[2J\\n' * 10_000)",
    "odd_exits": "import sys; sys.exit(3)",
    "odd_syntax": "def (",
}


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution is installed whose entry points are odd."""
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    metadata = tmp_path / "odd-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    lines = ["[netstack.transports]", *(f"{name} = {value}" for name, (value, _) in TRANSPORTS.items())]
    lines += ["[netstack.invokables]", *(f"{name} = {value}" for name, value in INVOKABLES.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    code._declared.cache_clear()
    yield
    code._declared.cache_clear()
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("odd")
def test_a_transport_that_cannot_be_loaded_is_an_error_by_name() -> None:
    """One that calls `sys.exit` ended the process of whoever received its address."""
    for scheme, (_, text) in TRANSPORTS.items():
        if scheme == "tcp":
            assert type(transport_for("tcp://127.0.0.1:1")).__module__ == "netstack_transports.tcp"
            continue
        with pytest.raises(ConfigError, match=text) as caught:
            transport_for(f"{scheme}://x")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1200
    with pytest.raises(ConfigError, match=r"scheme 'x{50}.*known: \\u202eeman, empty") as caught:
        transport_for(f"{'x' * 100_000}://x")
    assert len(str(caught.value)) < 400


@pytest.mark.usefixtures("odd")
def test_what_is_not_a_module_is_allowed_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    """An empty name kept every TaskManager from starting, and the error blamed --allow."""
    allowed = AllowList(["mine."])
    assert "odd.jobs:" in allowed.prefixes
    assert {*allowed.prefixes} & {":", "*:", "*", "..:", "odd:Thing:"} == set()
    assert len(caplog.records) == len(INVOKABLES) - 1
    assert all(each.getMessage().isprintable() for each in caplog.records)
