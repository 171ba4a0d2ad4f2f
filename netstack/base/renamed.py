"""Deprecated public names, which work for one more minor release.

Takes: the old and the new name. Gives: a `DeprecationWarning` at the line that used the old one.
"""

from __future__ import annotations

import warnings


def warn_renamed(old: str, new: str) -> None:
    """Warns that a public name was renamed; called by a module's `__getattr__`."""
    warnings.warn(
        f"{old} was renamed to {new}; the next minor release removes the old name", DeprecationWarning, stacklevel=3
    )
