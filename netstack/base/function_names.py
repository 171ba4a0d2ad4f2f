"""Importable names of functions and classes, such as `package.module:attribute`, which another process can resolve.

Takes: a name, or an importable object. Gives: the name.

Rules: this module imports and pickles nothing. A lambda has no name and is refused. A function defined in the program's
main file is named by that file's module (`words.py`: `words`) rather than `__main__`, which is a different module in
each process.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

from .errors import ConfigError

Named: TypeAlias = "str | Callable[..., Any]"
"""An importable function or class, or its name."""

_NAME: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def name_of(function: Named, *, what: str = "operator") -> str:
    """Returns the name by which another process can import a function or a class.

    Args:
        function: the object, or its name; of a name only the form is checked.
        what: the role of the object, for error messages.

    Raises:
        ConfigError: it is a lambda, a function defined inside a function, or an object without a name.
    """
    if isinstance(function, str):
        if _NAME.fullmatch(function) is None:
            raise ConfigError(f"{what} {function!r} is not a valid name; write it like package.module:attribute")
        return function
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not path:
        raise ConfigError(
            f"{what} {function!r} has no name that another process could import; give a function or a class at the top"
            " of a module"
        )
    if "<lambda>" in path:
        raise ConfigError(
            f"{what}: a lambda (in {module}) has no name that another process could import; define a function at the"
            " top of the module"
        )
    if "<locals>" in path:
        raise ConfigError(f"{what} {path} of {module} is defined inside a function; move it to the top of the module")
    target: Any = sys.modules.get(module)
    for attribute in path.split("."):
        target = getattr(target, attribute, None)
    if target is not function and target != function:  # a class method is a new object each time
        raise ConfigError(
            f"{what} {function!r}: its name {module}:{path} refers to {target!r}; give the object that has this name"
        )
    if module in ("__main__", "__mp_main__"):  # the second in processes that multiprocessing spawns
        module = _name_of_main(sys.modules[module], f"{what} {path}")
    return f"{module}:{path}"


def _name_of_main(main: ModuleType, what: str) -> str:
    """The name of the main file's module."""
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module; of a package that is package.__main__
        return str(spec.name)
    file = getattr(main, "__file__", None) or "<stdin>"
    if file.startswith("<"):  # typed interactively, or read from a pipe
        raise ConfigError(
            f"{what} is defined interactively, so no other process can import it; move it into a module file"
        )
    path = Path(file)
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise ConfigError(
            f"{what} is defined in {path.name}, which no process can import by this name; rename the file: letters,"
            " digits and underscores, and .py at the end"
        )
    return path.stem
