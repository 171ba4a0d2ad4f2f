"""The systemd unit and the container file start the daemon with flags that it has."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from netstack.cli.taskmanager import taskmanager, taskmanager_config
from netstack.cluster.taskmanager.config import TaskManagerConfig
from netstack.network.connection.authentication import Secret

TOOLS = Path(__file__).parents[3] / "tools"


def unit() -> dict[str, dict[str, list[str]]]:
    """Sections of the unit; a key may be there several times."""
    actual: dict[str, dict[str, list[str]]] = {}
    parser = configparser.RawConfigParser(strict=False)
    section = ""
    for line in (TOOLS / "taskmanager.service").read_text().splitlines():
        if match := parser.SECTCRE.match(line):
            section = match["header"]
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            actual.setdefault(section, {}).setdefault(key, []).append(value)
    return actual


def container() -> dict[str, list[str]]:
    """Instructions of the last stage; those in JSON are read."""
    actual: dict[str, list[str]] = {}
    for line in (TOOLS / "Containerfile").read_text().splitlines():
        if match := re.match(r"([A-Z]+) (.*)", line):
            if match[1] == "FROM":
                actual = {}
            actual[match[1]] = json.loads(match[2]) if match[2].startswith("[") else [match[2]]
    return actual


def parsed(words: list[str], secret: Path) -> TaskManagerConfig:
    """The daemon's settings, from its flags, with a secret at hand."""
    secret.write_bytes(Secret.generate().reveal())
    secret.chmod(0o600)
    place = words.index("--secret-file") + 1
    words = [*words[:place], str(secret), *words[place + 1 :]]
    with taskmanager.make_context("taskmanager", words) as context:
        settings: dict[str, Any] = {
            key: value for key, value in context.params.items() if value not in (None, (), False)
        }
    for name in ("metrics", "log_kind"):  # which are not the TaskManager's own
        settings.pop(name, None)
    return taskmanager_config(settings)


def test_the_unit_starts_the_daemon(tmp_path: Path) -> None:
    service = unit()["Service"]
    program, command, *flags = shlex.split(service["ExecStart"][0])
    assert (Path(program).name, command) == ("netstack", "taskmanager")
    assert parsed(flags, tmp_path / "secret").listen == "tcp://0.0.0.0:6121"
    assert service["Restart"] == ["on-failure"]
    secret = flags[flags.index("--secret-file") + 1]
    assert service["ExecStartPre"][0].split()[-1] == secret == "${RUNTIME_DIRECTORY}/secret"
    assert service["LoadCredential"][0].startswith("secret:")


def test_the_unit_is_hardened() -> None:
    service = unit()["Service"]
    for key, value in {
        "NoNewPrivileges": "yes",
        "DynamicUser": "yes",
        "ProtectSystem": "strict",
        "CapabilityBoundingSet": "",
        "RuntimeDirectoryMode": "0700",
    }.items():
        assert service[key] == [value]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: apt-get install systemd")
def test_systemd_understands_the_unit() -> None:
    command = ["systemd-analyze", "verify", str(TOOLS / "taskmanager.service")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [line for line in result.stderr.splitlines() if "taskmanager.service" in line]
    assert [line for line in complaints if "/opt/netstack/bin/netstack is not executable" not in line] == []


def test_the_container_starts_the_daemon(tmp_path: Path) -> None:
    actual = container()
    program, command = actual["ENTRYPOINT"]
    assert (Path(program).name, command) == ("netstack", "taskmanager")
    config = parsed(actual["CMD"], tmp_path / "secret")
    assert config.listen.endswith(f":{actual['EXPOSE'][0]}")
    assert actual["USER"] != ["root"]
    assert actual["STOPSIGNAL"] == ["SIGTERM"]


def test_the_container_copies_what_the_build_needs() -> None:
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (TOOLS / "Containerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert {"pyproject.toml", "README.md", "netstack", "transports", "bench", "tools"} <= names
    assert [name for name in names if not (TOOLS.parent / name).exists()] == []
