"""The log of a service: each line for people, or one JSON document."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys

import pytest

from netstack.cli.logs import JsonFormatter


def test_a_line_is_one_document_whatever_is_said() -> None:
    try:
        raise ValueError("no more\npaper")
    except ValueError:
        record = logging.LogRecord("netstack.x", logging.WARNING, "", 1, "said %r\nand more", ("it",), sys.exc_info())
    (line,) = JsonFormatter().format(record).splitlines()
    document = json.loads(line)
    assert (document["level"], document["logger"], document["text"]) == ("warning", "netstack.x", "said 'it'\nand more")
    assert document["at"].endswith("Z")
    assert "ValueError: no more\npaper" in document["error"]


@pytest.mark.whole
@pytest.mark.parametrize("program", ["jobmanager", "taskmanager"])
def test_services_speak_json_on_request(program: str) -> None:
    command = [
        sys.executable,
        "-m",
        "netstack.cli",
        program,
        "--listen",
        "tcp://127.0.0.1:0",
        "--json",
        "--log",
        "json",
    ]
    more = ["--web", "127.0.0.1:0"] if program == "jobmanager" else ["--jobmanager", "127.0.0.1:1"]
    with subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        assert service.stderr is not None
        json.loads(service.stdout.readline())
        lines = [] if program == "jobmanager" else [service.stderr.readline()]  # its JobManager does not answer
        service.send_signal(signal.SIGTERM)
        _, rest = service.communicate(timeout=120)
    assert service.returncode == 0
    for line in (*lines, *rest.splitlines()):
        assert {"at", "level", "logger", "text"} <= json.loads(line).keys()
