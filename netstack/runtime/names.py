"""Resolves names of functions and classes such as `package.module:attribute`, received from other processes.

Takes: a name (see `function_names`), or the object itself. Gives: a callable.

Rules: resolving imports the module, so callers check untrusted names first (`taskmanager.code`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError
from ..function_names import Named
from ..safe_text import type_text


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
        target: Any = importlib.import_module(module_name)
        for attribute in path.split("."):
            target = getattr(target, attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{name!r} cannot be imported: {error}; install its package, and put it on the Python path of every process"
        ) from error
    if not callable(target):
        raise ConfigError(f"{name!r} is {type_text(target)}; give a function or a class")
    return target  # type: ignore[no-any-return]  # callable narrows Any to nothing better
