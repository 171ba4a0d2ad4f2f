"""What a name stands for: functions and classes that another process names as `package.module:attribute`.

Takes: a name (see `function_names`), or what it would stand for. Gives: something to call.

Rules: the module is imported, so whoever takes names from others asks first what may be (`taskmanager.code`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError
from ..function_names import Named


def load(name: Named) -> Callable[..., Any]:
    """What a name stands for; something callable stands for itself.

    Raises:
        ConfigError: there is no such module or attribute, or it cannot be called.
    """
    if callable(name):
        return name
    module_name, separator, path = name.partition(":")
    if not separator or not module_name or not path:
        raise ConfigError(f"{name!r} is no name; write it like package.module:attribute")
    try:
        target: Any = importlib.import_module(module_name)
        for attribute in path.split("."):
            target = getattr(target, attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{name!r} is not there: {error}; is its package installed, and in the path of every process?"
        ) from error
    if not callable(target):
        raise ConfigError(f"{name!r} is a {type(target).__name__}, and has to be something to call")
    return target  # type: ignore[no-any-return]  # callable narrows Any to nothing better
