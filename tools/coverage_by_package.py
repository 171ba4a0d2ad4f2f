"""Prints what tests cover, by package: `make coverage`.

Takes: the JSON report of coverage.py, with branches. Gives: a line for each package of netstack, the least covered
first.

    python tools/coverage_by_package.py build/coverage.json
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from import_packages import module_of


def main(path: str) -> None:
    """Prints the table."""
    packages: dict[str, Counter[str]] = {}
    for name, file in json.loads(Path(path).read_text(encoding="utf-8"))["files"].items():
        parts = (module_of(Path(name)) or "").split(".")
        for package in (".".join(parts[:2]), "all"):
            packages.setdefault(package, Counter()).update(
                {key: value for key, value in file["summary"].items() if key.startswith(("num_", "covered_"))}
            )
    print(f"{'package':24} {'statements':>10} {'covered':>8} {'branches':>10} {'covered':>8}")
    for package, counts in sorted(
        packages.items(), key=lambda each: each[1]["covered_branches"] / (each[1]["num_branches"] or 1)
    ):
        lines, branches = counts["num_statements"], counts["num_branches"]
        print(
            f"{package:24} {lines:10,} {counts['covered_lines'] / (lines or 1):8.1%} "
            f"{branches:10,} {counts['covered_branches'] / (branches or 1):8.1%}"
        )


if __name__ == "__main__":
    main(sys.argv[1])
