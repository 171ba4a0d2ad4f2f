"""The import packages of this distribution, and the folders that they are imported from.

Takes: nothing. Gives: their names; what `PYTHONPATH` needs so that another process imports the same copies.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

OWN_PACKAGES: Final = ("netstack", "netstack_transports", "netstack_bench")
"""The packages that `pyproject.toml` puts into the wheel."""


def package_folders() -> list[Path]:
    """The folder of each package of ours."""
    specs = [find_spec(package) for package in OWN_PACKAGES]
    return [Path(place) for spec in specs if spec is not None for place in spec.submodule_search_locations or ()]


def import_folders() -> list[str]:
    """The folders that contain them, each once."""
    return list(dict.fromkeys(str(folder.parent) for folder in package_folders()))
