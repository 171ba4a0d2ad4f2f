from __future__ import annotations

import builtins
import dataclasses
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from netstack.base.errors import ConfigError
from netstack_bench.grid import Grid
from netstack_bench.spec import RunSpec
from netstack_bench.store import (
    COLUMNS,
    JOURNAL,
    PARQUET,
    STRUCTS,
    Row,
    Store,
    StoreError,
    flatten,
    read_rows,
    read_sweep,
    replace_file,
    write_file,
)

Rows = Callable[..., list[Row]]
SMALL = Grid(timeouts_s=(None, 0.0), record_sizes=(8,), channels=(1,))


@contextmanager
def no_room_beyond(size_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond a size: writes are cut short or refused, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_every_setting_has_a_column() -> None:
    settings = {f"settings_{field.name}" for field in dataclasses.fields(RunSpec)}
    assert settings == {name for name in COLUMNS if name.startswith("settings_")}


def test_names_are_flattened() -> None:
    nested = {"a": 1, "latency_us": {"p50": 2, "deep": {"x": None}}, "warnings": ["w"]}
    assert flatten(nested) == {"a": 1, "latency_us_p50": 2, "latency_us_deep_x": None, "warnings": ["w"]}


def test_rows_come_back_from_the_journal_and_from_parquet(tmp_path: Path, fake_rows: Rows) -> None:
    rows = fake_rows(SMALL)
    with Store(tmp_path / "deep" / "er") as store:
        for row in rows:
            store.append(row)
        assert store.rows() == rows
        parquet = store.write_parquet()
    assert read_rows(store.folder) == rows
    (store.folder / JOURNAL).unlink()
    for path in (store.folder, parquet):
        for read, written in zip(read_rows(path), rows, strict=True):
            assert {name: value for name, value in read.items() if name in written} == written
            assert all(value is None for name, value in read.items() if name not in written)


def test_the_schema_does_not_depend_on_what_was_measured(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    with Store(tmp_path) as store:
        store.append({"run_id": "a", "repeat": 0, "error": "x", "x_cores": 2, "x_load": 1, "x_tags": ["a", 1]})
        store.append({"run_id": "b", "repeat": 0, "x_load": 0.5, "x_name": "h"})
        schema = parquet.read_schema(store.write_parquet())
    assert schema.names[: len(COLUMNS)] == list(COLUMNS)
    kinds = {name: str(schema.field(name).type) for name in schema.names}
    assert kinds["records_per_s"] == "double"
    assert kinds["delivered"] == "bool"
    assert kinds["warnings"].startswith("list<")
    further = {name: kind for name, kind in kinds.items() if name not in COLUMNS}
    assert further == {"x_cores": "int64", "x_load": "double", "x_name": "string", "x_tags": "string"}


def test_the_last_row_of_a_run_wins(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append({"run_id": "a", "repeat": 0, "error": "first"})
        store.append({"run_id": "a", "repeat": 1, "error": None})
        store.append({"run_id": "a", "repeat": 0, "error": None})
        assert store.rows() == [
            {"run_id": "a", "repeat": 1, "error": None},
            {"run_id": "a", "repeat": 0, "error": None},
        ]


def test_a_line_cut_short_by_a_killed_process_is_dropped(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append({"run_id": "a", "repeat": 0})
    with (tmp_path / JOURNAL).open("ab") as journal:
        journal.write(b'{"run_id":"b","rep')
    assert [row["run_id"] for row in read_rows(tmp_path)] == ["a"]
    with Store(tmp_path) as store:
        store.append({"run_id": "c", "repeat": 0})
        assert [row["run_id"] for row in store.rows()] == ["a", "c"]


def test_a_spoilt_line_is_named(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text('{"run_id":"a"}\nnonsense\n')
    with pytest.raises(StoreError, match=r"rows\.jsonl line 2"):
        read_rows(tmp_path)


def test_a_row_that_does_not_fit_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append({"run_id": "a", "repeat": 0})
        before = (tmp_path / JOURNAL).read_bytes()
        with no_room_beyond(len(before) + 10), pytest.raises(StoreError, match=str(tmp_path)):
            store.append({"run_id": "b", "repeat": 0, "error": "long" * 20})
        assert (tmp_path / JOURNAL).read_bytes() == before
        store.append({"run_id": "c", "repeat": 0})
        assert [row["run_id"] for row in store.rows()] == ["a", "c"]


def test_parquet_is_written_whole_or_not_at_all(tmp_path: Path, fake_rows: Rows) -> None:
    with Store(tmp_path) as store:
        for row in fake_rows(SMALL):
            store.append(row)
        old = store.write_parquet().read_bytes()
        listed = sorted(os.listdir(tmp_path))
        with no_room_beyond(1000), pytest.raises(StoreError, match=r"rows\.parquet in .*intact"):
            store.write_parquet()
        assert (tmp_path / PARQUET).read_bytes() == old
        assert sorted(os.listdir(tmp_path)) == listed


def test_an_interrupted_write_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    def stopped(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "x", stopped)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write results to .*file"):
        Store(tmp_path / "file" / "sweep")


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path) -> None:
    with Store(tmp_path), pytest.raises(ConfigError, match="another sweep"):
        Store(tmp_path)
    with Store(tmp_path):
        pass


def test_without_pyarrow_what_to_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    with Store(tmp_path) as store:
        store.append({"run_id": "a", "repeat": 0})
        monkeypatch.setattr(builtins, "__import__", refuse)
        with pytest.raises(ConfigError, match=r"pyarrow, .*pip install"):
            store.write_parquet()
        assert store.rows() == [{"run_id": "a", "repeat": 0}]


def test_json_of_single_runs_is_read(tmp_path: Path, fake_result: Callable[..., dict[str, Any]]) -> None:
    one, two = fake_result(RunSpec()), fake_result(RunSpec(channels=4))
    path = tmp_path / "run.json"
    for text in (json.dumps([one, two], indent=2), f"{json.dumps(one)}\n{json.dumps(two)}\n"):
        path.write_text(text)
        assert read_rows(path) == [flatten(one), flatten(two)]


def test_a_document_of_repeats_is_read_as_its_runs(tmp_path: Path, fake_result: Callable[..., dict[str, Any]]) -> None:
    one = fake_result(RunSpec())
    runs = [{"records_per_s": 1.0, "delivered": True}, {"records_per_s": 3.0, "delivered": True}]
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**one, "records_per_s": 2.0, "runs": runs, "peer": {"raw": one}}))
    rows = read_rows(path)
    assert [row["records_per_s"] for row in rows] == [1.0, 3.0]
    assert not any(name.startswith("peer") for row in rows for name in row)


@pytest.mark.parametrize(
    ("name", "content", "reported"),
    [
        ("x.json", b"nonsense", "not JSON"),
        ("x.json", b"[1]", "no settings"),
        ("x.json", b"\xff\xfe", "not text"),
        ("x.json", b"[]", "no results"),
        ("x.jsonl", b"", "no results"),
        ("x.parquet", b"PAR1", "not a Parquet file"),
    ],
)
def test_what_is_not_results_is_refused_by_name(tmp_path: Path, name: str, content: bytes, reported: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StoreError, match=reported) as caught:
        read_rows(tmp_path / name)
    assert name in str(caught.value)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no rows\.jsonl"):
        read_rows(tmp_path)


def test_what_was_asked_is_kept(tmp_path: Path) -> None:
    assert read_sweep(tmp_path) == {}
    with Store(tmp_path) as store:
        store.write_sweep({"grid": {"seed": 3}})
    assert read_sweep(tmp_path) == {"grid": {"seed": 3}}


def test_metrics_become_columns_of_numbers(tmp_path: Path, fake_result: Callable[..., dict[str, Any]]) -> None:
    import pyarrow.parquet as parquet

    bare = {**flatten(fake_result(RunSpec())), "metrics_producer": None, "run_id": "a"}
    with Store(tmp_path) as store:
        store.append({**flatten(fake_result(RunSpec())), "run_id": "b"})
        store.append({name: value for name, value in bare.items() if not name.startswith("metrics_producer_")})
        types = {field.name: str(field.type) for field in parquet.read_schema(store.write_parquet())}
    assert types["backpressured_ms_per_s_soft"] == types["idle_ms_per_s"] == "double"
    assert types["metrics_producer_netstack_output_full_flushes_total"] == "int64"
    assert types["metrics_consumer_netstack_input_pool_usage_ratio"] == "double"
    assert types["settings_credit"] == "bool"


def test_lists_of_objects_survive_the_way_through_parquet(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    pair = {"source_host": "a", "sink_host": "b", "records": 3, "payload_mb_per_s": 1, "latency_us": {"p50": 2.5}}
    row = {
        "run_id": "a",
        "repeat": 0,
        "pairs": [{**pair, "further": "kept"}, {**pair, "latency_us": None}],
        "timeline": [{"t_s": 0.5, "host": "a", "task": "source 0", "backpressured_ms_per_s": 250.0}],
        "own_list": [{"x": 1}, {"x": 2.5, "deep": {"y": True}}],
    }
    with Store(tmp_path) as store:
        store.append(row)
        store.append({"run_id": "b", "repeat": 0, "hosts": []})
        path = store.write_parquet()
    kinds = {field.name: str(field.type) for field in parquet.read_schema(path)}
    assert "latency_us: struct<p50: double" in kinds["pairs"]
    assert kinds["own_list"].endswith("struct<deep: struct<y: bool>, x: double>>")
    (tmp_path / JOURNAL).unlink()
    read, other = read_rows(tmp_path)
    first, second = read["pairs"]
    assert (first["source_host"], first["records"], first["payload_mb_per_s"]) == ("a", 3, 1.0)
    assert first["latency_us"]["p50"] == 2.5
    assert first["latency_us"]["max"] is None
    assert (first["further"], second["latency_us"]) == ("kept", None)
    assert read["timeline"][0]["task"] == "source 0"
    assert read["own_list"] == [{"deep": None, "x": 1.0}, {"deep": {"y": True}, "x": 2.5}]
    assert (other["hosts"], other["pairs"]) == ([], None)


def test_every_struct_is_of_known_types() -> None:
    plain = {"string", "int64", "float64", "bool"}
    assert all(kind in plain | STRUCTS.keys() for fields in STRUCTS.values() for kind in fields.values())


def test_a_pipe_is_written_itself(tmp_path: Path) -> None:
    """It is not replaced by a file, as /dev/stdout would be for root."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert replace_file(pipe, lambda path: path.write_bytes(b"page")) == pipe
        assert os.read(reader, 100) == b"page"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def test_what_a_link_points_to_is_written_itself(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("page")
    assert replace_file(tmp_path / "link", lambda path: path.write_bytes(b"page")) == tmp_path / "link"
    assert (tmp_path / "page").read_bytes() == b"page"
    assert (tmp_path / "link").is_symlink()


def test_a_page_outside_of_a_results_folder_has_no_advice_about_rows(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        write_file(tmp_path / "none", "x.html", lambda path: path.write_text(""))
    assert str(caught.value) == f"cannot write x.html in {tmp_path / 'none'}: no such file or directory"
