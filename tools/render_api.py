"""Writes down the public interface: what the reference pages show, with signatures, one line each.

Takes: the pages in `tools/docs/pages/reference`, and the sources. Gives: `tests/data/api.txt`, which a test compares,
so that each change of the interface is a line of a reviewed diff; and the types of netstack that shown signatures name
and no page shows.

    python tools/render_api.py            write it
    python tools/render_api.py --check    exit with 1 where it differs
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, Final

import griffe
from import_packages import ROOT, search_path

PAGES: Final = ROOT / "tools/docs/pages/reference"
STORED: Final = ROOT / "tests/data/api.txt"
UNREAD: Final = frozenset(("cli", "examples", "spark", "testing"))
"""Packages that no page shows anything of: to read them would take twice as long."""
INTERNAL: Final = frozenset(("netstack.network.waiting.parking.Parking",))
"""Types of keyword arguments that `netstack.blocking` and `netstack.aio` give, and users do not."""


def shown() -> dict[str, tuple[list[str] | None, bool]]:
    """What the pages show: by its name its members (None: all of its own), and whether its constructor is shown."""
    entries: dict[str, tuple[list[str] | None, bool]] = {}
    for page in sorted(PAGES.glob("*.md")):
        for name, options in re.findall(r"^::: ([\w.]+)$((?:\n +.*)*)", page.read_text(), re.MULTILINE):
            members = re.search(r"members: \[(.*?)\]", options)
            chosen = None if members is None else re.findall(r"\w+", members[1])
            entries[name] = (chosen, "merge_init_into_class: false" not in options)
    return entries


def read() -> Any:
    """Reads netstack from its sources."""
    loader = griffe.GriffeLoader(search_paths=search_path().split(os.pathsep), extensions=griffe.load_extensions())
    submodules = loader.finder.submodules
    loader.finder.submodules = lambda module: [  # type: ignore[method-assign]
        each for each in submodules(module) if each[0][0] not in UNREAD
    ]
    return loader.load("netstack")


def target(package: Any, path: str) -> Any:
    """The definition that a public or private path of netstack leads to."""
    found = package[path.removeprefix("netstack.")]
    return found.final_target if found.is_alias else found


def parts(package: Any) -> Iterator[tuple[str, Any]]:
    """Each shown name with its definition: exports, then their members."""
    for name, (members, has_constructor) in shown().items():
        found = target(package, name)
        yield name, found
        if not found.is_class:
            continue
        known = {**found.inherited_members, **found.members} if members is not None else found.members
        chosen = [each for each in known if not each.startswith("_")] if members is None else members
        for member in [*(["__init__"] if has_constructor and "__init__" in found.all_members else []), *chosen]:
            if member not in found.all_members:
                raise LookupError(f"the page shows {name}.{member}, which does not exist")
            inside = found.all_members[member]
            yield f"{name}.{member}", inside.final_target if inside.is_alias else inside


def line(name: str, part: Any) -> str:
    """A definition in a line."""
    if part.is_class:
        return f"class {name}({', '.join(base for base in map(str, part.bases) if not base.startswith('_'))})"
    if part.is_module:
        return f"module {name}"
    if part.is_function:
        return f"{'async ' if 'async' in part.labels else ''}{part.signature().replace(part.name, name, 1)}"
    value = f" = {part.value}" if part.value is not None and "enum" in str(getattr(part.parent, "bases", "")) else ""
    return f"{name}{f': {part.annotation}' if part.annotation is not None else ''}{value}"


def types_in(package: Any, annotation: Any) -> Iterator[Any]:
    """The classes of netstack that an annotation names, also by an alias."""
    for word in annotation.iterate(flat=True) if isinstance(annotation, griffe.Expr) else ():
        path = word.canonical_path if isinstance(word, griffe.ExprName) else ""
        if path.startswith("netstack."):
            found = target(package, path)
            if found.is_class:
                yield found
            elif found.is_attribute:
                yield from types_in(package, found.value)


def unknown_types(package: Any) -> dict[str, str]:
    """Classes of netstack that a shown signature names and no page shows, each with the first place that names it."""
    shown_parts = list(parts(package))
    known = {found.canonical_path for _, found in shown_parts} | INTERNAL
    missing: dict[str, str] = {}
    for name, part in shown_parts:
        annotations = [*(each.annotation for each in part.parameters), part.returns] if part.is_function else []
        for found in (each for annotation in annotations for each in types_in(package, annotation)):
            if found.canonical_path not in known:
                missing.setdefault(found.canonical_path, name)
    return missing


def text_of(package: Any) -> str:
    """The public interface as it is stored."""
    return "".join(f"{line(name, part)}\n" for name, part in sorted(parts(package), key=lambda each: each[0]))


def main() -> int:
    """Writes the interface, or compares it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the stored one differs")
    given = parser.parse_args()
    package = read()
    text = text_of(package)
    missing = unknown_types(package)
    for path, name in missing.items():
        print(f"{name} names {path}, which no page of the reference shows", file=sys.stderr)
    if not given.check:
        STORED.write_text(text)
        return 0
    stored = STORED.read_text() if STORED.exists() else ""
    sys.stderr.writelines(difflib.unified_diff(stored.splitlines(True), text.splitlines(True), "stored", "now", n=0))
    return int(stored != text or bool(missing))


if __name__ == "__main__":
    sys.exit(main())
