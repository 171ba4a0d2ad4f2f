"""Compiles the data path with mypyc: the same source, machine code; `netstack.build` loads it.

The innermost steps of a record are written in C as well, beside the Python source that they take the place of.

Takes: the modules named below, a C compiler, mypy and setuptools. Gives: extension modules and a manifest, in a folder
of this interpreter's own below `netstack/_compiled`. The manifest has a digest of every source the compiler looked at,
so machine code of sources that were edited since is never loaded.

    python tools/compile_core.py            compile, unless what is there is current
    python tools/compile_core.py --force    compile

The sources are compiled from a copy in which the packages are empty, so that mypy reads the data path and not the whole
of netstack. Everything is compiled as one group: calls between its modules are C calls.

Left out on purpose: `exchange/record/blocks` counts references, and compiled code holds fewer of them than it shows;
what users subclass (formats, selectors); what runs once a connection or less.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

MODULES: Final = (
    "exchange.keygroups",
    *(
        "exchange.buffer.segment",
        "exchange.buffer.buffer",
        "exchange.buffer.builder",
        "exchange.buffer.elements",
        "exchange.buffer.lent",
    ),
    *("exchange.buffer.pools", "exchange.buffer.stored"),
    *("exchange.record.framing", "exchange.record.rows", "exchange.record.runs", "exchange.record.deserializer"),
    *(
        "exchange.outbound.open_buffers",
        "exchange.outbound.flush_rounds",
        "exchange.outbound.flush_times",
        "exchange.outbound.spanning_write",
        "exchange.outbound.staging",
        "exchange.outbound.emitter",
        "exchange.outbound.batches",
        "exchange.outbound.writer",
        "exchange.outbound.shares",
        "exchange.outbound.slices",
    ),
    *("exchange.outbound.partition", "exchange.outbound.subpartition"),
    *("exchange.outbound.sender", "exchange.outbound.sending_channel"),
    *("exchange.credit.sending", "exchange.credit.boost", "exchange.credit.receiving"),
    *("exchange.credit.spare", "exchange.credit.uncredited"),
    *("exchange.wire.codec", "exchange.wire.codec_native", "exchange.wire.assembler"),
    *("exchange.wire.outgoing_batch", "exchange.wire.connection"),
    *(
        "exchange.wire.codec_flink",
        "exchange.wire.flink_consumer",
        "exchange.wire.flink_producer",
    ),  # subclasses of a compiled class
    *(
        "exchange.stored.index",
        "exchange.stored.pages",
        "exchange.stored.compression",
        "exchange.stored.reading",
    ),
    *("exchange.stored.stored_regions", "exchange.stored.view", "exchange.stored.store"),
    *(
        "exchange.inbound.channel",
        "exchange.inbound.local_channel",
        "exchange.inbound.parts",
        "exchange.inbound.capture",
        "exchange.inbound.taking",
    ),
    *(
        "exchange.inbound.gate",
        "exchange.inbound.union",
        "exchange.inbound.receiver",
        "exchange.inbound.uncredited",
    ),
)

C_MODULES: Final = ("exchange.record.fast_path", "network.waiting.held_lock")
"""Written in C: what lies beside each as `.py` is the reference, and runs where nothing is compiled."""

GROUP: Final = "netstack_core"
_CONFIG: Final = """\
[mypy]
strict = true
ignore_missing_imports = true
disable_error_code = import-untyped, no-any-return, unused-ignore, misc, type-arg
"""


class CannotCompile(Exception):
    """Why there is no compiled data path; netstack then runs in Python."""


def compiler_problem() -> str | None:
    """Says what is missing that pip does not install (CPython with its headers, a C compiler); None if nothing is."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if sys.implementation.name != "cpython":
        return f"mypyc compiles for CPython only, and this is {sys.implementation.name}"
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "the C headers of this Python are not installed (Python.h)"
    return None


def compile_core(root: Path, out: Path, *, optimize: str = "2") -> None:
    """Compiles the data path of the tree at `root` and puts it into `out`, with its manifest.

    What was in `out` is replaced as a whole, or left as it was.

    Raises:
        CannotCompile: a tool is missing, or one of them failed; the message says which.
    """
    source_digest = compiled_module(root).source_digest
    problem = compiler_problem()
    if problem is not None:
        raise CannotCompile(problem)
    for tool in ("mypyc", "setuptools"):
        if importlib.util.find_spec(tool) is None:
            raise CannotCompile(f"{tool} is not installed")
    sources = netstack_sources(root)
    with tempfile.TemporaryDirectory(prefix="netstack-core-") as temporary:
        stage = Path(temporary)
        digests: dict[str, str] = {}  # of what is compiled, whatever happens to the sources meanwhile
        for source in sources:
            copy = stage / source.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.name == "__init__.py":
                copy.touch()
                continue
            content = source.read_bytes()
            copy.write_bytes(content)
            digests[str(source.relative_to(root / "netstack"))] = source_digest(content)
        (stage / "mypy.ini").write_text(_CONFIG, encoding="utf-8")
        command = [sys.executable, str(Path(__file__).resolve()), "--stage", str(stage), "--optimize", optimize]
        done = subprocess.run(command, cwd=stage, capture_output=True, text=True, check=False)
        said = (done.stdout + done.stderr).strip().splitlines()
        unset = [line for line in said if "Unsupported default attribute value" in line]
        if unset:
            raise CannotCompile("\n".join(("set these attributes in __init__, or write properties:", *unset)))
        made = sorted((stage / "out").rglob("*.so"))
        if done.returncode or len(made) != len(_wanted()):
            raise CannotCompile(
                "compiling failed: " + "\n".join(line for line in said if "warning:" not in line)[-4000:]
            )
        fresh = out.with_name(f"{out.name}.{os.getpid()}")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        files = {}
        for library in made:
            module = ".".join((*library.relative_to(stage / "out").parts[:-1], library.name.split(".")[0]))
            shutil.copy2(library, fresh / f"{module}.so")
            files[module] = f"{module}.so"
        manifest = {
            "group": f"{GROUP}__mypyc",
            "files": files,
            "sources": digests,
        }
        (fresh / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        shutil.rmtree(out, ignore_errors=True)
        fresh.rename(out)


def compiled_module(root: Path) -> Any:
    """`netstack.base.compiled` of the tree at `root`, by its path: netstack need not be installed."""
    spec = importlib.util.spec_from_file_location("netstack_compiled", root / "netstack" / "base" / "compiled.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def netstack_sources(root: Path) -> list[Path]:
    """Every file that the compiler may look at: the modules, and what they import of netstack, and so on."""
    found: dict[Path, None] = {}
    waiting = [root / "netstack" / f"{name.replace('.', '/')}.py" for name in MODULES]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found[path] = None
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.level:
                home = path.parents[node.level - 1]
                home = home.joinpath(*(node.module or "").split("."))
                waiting += [home.with_suffix(".py"), *(home / f"{alias.name}.py" for alias in node.names)]
    found |= {root / "netstack" / f"{name.replace('.', '/')}.c": None for name in C_MODULES}
    inits = {root / package / "__init__.py" for path in found for package in path.relative_to(root).parents}
    return sorted({*found, *(path for path in inits if path.is_file())})


def _wanted() -> set[str]:
    """The extension modules that are made."""
    return {GROUP + "__mypyc", *(f"netstack.{name}" for name in (*MODULES, *C_MODULES))}


def _in_stage(stage: Path, optimize: str) -> None:
    """Runs mypyc and the C compiler; a process of its own, because both end it when they fail."""
    from mypyc.build import mypycify
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    paths = [f"netstack/{name.replace('.', '/')}.py" for name in MODULES]
    extensions = mypycify(
        ["--config-file=mypy.ini", *paths], opt_level=optimize, debug_level="0", group_name=GROUP, multi_file=True
    )
    for extension in extensions:
        extension.extra_compile_args += ["-w", "-g0"]
    extensions += [
        Extension(f"netstack.{name}", [f"netstack/{name.replace('.', '/')}.c"], extra_compile_args=["-g0"])
        for name in C_MODULES
    ]
    sys.modules["distutils.ccompiler"].CCompiler.compile = _compile_all  # setuptools' own
    command = build_ext(Distribution({"name": "netstack", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(stage / "out"), str(stage / "objects")
    command.finalize_options()
    command.run()


def _compile_all(self: Any, sources: list[str], *arguments: Any, **options: Any) -> list[str]:
    """`CCompiler.compile`, but all sources at once: of one extension setuptools compiles one after the other."""
    names = ("output_dir", "macros", "include_dirs", "debug", "extra_preargs", "extra_postargs", "depends")
    given = dict(zip(names, arguments, strict=False)) | options
    _, objects, postargs, preprocessor, build = self._setup_compile(
        *(given.get(name) for name in ("output_dir", "macros", "include_dirs")),
        sources,
        *(given.get(name) for name in ("depends", "extra_postargs")),
    )
    cc_args = self._get_cc_args(preprocessor, given.get("debug", False), given.get("extra_preargs"))

    def compile_one(target: str) -> None:
        source, extension = build[target]
        self._compile(target, source, extension, cc_args, postargs, preprocessor)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, [target for target in objects if target in build]))
    return list(objects)


def main() -> int:
    """Returns the exit code: 0 also where nothing could be compiled and netstack runs in Python."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--force", action="store_true", help="compile even if what is there is current")
    parser.add_argument("--optimize", default="2", help="the C compiler's level (default 2)")
    parser.add_argument("--stage", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage is not None:
        _in_stage(arguments.stage, arguments.optimize)
        return 0
    root = Path(__file__).resolve().parent.parent
    compiled = compiled_module(root)
    out = compiled.compiled_folder(root / "netstack")
    manifest = compiled.current_manifest(root / "netstack")[0]
    if not arguments.force and manifest is not None and set(manifest["files"]) == _wanted():
        return 0
    print("Compiling the data path (once, about a minute) ...", file=sys.stderr)
    try:
        compile_core(root, out, optimize=arguments.optimize)
    except CannotCompile as error:
        print(f"netstack runs in Python, at about half the speed: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
