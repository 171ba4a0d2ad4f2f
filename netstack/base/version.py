"""The version of this release, in a module of its own for every layer; `pyproject.toml` reads it here."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.4.0"
