"""Names of functions and classes that another process can find too: `package.module:attribute`.

Takes: a name, or something importable. Gives: the name.

Rules: nothing is imported here, and nothing is pickled; a lambda has no name, so it is refused. What a program defines
that is run itself is named by the module that the program's file is (`words.py`: `words`), not `__main__`: that is
another module in every process.
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
"""Something importable, or its name."""

_NAME: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def name_of(function: Named, *, what: str = "operator") -> str:
    """The name by which another process finds a function or a class.

    Args:
        function: it, or its name, which is only checked for its form.
        what: what it is for, for messages.

    Raises:
        ConfigError: a lambda, a function inside a function, an object: nothing that a name could stand for.
    """
    if isinstance(function, str):
        if _NAME.fullmatch(function) is None:
            raise ConfigError(f"{what} {function!r} is no name; write it like package.module:attribute")
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
    found: Any = sys.modules.get(module)
    for attribute in path.split("."):
        found = getattr(found, attribute, None)
    if found is not function:
        raise ConfigError(f"{what}: {module}:{path} is not {function!r}, but {found!r}; give what has that name")
    if module == "__main__":
        module = _importable(sys.modules["__main__"])
        if not module:
            raise ConfigError(
                f"{what} {path} is defined where no other process can import it; write it into a module, in a file"
            )
    return f"{module}:{path}"


def _importable(main: ModuleType) -> str:
    """The name of the module that the program's file is; empty of what was typed, or read from a pipe."""
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module; of a package that is package.__main__
        return str(spec.name)
    name = Path(getattr(main, "__file__", None) or "").stem
    return name if name.isidentifier() else ""
