"""`run --hosts` and `sweep --hosts`: what the command line makes of them, against daemons in another thread."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from netstack.base.errors import ConnectionLost, NetstackError
from netstack.base.tls.certificates import make_host
from netstack.base.tls.tls_files import FOLDER_VARIABLE
from netstack.cluster.taskmanager.config import TaskManagerConfig
from netstack.cluster.taskmanager.runner import open_taskmanager
from netstack.network.connection.authentication import Secret
from netstack_bench.cli import main
from netstack_bench.places.hosts.coordinator import run_over_hosts
from netstack_bench.places.hosts.spec import MeshSpec


@pytest.fixture(name="secret_file", scope="module")
def _secret_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secret") / "secret"
    path.write_bytes(Secret.generate().reveal())
    path.chmod(0o600)
    return path


@pytest.fixture(name="hosts", scope="module")
def _hosts(secret_file: Path) -> Iterator[str]:
    """Two daemons that share a secret, as `--hosts` names them."""
    with two_daemons(secret_file, "tcp://127.0.0.1:0") as urls:
        yield ",".join(url.partition("://")[2] for url in urls)


@contextlib.contextmanager
def two_daemons(secret_file: Path, listen: str) -> Iterator[list[str]]:
    places: list[str] = []
    listening = threading.Event()
    stop: list[Any] = []

    async def serve() -> None:
        config = TaskManagerConfig(listen=listen, slots=2, secret=Secret.from_file(secret_file))
        async with open_taskmanager(config) as one, open_taskmanager(config) as other:
            places.extend(daemon.address for daemon in (one, other))
            scope = trio.CancelScope()
            stop.extend((trio.lowlevel.current_trio_token(), scope))
            listening.set()
            with scope:
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    assert listening.wait(120)
    yield places
    stop[0].run_sync_soon(stop[1].cancel)
    thread.join(10)


def test_a_run_prints_the_matrix_before_and_the_rows_after(
    hosts: str, secret_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["run", "--hosts", hosts, "--secret-file", str(secret_file), "--records", "2000"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "all-to-all: 2 sources to 2 sinks" in err
    assert "(local)" in out
    assert "payload MB/s" in out


def test_a_run_prints_one_json_document(hosts: str, secret_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--hosts", hosts, "--secret-file", str(secret_file), "--records", "500", "--relay", "--json"]
    code = main([*arguments, "--repeats", "2"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert document["delivered"] is True
    assert document["repeats"] == 2
    assert document["engine_kind"] == "hosts"
    assert document["settings"]["relay"] is True
    assert len(document["pairs"]) == 4


def test_a_sweep_keeps_hosts_and_pairs(
    hosts: str, secret_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    arguments = ["sweep", "--hosts", hosts, "--secret-file", str(secret_file), "--timeouts", "1ms", "--channels", "1"]
    arguments += ["--record-sizes", "8", "--seconds", "0.05", "--latency-rate", "200", "--json"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["made"] == 2
    assert all(len(row["hosts"]) == 2 and len(row["pairs"]) == 4 for row in document["rows"])
    assert (tmp_path / "report.html").exists()
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["made"] == 0, "finished runs are not made again"


def test_a_run_over_tls(
    secret_file: Path,
    authority: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("cryptography")
    make_host(tmp_path / "host", authority, ["127.0.0.1"])
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "host"))
    with two_daemons(secret_file, "tls+tcp://127.0.0.1:0") as urls:
        words = ["run", "--hosts", ",".join(urls), "--secret-file", str(secret_file), "--records", "500", "--json"]
        code = main(words)
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert document["settings"]["transport"] == "tls"
    assert len(document["pairs"]) == 4
    assert document["wire_bytes"] > 0


def test_who_lacks_the_secret_is_told(hosts: str) -> None:
    with pytest.raises(NetstackError, match="shared secret"):
        run_over_hosts(MeshSpec(hosts=tuple(hosts.split(",")), records=1))


def test_a_host_that_is_not_there_is_named() -> None:
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1\b"):
        run_over_hosts(MeshSpec(hosts=("127.0.0.1:1",), records=1))


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["run", "--hosts", "a:1", "--peer", "raw"], "--peer with --hosts"),
        (["run", "--relay"], "--relay goes with --hosts"),
        (["run", "--same-build"], "--same-build goes with --hosts"),
        (["sweep", "--same-build"], "--same-build go with --hosts"),
        (["run", "--secret-file", __file__], "--secret-file goes with --hosts"),
        (["run", "--hosts", "a"], "not HOST:PORT"),
        (["run", "--hosts", ","], "--hosts is empty"),
        (["run", "--hosts", "a:1", "--round-trip", "5ms"], "--jitter with --hosts"),
        (["run", "--hosts", "a:1", "--transport", "unix"], "--transport unix with --hosts"),
        (["run", "--hosts", "a:1", "--secret-file", __file__], "secret file"),
        (["sweep", "--hosts", "a:1", "--round-trip", "0,5ms"], "--jitter with --hosts"),
        (["sweep", "--hosts", "a:1", "--network", "1Gbit:5ms"], "--jitter with --hosts"),
        (["sweep", "--place", "local", "--relay"], "--relay"),
    ],
)
def test_bad_usage_is_one_sentence(arguments: list[str], reported: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert reported in capsys.readouterr().err
