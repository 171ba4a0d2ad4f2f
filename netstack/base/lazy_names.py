"""Imports the public names of a package when they are first used; the stub `__init__.pyi` beside it lists each once.

Takes: the package. Gives: its `__getattr__`, which also has `__all__`. Type checkers read the same stub.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


@functools.cache
def homes(package: str) -> Mapping[str, str]:
    """The modules of a package's public names, as its stub imports them."""
    stub = Path(str(sys.modules[package].__file__)).with_suffix(".pyi")
    imports = (each for each in ast.parse(stub.read_text("utf-8")).body if isinstance(each, ast.ImportFrom))
    return {
        name.name: each.module
        for each in imports
        if each.level and each.module
        for name in each.names
        if name.name[0] != "_"
    }


def lazy_names(package: str, before: Callable[[str], object] | None = None) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: its `__name__`.
        before: called with the module of a name at each access, before that is imported.
    """

    def attribute(name: str) -> Any:
        if name == "__all__":
            return sorted(homes(package))
        if name[0] == "_" or name not in homes(package):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = homes(package)[name]
        if before is not None:
            before(module)
        value = getattr(import_module(f".{module}", package), name)
        if before is None:
            setattr(sys.modules[package], name, value)  # the next access does not come here
        return value

    return attribute
