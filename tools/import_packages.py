"""The import packages of the distribution and where they lie, for the other tools and the tests.

Takes: `pyproject.toml`. Gives: the folder of each package, and the folders that contain them.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_SETTINGS: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

PACKAGES: Final = tuple(Path(each) for each in _SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
"""The folder of each package, relative to the root, as the wheel has them."""


def search_path(tree: Path = ROOT) -> str:
    """`PYTHONPATH` for the packages of a copy of the repository."""
    return os.pathsep.join(dict.fromkeys(str(tree / package.parent) for package in PACKAGES))


def module_of(path: Path) -> str | None:
    """The module of a file relative to the root; None if it belongs to no package."""
    for package in PACKAGES:
        if path.suffix == ".py" and package in path.parents:
            return ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
    return None
