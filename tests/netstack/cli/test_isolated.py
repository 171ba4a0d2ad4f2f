"""`netstack taskmanager --isolate`: what each slot's process is started with, and what is refused."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from netstack.cli import main
from netstack.cli.isolated import check_isolated, counted_up, slot_flags
from netstack.config import MIB, NetworkConfig
from netstack.errors import ConfigError
from netstack.taskmanager.service import TaskManagerConfig


def test_each_slot_has_a_port_a_name_and_its_share() -> None:
    network = NetworkConfig(shuffle_disk_bytes=300, shuffle_directory="/x")
    config = TaskManagerConfig(
        listen="tcp://127.0.0.1:6121", slots=3, name="a", jobmanager="b:1", allow_submitted=True, network=network
    )
    check_isolated(config, "127.0.0.1:9100")
    words = slot_flags(config, 2, "127.0.0.1:9100", 512 * MIB, Path("c.toml"))
    told = dict(itertools.pairwise(words))
    assert (told["--name"], told["--listen"], told["--metrics"]) == ("a/2", "tcp://127.0.0.1:6123", "127.0.0.1:9102")
    assert (told["--shuffle-disk"], told["--config"], told["--process-memory"]) == ("100", "c.toml", str(512 * MIB))
    assert {"--no-isolate", "--allow-submitted"} <= set(words)
    assert counted_up("tcp://127.0.0.1:0", 2) == "tcp://127.0.0.1:0"
    assert counted_up("tls+tcp://[::1]:7000?ca=x", 1) == "tls+tcp://[::1]:7001?ca=x"


@pytest.mark.parametrize(
    ("settings", "metrics", "said"),
    [
        ({"jobmanager": None}, None, "--jobmanager"),
        ({"control": "tcp://127.0.0.1:1"}, None, "--control"),
        ({"slots": 8, "memory_bytes": 4 * MIB}, None, "8MiB"),
        ({"listen": "tcp://127.0.0.1:65535"}, None, "2 ports from 65535"),
        ({}, "127.0.0.1:65535", "--metrics"),
    ],
)
def test_what_a_process_for_each_slot_cannot_do_is_refused(
    settings: dict[str, object], metrics: str | None, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_isolated(TaskManagerConfig(**{"jobmanager": "b:1", "slots": 2, **settings}), metrics)  # type: ignore[arg-type]


def test_the_flags_are_refused_in_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["taskmanager", "--isolate"]) == 2
    assert "--isolate goes with --jobmanager" in capsys.readouterr().err
    assert main(["taskmanager", "--process-memory", "1MiB"]) == 2
    assert "the least is" in capsys.readouterr().err
    file = tmp_path / "settings.toml"
    file.write_text('isolate = "yes"\n')
    assert main(["taskmanager", "--config", os.fspath(file)]) == 2
    assert "of the wrong type" in capsys.readouterr().err
