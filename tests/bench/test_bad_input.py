"""Bad input to the commands is a sentence, never a traceback."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from netstack.cli import main as netstack
from netstack_bench.cli import main as bench
from netstack_bench.rows import InputError, read_rows

DEEP = "[" * 100_000


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def damaged_parquet(path: Path) -> list[str]:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"s": ["text"] * 100, "n": list(range(100))}), path / "sound.parquet")
    data = (path / "sound.parquet").read_bytes()
    return [
        write(path / f"{at}.parquet", data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        for at in range(4, len(data) - 8, 41)
    ]


def sentences(capsys: pytest.CaptureFixture[str], program: str) -> None:
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert f"{program}: " in err or "Error" in err or "Usage" in err


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--repeats", "4000000000"],
        ["run", "--exclusive-buffers", "2147483648"],
        ["run", "--segment-size", "99999999999999999999"],
        ["isolate", "--rate", "inf"],
        ["isolate", "--rate", "nan"],
        ["run", "--repeats", "9" * 5000],
    ],
)
def test_numbers_that_cannot_be(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(words) == 2
    sentences(capsys, "netstack-bench")


@pytest.mark.parametrize(
    "address", ["tcp://[::1", "tcp://127.0.0.1:99999", "tcp://h:x", "tcp://\n", "tls+tcp://[::1:1"]
)
@pytest.mark.parametrize("command", [["consume"], ["taskmanager", "--listen"]])
def test_addresses_that_are_none(command: list[str], address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert netstack([*command, address, *(["p"] if command == ["consume"] else [])]) in (1, 2)
    sentences(capsys, "netstack")


@pytest.mark.parametrize("slots", ["99999999999999999999", "9" * 5000])
def test_more_slots_than_anything(slots: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert netstack(["taskmanager", "--slots", slots]) == 2
    sentences(capsys, "netstack")


def test_rows_of_other_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = [5, {}, {"settings": 5}, {"settings": {"x": []}}, {"run_id": [1]}, {"throughput": {"a": DEEP}}, DEEP]
    for number, row in enumerate(documents):
        folder = tmp_path / str(number)
        folder.mkdir()
        text = row if isinstance(row, str) else json.dumps(row)
        (folder / "rows.jsonl").write_text(text + "\n")
        assert bench(["report", str(folder)]) in (0, 1, 2)
        capsys.readouterr()
    for text in (DEEP, "5", "{}", '[{"settings": 5}]', '{"settings": {}, "runs": 5}', '{"settings": {}, "runs": [5]}'):
        assert bench(["compare", write(tmp_path / "a.json", text.encode()), str(tmp_path / "a.json")]) in (0, 1, 2)
        capsys.readouterr()


def test_inputs_that_are_damaged(tmp_path: Path) -> None:
    deep = write(tmp_path / "deep.jsonl", DEEP.encode())
    with pytest.raises(InputError, match="not a JSON document"):
        read_rows(deep)
    for file in damaged_parquet(tmp_path):
        for columnar in (None, 10):
            with contextlib.suppress(InputError):
                read_rows(file, arrow_batch_records=columnar)
