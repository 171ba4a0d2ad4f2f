"""Renders the keys of a run's document into its JSON schema and METHOD.md, so that none can change alone.

Takes: `netstack_bench.document.KEYS`. Gives: `run.schema.json`, and METHOD.md's tables between
`<!-- keys of X -->` and `<!-- /keys -->`. Run it after changing a key; `--check` writes nothing and fails when a file
is out of date.

    python tools/render_run_document.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "transports")]

from netstack_bench.document import schema, table  # noqa: E402
from netstack_bench.store import STRUCTS  # noqa: E402 - the tree beside this file

FOLDER = ROOT / "bench" / "netstack_bench"
_TABLE = re.compile(r"(<!-- keys of (run|hosts) -->\n).*?(<!-- /keys -->\n)", re.DOTALL)


def rendered() -> dict[Path, str]:
    """Both files as they should be."""
    method = FOLDER / "METHOD.md"
    text = _TABLE.sub(lambda match: match[1] + table(match[2]) + match[3], method.read_text(encoding="utf-8"))
    return {
        method: text,
        FOLDER / "run.schema.json": json.dumps(schema(STRUCTS["sample"]), indent=1, ensure_ascii=False) + "\n",
    }


def main(arguments: Sequence[str]) -> int:
    """Writes both files, or with `--check` names those that are out of date."""
    stale = [(path, text) for path, text in rendered().items() if path.read_text(encoding="utf-8") != text]
    for path, text in stale:
        if "--check" in arguments:
            print(f"{path.name} is out of date: run python tools/render_run_document.py")
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
