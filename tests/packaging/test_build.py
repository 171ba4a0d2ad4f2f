"""The two builds: which one runs is told, machine code of other sources never does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tool_modules import load_tool

from netstack.base import build, compiled

ROOT = Path(__file__).parent.parent.parent
PACKAGE = Path(build.__file__).parents[1]
TELL = (
    "from netstack.base import build as b; from netstack.exchange.buffer import buffer as m;"
    " print(b.kind, type(m.Buffer.recycle).__name__, b.reason)"
)

is_compiled = pytest.mark.skipif(
    compiled.current_manifest(PACKAGE)[0] is None, reason="needs the compiled data path: make compiled"
)


def tool() -> ModuleType:
    return load_tool("compile_core")


def told(**environment: str) -> list[str]:
    variables = {name: value for name, value in os.environ.items() if name != build.PURE}
    done = subprocess.run(
        [sys.executable, "-P", "-c", TELL], capture_output=True, text=True, env=variables | environment, check=True
    )
    return done.stdout.split(maxsplit=2)


def folder_of(package: Path, sources: dict[str, str]) -> Path:
    folder = compiled.compiled_folder(package)
    folder.mkdir(parents=True)
    (folder / "code.so").write_bytes(b"")
    manifest: dict[str, Any] = {"group": "g", "files": {"g": "code.so"}, "sources": sources}
    (folder / compiled.MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_python_is_forced() -> None:
    kind, function, reason = told(NETSTACK_PURE="1")
    assert (kind, function) == ("python", "function")
    assert reason == "NETSTACK_PURE=1\n"


@is_compiled
def test_the_compiled_data_path_runs_where_it_is_current() -> None:
    kind, function, reason = told(NETSTACK_PURE="0")
    assert (kind, reason) == ("compiled", "None\n")
    assert function != "function"


def test_machine_code_of_other_sources_is_never_loaded(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    assert compiled.current_manifest(tmp_path) == (None, compiled.NOT_COMPILED)
    folder = folder_of(tmp_path, {"a.py": compiled.source_digest(b"x = 1\n")})
    manifest, reason = compiled.current_manifest(tmp_path)
    assert (manifest or {})["group"] == "g"
    assert reason == ""
    (tmp_path / "a.py").write_text("x = 2\n")
    manifest, reason = compiled.current_manifest(tmp_path)
    assert manifest is None
    assert "netstack/a.py was edited" in reason
    (tmp_path / "a.py").write_text("x = 1\n")
    (folder / "code.so").unlink()
    manifest, reason = compiled.current_manifest(tmp_path)
    assert manifest is None
    assert "code.so is missing" in reason
    (folder / compiled.MANIFEST).write_text("{")
    assert compiled.current_manifest(tmp_path) == (None, compiled.NOT_COMPILED)


@is_compiled
def test_what_does_not_load_leaves_python(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "netstack", ignore=shutil.ignore_patterns("__pycache__"))
    for library in compiled.compiled_folder(tmp_path / "netstack").glob("*__mypyc.so"):
        library.write_bytes(b"not for this machine")
    kind, function, reason = told(PYTHONPATH=str(tmp_path))
    assert (kind, function) == ("python", "function")
    assert "does not load here" in reason


def test_every_compiled_module_exists_and_what_counts_references_is_none_of_them() -> None:
    modules = tool().MODULES
    for name in modules:
        path = PACKAGE / f"{name.replace('.', '/')}.py"
        assert path.is_file()
        assert "getrefcount" not in path.read_text(), f"{name} looks at reference counts: leave it in Python"
    assert "exchange.record.blocks" not in modules


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tool()
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(module.CannotCompile, match=r"no C compiler \(no-such-compiler\)|is not installed"):
        module.compile_core(ROOT, tmp_path / "out")
    assert not (tmp_path / "out").exists()
