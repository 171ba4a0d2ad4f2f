"""The version of this release, in a module of its own so that every layer may read it; `pyproject.toml` takes it from here."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.4.0"
