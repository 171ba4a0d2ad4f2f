"""Moves modules to new places: files, imports, and every text that names a module or a path.

Takes: `modules.txt` (old and new names, by floor), `packages.txt` (what each new package says of itself), `edits.toml`
(what only a hand can write, as text that is replaced), `files/` (whole files). Gives: a commit for each floor. It can
be replayed on a newer revision as long as the texts of `edits.toml` are there once.

    python tools/move/move.py              all floors
    python tools/move/move.py base         only this one, after those before it
    python tools/move/move.py --environment    only .venv, which then finds the packages where they lie now

Names of loggers and entry points, and the public names `netstack.aio` and `netstack.blocking`, stay.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
WIDTH: Final = 120
HOMES: Final = {"netstack_transports": "transports/", "netstack_bench": "bench/"}
"""The folders of the import packages that do not lie at the root."""

TEST_HOMES: Final = {"netstack_transports": "tests/transports", "netstack_bench": "tests/bench"}
KEPT: Final = frozenset(
    ("netstack.transports", "netstack.jobmanager", "netstack.taskmanager", "netstack.web", "netstack.build")
)
"""As whole names in a text: entry points, loggers and a public name. Imports of these packages are rewritten."""

DOORS: Final = {"netstack.aio": "netstack.network.aio", "netstack.blocking": "netstack.network.blocking"}
"""Public packages that become one module each; their parts move."""

KEPT_BEGINNINGS: Final = (
    *("netstack.shuffle.command", "netstack.shuffle.RunJob", "netstack.build."),
    *("netstack.taskmanager.memory.", "netstack.taskmanager.network."),  # `taskmanager.memory.network.max` is Flink's
)
TEXTS: Final = frozenset((".py", ".pyi", ".md", ".toml", ".yml", ".ipynb", ".c", ".service", ".sh", ""))
LEFT: Final = ("tools/move/", "tests/fuzz/corpus/", "tests/data/", "LICENSE")

_DOTTED: Final = re.compile(r"(?<![\w./-])netstack(?:\.[A-Za-z_]\w*)+")
_ESCAPED: Final = re.compile(r"(?<![\w./-])netstack(?:\\\.[A-Za-z_]\w*)+")
_PATH: Final = re.compile(r"(?<![\w./-])[A-Za-z_.][\w.-]*(?:/[\w.-]+)+")
_TICKED: Final = re.compile(r"(?<=`)[a-z_]+(?:\.[A-Za-z_]\w*)+(?=(?:\(\))?`)")
_QUOTED: Final = re.compile(r'(?<=")[a-z_]+(?:\.[a-z_]+)*(?=")')
_LINK: Final = re.compile(r"(?<=\]\()[^)#\s:]+(?=[)#])")
_PARENTS: Final = re.compile(r"(Path\(__file__\)(?:\.resolve\(\))?\.parents\[)(\d)(?=\])")


def git(*words: str) -> str:
    """Runs git in the repository; returns what it prints."""
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout


def floors() -> dict[str, dict[str, str]]:
    """The names of `modules.txt` by floor."""
    found: dict[str, dict[str, str]] = {}
    for line in (HERE / "modules.txt").read_text().splitlines():
        if line.startswith("["):
            names = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            old, _, new = line.partition(" -> ")
            names[old] = new
    return found


class Move:
    """One floor's move.

    Attributes:
        files: each moved file, old path -> new path.
    """

    def __init__(self, names: dict[str, str]) -> None:
        """Looks at what the index of git has."""
        self._names = names
        self._tracked = [each for each in git("ls-files").splitlines() if (ROOT / each).is_file()]
        self._modules = {module for each in self._tracked if (module := module_of(each)) is not None}
        self._modules |= {str(PurePosixPath(each).parent).replace("/", ".") for each in self._tracked}
        self._doors = {old: new for old, new in DOORS.items() if any(each.startswith(f"{old}.") for each in names)}
        self.files: dict[str, str] = {}
        for each in self._tracked:
            if (new := self._new_file(each)) != each:
                self.files[each] = new
        self._folders: dict[str, str] = {}
        for old in self.files:
            for parent in PurePosixPath(old).parents:
                self._folders.setdefault(str(parent), self._new_folder(str(parent)))

    def name(self, old: str) -> str:
        """The new name of a module, or of what is in it."""
        beginning = old
        while beginning:
            if beginning in self._names:
                return self._names[beginning] + old[len(beginning) :]
            beginning = beginning.rpartition(".")[0]
        return old

    def run(self) -> None:
        """Rewrites and moves everything."""
        texts = {}
        for each in self._tracked:
            if each.startswith(LEFT) or PurePosixPath(each).suffix not in TEXTS:
                continue
            before = (ROOT / each).read_text(encoding="utf-8")
            after = self._rewritten(each, before)
            if after != before:
                texts[self.files.get(each, each)] = after
        for old, new in self.files.items():
            (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
            git("mv", old, new)
        for place, text in texts.items():
            (ROOT / place).write_text(text, encoding="utf-8")
        for folder in sorted({str(PurePosixPath(old).parent) for old in self.files}, reverse=True):
            shutil.rmtree(ROOT / folder / "__pycache__", ignore_errors=True)
            for parent in (ROOT / folder, *(ROOT / folder).parents):
                if parent.is_dir() and not any(parent.iterdir()):
                    parent.rmdir()
        for new in self.files.values():
            self._make_packages(PurePosixPath(new))

    def _make_packages(self, file: PurePosixPath) -> None:
        if file.suffix != ".py" or file.parts[0] not in ("netstack", "transports", "bench"):
            return
        said = dict(
            line.split(": ", 1) for line in (HERE / "packages.txt").read_text().splitlines() if not line.startswith("#")
        )
        for parent in file.parents:
            init = ROOT / parent / "__init__.py"
            module = module_of(str(parent / "__init__.py"))
            if module is not None and not init.exists():
                init.write_text(f'"""{said[module]}"""\n', encoding="utf-8")

    # ------------------------------------------------------------------------------------------------------- files

    def _new_file(self, old: str) -> str:
        path = PurePosixPath(old)
        if path.parts[0] == "netstack" and len(path.parts) > 1:
            if str(path.parent).replace("/", ".") in self._doors and path.stem == "__init__":
                return f"{path.parent}{path.suffix}"
            module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
            if path.suffix not in (".py", ".pyi") and module not in self._modules:
                return f"{folder_of(self.name('.'.join(path.parent.parts)))}/{path.name}"
            place = folder_of(self.name(module))
            return f"{place}/{path.name}" if path.stem == "__init__" else f"{place}{path.suffix}"
        if path.parts[:2] in (("tests", "netstack"), ("tests", "transports"), ("tests", "bench")):
            return self._new_test(path)
        return old

    def _new_test(self, path: PurePosixPath) -> str:
        begin = {"netstack": "netstack", "transports": "netstack.transports", "bench": "netstack.bench"}[path.parts[1]]
        package = ".".join((begin, *path.parts[2:-1]))
        module = f"{package}.{path.stem.removeprefix('test_')}"
        if path.name.startswith("test_") and module in self._modules:
            home, _, leaf = self.name(module).rpartition(".")
            return str(path) if self.name(module) == module else f"{test_folder(home)}/test_{leaf}.py"
        home = self._doors.get(package, self.name(package))
        return str(path) if home == package else f"{test_folder(home)}/{path.name}"

    def _new_folder(self, old: str) -> str:
        parts = PurePosixPath(old).parts
        if parts[:1] == ("netstack",) and len(parts) > 1:
            return folder_of(self.name(".".join(parts)))
        if parts[:2] == ("tests", "netstack") and len(parts) > 2:
            package = ".".join(parts[1:])
            return test_folder(self._doors.get(package, self.name(package)))
        if parts[:2] == ("tests", "bench") and len(parts) > 2:
            return test_folder(self.name(".".join(("netstack", *parts[1:]))))
        return old

    # ------------------------------------------------------------------------------------------------------- texts

    def _rewritten(self, file: str, text: str) -> str:
        if file == "CHANGELOG.md":  # it tells what was
            return self._links(file, text)
        if file.endswith((".py", ".pyi")):
            pieces = []
            end = 0
            for start, stop, new in sorted(self._imports(file, text)):
                pieces += [self._words(file, text[end:start]), new]
                end = stop
            text = "".join((*pieces, self._words(file, text[end:])))
            if file == "tools/compile_core.py":
                text = _QUOTED.sub(lambda match: self._compiled(match[0]), text)
            if file in self.files:
                deeper = self.files[file].count("/") - file.count("/")
                to_root = str(file.count("/"))
                text = _PARENTS.sub(lambda at: f"{at[1]}{int(at[2]) + (deeper if at[2] == to_root else 0)}", text)
            return wrapped(text)
        if file.endswith(".md"):
            text = self._links(file, text)
        return self._words(file, text)

    def _links(self, file: str, text: str) -> str:
        here = PurePosixPath(file).parent
        there = PurePosixPath(self.files.get(file, file)).parent

        def link(match: re.Match[str]) -> str:
            target = os.path.normpath(here / match[0])
            if not (ROOT / target).exists():
                return match[0]
            new = self.files.get(target) or self._folders.get(target) or target
            return match[0] if new == target and here == there else os.path.relpath(new, there)

        return _LINK.sub(link, text)

    def _words(self, file: str, text: str) -> str:
        text = _DOTTED.sub(lambda match: self._dotted(match[0]), text)
        text = _ESCAPED.sub(lambda match: self._dotted(match[0].replace("\\.", ".")).replace(".", "\\."), text)
        text = _TICKED.sub(lambda match: self._ticked(match[0]), text)
        return _PATH.sub(lambda match: self._path(file, match[0]), text)

    def _dotted(self, name: str) -> str:
        if name in KEPT or name.startswith(KEPT_BEGINNINGS):
            return name
        return self.name(name)

    def _ticked(self, name: str) -> str:
        whole = f"netstack.{name}"
        if whole.startswith(KEPT_BEGINNINGS):
            return name
        if ".".join(whole.split(".")[:3]) not in self._modules:
            return name
        return self.name(whole).removeprefix("netstack.")

    def _compiled(self, name: str) -> str:
        whole = f"netstack.{name}"
        return self.name(whole).removeprefix("netstack.") if whole in self._modules else name

    def _path(self, file: str, token: str) -> str:
        path = token.rstrip("./")
        rest = token[len(path) :]
        for before, strip in (
            ("", ""),
            ("netstack/", "netstack/"),
            ("netstack/bench/", "bench/netstack_bench/"),
            ("tests/",) * 2,
        ):
            if before == "netstack/bench/" and not file.startswith("netstack/bench/"):
                continue
            for suffix in ("", ".py"):
                whole = f"{before}{path}{suffix}"
                new = self.files.get(whole) or (None if suffix else self._folders.get(whole))
                if new is not None and new != whole:
                    return new.removeprefix(strip).removesuffix(suffix) + rest
        return token

    # ----------------------------------------------------------------------------------------------------- imports

    def _imports(self, file: str, text: str) -> Iterator[tuple[int, int, str]]:
        """The imports of a file that change: where each begins and ends, and what is there instead."""
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        own = module_of(file)
        package = own if own is None or file.endswith(("__init__.py", "__init__.pyi")) else own.rpartition(".")[0]
        home = None if own is None else self.name(own)
        if home is not None and (own in self._doors or not file.endswith(("__init__.py", "__init__.pyi"))):
            home = home.rpartition(".")[0]
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ImportFrom):
                continue
            if node.level:
                if package is None:  # of tests, which lie beside each other afterwards too
                    continue
                parts = package.split(".")
                base = ".".join((*parts[: len(parts) - node.level + 1], *filter(None, [node.module])))
            else:
                base = node.module or ""
            if base.partition(".")[0] != "netstack" and not node.level:
                continue
            lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            start = starts[node.lineno - 1] + len(lines[0].encode()[: node.col_offset].decode())
            stop = starts[node.end_lineno - 1] + len(lines[-1].encode()[: node.end_col_offset].decode())
            before = text[start:stop]
            groups = self._groups(node, base, home)
            names = [alias.name + (f" as {alias.asname}" if alias.asname else "") for alias in node.names]
            heads = {place: relative(place, home, was_relative=bool(node.level)) for place in groups}
            if list(groups.values()) == [names]:
                new = re.sub(r"(?<=from )[\w.]+", next(iter(heads.values())), before, count=1)
            elif "#" in before:
                raise SystemExit(f"{file}:{node.lineno}: a comment inside an import would be lost")
            else:
                parts_of = (f"from {heads[place]} import ({', '.join(shown)})" for place, shown in groups.items())
                new = f"\n{' ' * node.col_offset}".join(parts_of)
            if new != before:
                yield start, stop, new

    def _groups(self, node: ast.ImportFrom, base: str, home: str | None) -> dict[str, list[str]]:
        """What is imported, by the module that has it now."""
        groups: dict[str, list[str]] = {}
        for alias in node.names:
            module = f"{base}.{alias.name}"
            if module in self._modules:
                place, _, leaf = self.name(module).rpartition(".")
            else:
                place, leaf = self.name(base), alias.name
            shown = leaf if leaf == (alias.asname or alias.name) else f"{leaf} as {alias.asname or alias.name}"
            if alias.asname == alias.name:
                shown = f"{leaf} as {alias.asname}"
            groups.setdefault(place, []).append(shown)
        return groups


def relative(module: str, home: str | None, *, was_relative: bool) -> str:
    """How a module in the package `home` names `module`: relative inside one root package, as before."""
    if home is None or not was_relative or module.partition(".")[0] != home.partition(".")[0]:
        return module
    ours, theirs = home.split("."), module.split(".")
    common = 0
    while common < min(len(ours), len(theirs)) and ours[common] == theirs[common]:
        common += 1
    return "." * (len(ours) - common + 1) + ".".join(theirs[common:])


def module_of(file: str) -> str | None:
    """The module of a path; None outside our packages."""
    path = PurePosixPath(file)
    if path.suffix not in (".py", ".pyi") or path.parts[0] not in ("netstack", "transports", "bench"):
        return None
    parts = path.with_suffix("").parts
    if parts[0] != "netstack":
        parts = parts[1:]
        if parts[0] not in HOMES:
            return None
    return ".".join(parts).removesuffix(".__init__")


def folder_of(module: str) -> str:
    """The path of a module or package, without a suffix."""
    return HOMES.get(module.partition(".")[0], "") + module.replace(".", "/")


def test_folder(package: str) -> str:
    """The folder of a package's tests."""
    root, _, rest = package.partition(".")
    return "/".join(filter(None, (TEST_HOMES.get(root, "tests/netstack"), rest.replace(".", "/"))))


# ----------------------------------------------------------------------------------------------------------- long lines


def wrapped(text: str) -> str:
    """The text with docstrings and comments that became too wide wrapped again."""
    lines = text.split("\n")
    if max(map(len, lines)) <= WIDTH:
        return text
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            last = node.end_lineno or node.lineno
            if "noqa: E501" not in lines[last - 1]:  # a table
                docs.update(range(node.lineno - 1, last))
    number = 0
    while number < len(lines):
        line = lines[number]
        if len(line) > WIDTH and (number in docs or line.lstrip().startswith("#")):
            number = _wrap(lines, number, docs)
        number += 1
    return "\n".join(lines)


def _wrap(lines: list[str], first: int, docs: set[int]) -> int:
    """Wraps the paragraph from a line on; returns its last line."""
    line = lines[first]
    margin = line[: len(line) - len(line.lstrip())]
    mark = "# " if line.lstrip().startswith("#") else ""
    indent = margin + mark
    if re.match(r"- |\w+: ", line.strip()) and not mark and line.strip().startswith("- "):
        indent = margin + "  "
    words = [line.strip().removeprefix("#").strip()]
    last = first
    if line.count('"""') < 2 and not (line.rstrip().endswith('"""') and not line.strip().startswith('"""')):
        while last + 1 < len(lines):
            following = lines[last + 1]
            text = following.strip()
            if (
                not text
                or text.startswith(("- ", '"""'))
                or not following.startswith(indent.rstrip() if mark else indent)
            ):
                break
            if not mark and (len(following) - len(following.lstrip()) != len(indent) or last + 1 not in docs):
                break
            if mark and not text.startswith("#"):
                break
            if re.match(r"(Takes|Gives|Rules|Raises|Args|Returns)\b.*:", text):
                break
            words.append(text.removeprefix("#").strip())
            last += 1
            if following.rstrip().endswith('"""'):
                break
    whole = " ".join(words)
    ending = ""
    if whole.endswith('"""') and not mark and len(words) == 1 and whole.startswith('"""'):
        ending = f'\n{margin}"""'
        whole = whole[:-3]
    made = textwrap.wrap(
        whole,
        WIDTH,
        initial_indent=margin + mark,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    made = "\n".join(made).split("\n") + ([f'{margin}"""'] if ending else [])
    shift = len(made) - (last + 1 - first)
    lines[first : last + 1] = made
    moved = {each if each < first else each + shift for each in docs}
    docs.clear()
    docs.update(moved | set(range(first, first + len(made))) if not mark else moved)
    return first + len(made) - 1


# ---------------------------------------------------------------------------------------------------------- everything


def edit(floor: str) -> None:
    """What `edits.toml` has for a floor, and the whole files of `files/FLOOR`."""
    problems = []
    for each in tomllib.loads((HERE / "edits.toml").read_text(encoding="utf-8")).get(floor, []):
        path = ROOT / each["file"]
        if each.get("optional") and not path.exists():
            print(f"{each['file']} is gone")
            continue
        text = path.read_text(encoding="utf-8")
        old = re.compile(each["old"] if each.get("pattern") else re.escape(each["old"]), re.DOTALL)
        count = len(old.findall(text))
        if each.get("optional"):
            if not count:
                print(f"{each['file']} no longer has {each['old']!r}")
        elif count != each.get("count", 1):
            problems.append(f"{each['file']} has {count} times: {each['old']!r}")
            continue
        text = old.sub(each["new"].replace("\\", r"\\"), text)
        path.write_text(wrapped(text) if path.suffix == ".py" else text, encoding="utf-8")
    if problems:
        raise SystemExit("\n".join(problems))
    folder = HERE / "files" / floor
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if file.is_file():
            target = (ROOT / file.relative_to(folder)).with_suffix("")  # of `.new`
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)


def link_environment() -> None:
    """Makes an editable installation in `.venv` find the packages where they lie now."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    places = dict.fromkeys(str((ROOT / each).parent) for each in packages["packages"])
    for file in ROOT.glob(".venv/lib/python3*/site-packages/_editable_impl_netstack.pth"):
        replace(file, "\n".join(places))
    for file in (
        *ROOT.glob(".venv/lib/python3*/site-packages/netstack-*.dist-info/entry_points.txt"),
        ROOT / ".venv/bin/netstack-bench",
    ):
        if file.exists() and (ROOT / "bench").is_dir():
            text = file.read_text().replace("netstack.bench.mesh.", "netstack_bench.places.hosts.")
            replace(file, text.replace("netstack.bench.", "netstack_bench."))


def replace(file: Path, text: str) -> None:
    """Writes a file of `.venv` anew: clones may share it."""
    mode = file.stat().st_mode
    file.unlink()
    file.write_text(text)
    file.chmod(mode)


def tidy() -> None:
    """Sorts imports and formats."""
    ruff = ROOT / ".venv/bin/ruff"
    subprocess.run([ruff, "check", "-q", "--fix", "--select", "I,RUF022", "."], cwd=ROOT, check=False)
    subprocess.run([ruff, "format", "-q", "."], cwd=ROOT, check=True)


STEPS: Final[dict[str, str]] = {
    "base": "The ground floor has a room: what everyone may use is `netstack.base`",
    "transports": "Transports are an import package of their own beside the library, which finds them by scheme",
    "exchange": "A record's whole way is one room: `netstack.exchange`",
    "schedule": "Checkpoints are planned where jobs are planned: `netstack.schedule`",
    "network": "What users embed is one room: `netstack.network`, with its two other doors inside",
    "cluster": "What runs jobs is one room: `netstack.cluster`",
    "bench": "The benchmark is an import package of its own beside the library, which never imports it",
    "finish": "Old import paths that documents named warn; one contract states the floors",
}


def main() -> int:
    """Moves the floors that were asked for, or all."""
    if sys.argv[1:] == ["--environment"]:
        link_environment()
        return 0
    asked = sys.argv[1:] or list(STEPS)
    if git("status", "--porcelain", "--untracked-files=no"):
        raise SystemExit("commit or stash first")
    names = floors()
    for floor in asked:
        print(floor, flush=True)
        if floor in names:
            Move(names[floor]).run()
            tidy()
        edit(floor)
        link_environment()
        tidy()
        if floor == "finish":  # counts by room, and the interface: names of rooms have changed
            for script in ("tests/packaging/test_plain_words.py", "tools/render_api.py"):
                command = [str(ROOT / ".venv/bin/python"), script]
                subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": "tests/support"}, check=True)
        git("add", "--all")
        git("commit", "--quiet", "--message", STEPS[floor])
    return 0


if __name__ == "__main__":
    sys.exit(main())
