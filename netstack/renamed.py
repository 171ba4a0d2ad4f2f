"""Names of the release before, which still work for one release and say what took their place.

Takes: both names. Gives: a `DeprecationWarning` at the line that used the old one.
"""

from __future__ import annotations

import warnings


def warn_renamed(old: str, new: str) -> None:
    """Says that a public name has another one now; called by a module's `__getattr__`."""
    warnings.warn(f"{old} is {new} now; the old name goes with the next release", DeprecationWarning, stacklevel=3)
