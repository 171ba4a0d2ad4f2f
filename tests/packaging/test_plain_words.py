"""Names and sentences are plain: no package gets more idioms than `tests/data/idioms.json` counts.

The tables say what to write instead. Who renames some lowers the counts:
`PYTHONPATH=tests/support python tests/packaging/test_plain_words.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tool_modules import load_tool

PACKAGES: Final = load_tool("import_packages").PACKAGES
ROOT: Final = Path(__file__).parents[2]
BASELINE: Final = ROOT / "tests/data/idioms.json"
NAMES: Final = {
    "apart": "separate",
    "asks": "requests",
    "consider": "enqueue_if_ready",
    "found": "what it is: entry, match, taskmanager",
    "gone": "lost, closed",
    "heard": "on_message, received",
    "held_up": "blocked",
    "kick": "flush_connections",
    "poke": "read_connections",
    "said": "message, text",
    "shown": "text, label",
    "take_news": "drain_events",
    "tell": "notify, print",
    "told": "output, report",
    "visits": "turns",
}
"""Of each name that says nothing to a reader, what to write instead."""
SENTENCES: Final = {
    r"\bwho(?:ever)? (?:hears|asks|says|tells|reads|writes|receives|waits)\b": "name the class or the process",
    r"\b(?:is|are|was|were|be|been|being) told\b": "receives, is notified, is printed",
    r"\b(?:has|have|had) nothing to say\b": "sends nothing",
    r"\bsays? (?:instructions|events)\b": "returns instructions",
    r"\bhas an? [A-Z]\w+ (?:run|make|do|send)\b": "runs it on, sends it through",
    r'^ *"""(?:See|As) ': "say it in a sentence",
}
_NAME: Final = rf"^ *(?:(?:async )?(?:def|class|for) |self\.)?_?({'|'.join(NAMES)})(?:\(| in |: [^=\n]+ = | = )"
_RULES: Final = [(re.compile(pattern, re.MULTILINE), instead) for pattern, instead in {_NAME: "", **SENTENCES}.items()]


def idioms(path: Path) -> Iterator[str]:
    """Each idiom in a file, with its place and what to write instead."""
    text = path.read_text(encoding="utf-8")
    for rule, instead in _RULES:
        for match in rule.finditer(text):
            line = text.count("\n", 0, match.start(match.lastindex or 0)) + 1
            words = match[match.lastindex or 0].strip()
            place = str(path).removeprefix(f"{ROOT}/")
            yield f"{place}:{line}: {words!r}: {instead or NAMES[words]}"


def by_package() -> dict[str, list[str]]:
    """The idioms of each package of netstack and of its rooms, of the tests by folder, and of the documents."""
    packages: dict[str, list[str]] = {}
    pages = [*ROOT.glob("*.md"), *(ROOT / "tools").rglob("*.md")]
    for root in (*PACKAGES, Path("tests")):
        for path in sorted((ROOT / root).rglob("*.py")):
            if path == Path(__file__):
                continue  # it quotes them
            parts = path.relative_to(ROOT / root.parent).parent.parts
            packages.setdefault(".".join(parts[:2]), []).extend(idioms(path))
        pages += (ROOT / root).rglob("*.md")
    packages["documents"] = [each for path in sorted(pages) for each in idioms(path)]
    return {package: each for package, each in packages.items() if each}


def test_no_package_has_more_idioms_than_before() -> None:
    allowed = json.loads(BASELINE.read_text())
    for package, places in by_package().items():
        most = allowed.get(package, 0)
        assert len(places) <= most, f"{most} are allowed, use plain words in the new one of these:\n" + "\n".join(
            places
        )


def test_idioms_are_noticed(tmp_path: Path) -> None:
    text = (
        '"""See `x`."""\ndef f():\n    found = 1\n    self._gone = found\n# who hears it is told\nfound.append(gone)\n'
    )
    (tmp_path / "a.py").write_text(text)
    noticed = [each.split(":")[1:3] for each in idioms(tmp_path / "a.py")]
    assert sorted(noticed) == [
        ["1", ' \'"""See\''],
        ["3", " 'found'"],
        ["4", " 'gone'"],
        ["5", " 'is told'"],
        ["5", " 'who hears'"],
    ]


if __name__ == "__main__":
    counts = {package: len(places) for package, places in sorted(by_package().items())}
    BASELINE.write_text(json.dumps(counts, indent=1) + "\n")
