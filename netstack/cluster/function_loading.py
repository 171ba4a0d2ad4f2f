"""Resolves names of functions and classes such as `package.module:attribute`, received from other processes.

Takes: a name (see `function_names`), or the object itself. Gives: a callable.

Rules: resolving imports the module, so callers check untrusted names first (`cluster.taskmanager.code`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final

from ..base.errors import ConfigError
from ..base.function_names import Named
from ..base.text.safe_text import type_text

_importing: Final[ContextVar[str]] = ContextVar("importing", default="")
"""The module of a job that is being imported in this thread or task."""


def import_code(module_name: str) -> ModuleType:
    """Imports a module of a job, which must not run jobs meanwhile. Raises what the import raises."""
    before = _importing.set(module_name)
    try:
        return importlib.import_module(module_name)
    finally:
        _importing.reset(before)


def refuse_while_importing(call: str) -> None:
    """Checks that no module of a job is being imported: its processes would start jobs without end.

    Args:
        call: what was called.

    Raises:
        ConfigError: one is.
    """
    if module_name := _importing.get():
        raise ConfigError(
            f"{call} was called while {module_name} was imported; every process of a job imports its module, so write"
            ' if __name__ == "__main__": before the call'
        )


def load(name: Named) -> Callable[..., Any]:
    """Returns the callable that a name refers to; a callable is returned unchanged.

    Raises:
        ConfigError: the module or attribute does not exist, or is not callable.
    """
    if callable(name):
        return name
    module_name, separator, path = name.partition(":")
    if not separator or not module_name or not path:
        raise ConfigError(f"{name!r} is not a valid name; write it like package.module:attribute")
    try:
        target: Any = import_code(module_name)
        for attribute in path.split("."):
            target = getattr(target, attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{name!r} cannot be imported: {error}; install its package, and put it on the Python path of every process"
        ) from error
    if not callable(target):
        raise ConfigError(f"{name!r} is {type_text(target)}; give a function or a class")
    return target  # type: ignore[no-any-return]  # callable narrows Any to nothing better
