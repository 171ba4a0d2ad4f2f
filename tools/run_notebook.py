"""Runs the notebooks of `tools/examples` without Jupyter, and looks whether they print what is stored in them.

    python tools/run_notebook.py tools/examples/flow_control.ipynb            # exit code 1 where the outputs differ
    python tools/run_notebook.py tools/examples/flow_control.ipynb --write    # stores what it prints now

Takes: notebooks of format 4. Gives: their outputs, checked or stored. A cell may print; a last expression is shown as
Jupyter shows it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def run_cell(source: str, names: dict[str, Any]) -> str:
    """Runs a cell; what it prints, and the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            assert isinstance(last, ast.Expr)
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # noqa: S307  # our own
            if value is not None:
                print(repr(value))
    return printed.getvalue()


def stored(cell: dict[str, Any]) -> str:
    """What a cell has printed when it was stored."""
    return "".join("".join(output.get("text", "")) for output in cell["outputs"])


def run(path: Path, *, is_written: bool) -> list[str]:
    """Runs a notebook.

    Args:
        path: of the notebook.
        is_written: whether its outputs are stored.

    Returns:
        A text for each cell whose output is not what is stored.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "notebook"}
    differences = []
    count = 0
    for cell in document["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        text = run_cell("".join(cell["source"]), names)
        if text != stored(cell):
            differences.append(f"{path.name}, cell {count}: printed\n{text}\ninstead of\n{stored(cell)}")
        lines = text.splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
        cell["execution_count"] = count
    if is_written:
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return differences


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Runs notebooks without Jupyter.")
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="store what they print")
    arguments = parser.parse_args()
    differences = [text for path in arguments.notebooks for text in run(path, is_written=arguments.write)]
    if differences and not arguments.write:
        sys.stderr.write("\n".join(differences) + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
