"""`netstack doctor`: what it looks at on a machine of ours, and on machines that a test made up."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path

import pytest

from netstack.cli import main
from netstack.cli.doctor import (
    backlog,
    clock,
    congestion_control,
    cpus,
    extras,
    java,
    open_files,
    port,
    secret_file,
    socket_buffers,
)
from netstack.network.connection.authentication import Secret


def machine(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_this_machine_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", "0", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    actual = {check["name"]: check for check in document["checks"]}
    assert document["ok"]
    assert {"Python", "Java", "CPUs", "open files", "port 0", "secret file", "pyarrow"} <= actual.keys()
    assert all(check["verdict"] == "ok" or check["found"] for check in actual.values())


def test_a_secret_that_cannot_be_used_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(Secret.generate().reveal())
    path.chmod(0o644)
    assert main(["doctor", "--port", "0", "--secret-file", str(path)]) == 1
    monkeypatch.setenv("NETSTACK_SECRET_FILE", str(path))
    assert main(["doctor", "--port", "0"]) == 1
    assert "chmod 600" in " ".join(capsys.readouterr().out.split())
    path.chmod(0o600)
    assert secret_file(path).verdict == "ok"
    assert secret_file(tmp_path / "none").verdict == "fail"
    assert "head -c 32 /dev/urandom" in secret_file(None).advice


def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        finding = port(number, "127.0.0.1")
    assert (finding.verdict, f"sport = :{number}" in finding.advice) == ("warn", True)
    assert port(0).verdict == "ok"


def test_limits_of_sockets(tmp_path: Path) -> None:
    ipv4 = "proc__sys__net__ipv4__"
    small = {f"{ipv4}tcp_wmem": "4096\t16384\t212992\n", f"{ipv4}tcp_rmem": "4096 131072 6291456"}
    root = machine(
        tmp_path, **small, proc__sys__net__core__somaxconn="128\n", **{f"{ipv4}tcp_congestion_control": "bbr\n"}
    )
    send, receive = socket_buffers(root)
    assert (send.verdict, send.advice) == ("warn", 'for long links: sysctl -w net.ipv4.tcp_wmem="4096 16384 4194304"')
    assert (receive.verdict, receive.found) == ("ok", "grows to 6 MiB")
    assert backlog(root).advice == "sysctl -w net.core.somaxconn=1024"
    assert "net.ipv4.tcp_congestion_control=cubic" in congestion_control(root).advice
    assert [each.verdict for each in socket_buffers(tmp_path / "nothing")] == ["note", "note"]


def test_few_open_files_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 2048))
    assert (open_files().verdict, open_files().advice) == (
        "warn",
        "ulimit -n 2048; in a systemd unit: LimitNOFILE=65536",
    )


def test_stolen_time_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    times = iter(["cpu 100 0 100 800 0 0 0 0 0 0\n", "cpu 150 0 100 1000 0 0 0 50 0 0\n"])
    root = machine(tmp_path, proc__stat=next(times))
    monkeypatch.setattr("time.sleep", lambda _: machine(root, proc__stat=next(times)))
    finding = cpus(root)
    assert finding.found.endswith("17% of their time stolen")
    assert finding.verdict == "warn"


def test_a_slow_clock_is_told(tmp_path: Path) -> None:
    place = "sys__devices__system__clocksource__clocksource0__current_clocksource"
    first, *_ = clock(machine(tmp_path, **{place: "hpet\n"}))
    assert (first.verdict, first.found) == ("warn", "hpet")


@pytest.mark.parametrize(
    ("reported", "verdict", "actual"),
    [
        ('openjdk version "17.0.9"', "ok", "17"),
        ('java version "1.8.0_402"', "note", "8"),
        ("nonsense", "note", "'nonsense'"),
    ],
)
def test_java_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reported: str, verdict: str, actual: str
) -> None:
    fake = tmp_path / "java"
    fake.write_text(f"#!/bin/sh\necho '{reported}' >&2\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    finding = java()
    assert (finding.verdict, finding.found) == (verdict, actual)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java().found == "none"


def test_missing_packages_say_what_they_are_for() -> None:
    import importlib.metadata

    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    assert {each.verdict for each in extras(none)} == {"note"}
    assert any(each.advice == "for netstack-bench run --peer zmq: pip install pyzmq" for each in extras(none))


def test_a_command_without_descriptors_says_how_to_get_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(words: list[str]) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("netstack.cli._run", fails)
    assert main(["doctor"]) == 1
    advice = "`ulimit -n` shows the limit of this shell and raises it"
    assert capsys.readouterr().err == f"netstack: Too many open files; {advice}\n"
