"""What a TaskManager tells of its addresses is a place: how it is dialled others decide, and the JobManager whether."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from jobmanager.scripted_taskmanager import jobmanager

from netstack.base.errors import ConfigError, ConnectionLost, RequestRefused
from netstack.base.tls import certificates
from netstack.base.tls.tls_files import FOLDER_VARIABLE, dial_as, split_tls
from netstack.cluster.control.link import TASKMANAGER, ControlLink, dial
from netstack.cluster.control.messages import Refused
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.service import JobManager

PORT = "tcp://127.0.0.1:0"


async def register(
    manager: JobManager, data: str, slots: tuple[str, ...] = (), control: str = ""
) -> tuple[ControlLink, str]:
    """A link, and why it was refused; empty if it was not."""
    facts: dict[str, Any] = {"slots": 1, "data": data, "slot_addresses": list(slots), "control": control}
    link, _ = await dial(manager.address, role=TASKMANAGER, name="tm", facts=facts)
    try:
        message = await link.receive() if not [*manager.taskmanagers.all()] else None
    except ConnectionLost:
        return link, "the connection was ended"
    return link, message.text if isinstance(message, Refused) else ""


async def test_parameters_stay_with_their_owner() -> None:
    async with jobmanager(listen=PORT) as manager:
        evil = "?names=off&folder=/tmp/evil"
        facts = {"slots": 1, "data": f"tls+tcp://10.0.0.7:1{evil}", "slot_addresses": [f"tls+tcp://0.0.0.0:2{evil}"]}
        link, _ = await dial(manager.address, role=TASKMANAGER, name="tm", facts=facts)
        while not (actual := [*manager.taskmanagers.all()]):
            await link.wait_room()
        assert actual[0].location.address == "tls+tcp://10.0.0.7:1"
        assert actual[0].location.slot_addresses == ("tls+tcp://127.0.0.1:2",)
        link.close()


@pytest.mark.parametrize("data", ["tcp://[::1", "tcp://h:99999", "tls+tcp://h:x", f"tcp://{'x' * 60_000}:1"])
async def test_what_is_no_address_is_refused(data: str, caplog: pytest.LogCaptureFixture) -> None:
    async with jobmanager(listen=PORT) as manager:
        link, why = await register(manager, data)
        assert why
        link.close()
    assert not [record for record in caplog.records if record.exc_info], "a line, and no traceback"
    assert max(len(record.getMessage()) for record in caplog.records) < 1000


@pytest.mark.parametrize(
    ("data", "slots", "control"),
    [
        ("tcp://10.0.0.7:1", (), ""),
        ("memory://x", (), ""),
        ("tls+tcp://10.0.0.7:1", ("tcp://10.0.0.7:2",), ""),
        ("tls+tcp://10.0.0.7:1", (), "tcp://10.0.0.7:2"),
        ("tlsx+tcp://h:1", (), ""),
    ],
)
async def test_where_tls_is_required_data_go_no_other_way(
    data: str, slots: tuple[str, ...], control: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.make_authority(tmp_path / "authority", name="test", days=2)
    certificates.make_host(tmp_path / "host", tmp_path / "authority", ["127.0.0.1"], days=1)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "host"))
    async with jobmanager(listen=f"tls+{PORT}", require_tls=True) as manager:
        link, why = await register(manager, data, slots, control)
        assert "this JobManager requires" in why
        link.close()
        assert not [*manager.taskmanagers.all()]


@pytest.mark.parametrize(
    "list_of_two", ["tls+tcp://10.0.0.7,tcp://10.0.0.8:2", "tls+tcp://10.0.0.7:1/,tcp://10.0.0.8:2"]
)
async def test_an_address_is_no_list_of_which_the_rest_has_no_tls(
    list_of_two: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with jobmanager(listen=PORT) as manager:
        slots, plain = (list_of_two,), "tcp://h:1"
        for facts in ((list_of_two, (), ""), (plain, slots, ""), (plain, (), list_of_two)):
            link, why = await register(manager, *facts)
            assert why == "the connection was ended"
            assert not [*manager.taskmanagers.all()]
            link.close()
    assert caplog.text.count("expected one URL, without commas") == 3


async def test_where_tls_is_required_no_taskmanager_is_dialled_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.make_authority(tmp_path / "authority", name="test", days=2)
    certificates.make_host(tmp_path / "host", tmp_path / "authority", ["127.0.0.1"], days=1)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "host"))
    async with jobmanager(listen=f"tls+{PORT}", require_tls=True) as manager:
        for address in ("127.0.0.1:1", "tcp://127.0.0.1:1", "tls+tcp://127.0.0.1:1,tcp://127.0.0.1:1"):
            with pytest.raises(RequestRefused, match="which this JobManager requires"):
                await manager.adopt(address)


@pytest.mark.parametrize(
    ("data", "slots", "control", "missing"),
    [
        ("tls+tcp://127.0.0.1:1", ("tls+tcp://worker.example:2",), "", ""),
        ("tls+tcp://0.0.0.0:1", (), "", ""),  # it is dialled where it came from
        ("tcp://10.0.0.7:1", (), "", ""),  # no certificate is shown there
        ("tls+tcp://10.0.0.7:1", (), "", "10.0.0.7"),
        ("tls+tcp://127.0.0.1:1", ("tls+tcp://10.0.0.7:2",), "", "10.0.0.7"),
        ("tls+tcp://127.0.0.1:1", (), "tls+tcp://other.example:3", "other.example"),
    ],
)
async def test_a_certificate_that_does_not_cover_an_address_is_refused_by_name(
    data: str, slots: tuple[str, ...], control: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.make_authority(tmp_path / "authority", name="test", days=2)
    names = ["127.0.0.1", "worker.example"]
    certificates.make_host(tmp_path / "host", tmp_path / "authority", names, days=1)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "host"))
    async with jobmanager(listen=f"tls+{PORT}") as manager:
        link, why = await register(manager, data, slots, control)
        if missing:
            assert f"valid for 127.0.0.1 and worker.example, not for {missing}" in why
            assert "TaskManager tm at" in why
            assert not [*manager.taskmanagers.all()]
        else:
            assert why == ""
        link.close()


async def test_names_that_nobody_checks_are_no_reason_to_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.make_authority(tmp_path / "authority", name="test", days=2)
    certificates.make_host(tmp_path / "host", tmp_path / "authority", ["flink"], days=1)
    monkeypatch.setenv(FOLDER_VARIABLE, f"{tmp_path / 'host'}?names=off")
    async with jobmanager(listen=f"tls+{PORT}") as manager:
        link, why = await register(manager, "tls+tcp://10.0.0.7:1")
        assert why == ""
        link.close()


def test_a_jobmanager_that_requires_tls_listens_with_it() -> None:
    with pytest.raises(ConfigError, match="which is required"):
        JobManagerConfig(require_tls=True)


def test_who_listens_with_certificates_dials_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    dial_as(f"tls+tcp://127.0.0.1:1?names=off&folder={tmp_path}&tls=1.2")
    _, _, reported = split_tls("tls+tcp://10.0.0.1:1")
    _, _, ours = split_tls(f"tls+tcp://h:1?names=off&folder={tmp_path}&tls=1.2")
    assert reported is ours
    dial_as(f"tls+tcp://127.0.0.1:1?folder={tmp_path}")
    assert os.environ[FOLDER_VARIABLE] == str(tmp_path)
    for other in ("tcp://127.0.0.1:1", "tls+tcp://127.0.0.1:1"):
        dial_as(other)
    assert os.environ[FOLDER_VARIABLE] == str(tmp_path)
