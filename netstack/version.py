"""The version of this release, as `pyproject.toml` says it; in a module of its own, so that every layer may tell it."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.3.0"
