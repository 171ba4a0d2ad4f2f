"""Which code a daemon runs: names on its allow list, loaded when they are first deployed.

Takes: `package.module:attribute`. Gives: the async function behind it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias, final

from ..errors import ConfigError
from ..parts import PARTS
from ..runtime.causes import told
from ..runtime.names import load
from .build import build_of
from .task import Task

Invokable: TypeAlias = Callable[[Task], Awaitable[Any]]

BENCHMARK: Final = "netstack.bench.mesh.invokables:"
"""What every daemon runs: the benchmark's own source, relay and sink."""


@final
class AllowList:
    """Names that may be run.

    Args:
        prefixes: such as `mypackage.` or `mypackage.jobs:`; each ends where a name may go on.

    Raises:
        ConfigError: a prefix would let in more than it says.
    """

    def __init__(self, prefixes: Iterable[str] = ()) -> None:
        self.prefixes = (BENCHMARK, *prefixes)
        for prefix in self.prefixes:
            if not prefix.endswith((".", ":")) or prefix[0] in ".:":
                raise ConfigError(
                    f"--allow {prefix!r}: end it with '.' (all modules of a package) or ':' (all of a module),"
                    " such as mypackage. or mypackage.jobs:"
                )

    def check(self, name: str) -> None:
        """Whether a name may be run.

        Raises:
            ConfigError: no.
        """
        if not name.startswith(self.prefixes):
            raise ConfigError(
                f"{name!r:.120} may not be run here: allowed are {', '.join(f'{each}*' for each in self.prefixes)};"
                " start the daemon with --allow PACKAGE. to add yours"
            )

    def load(self, name: str) -> Invokable:
        """What a name stands for. Imports its module: call it in a thread.

        Raises:
            ConfigError: it may not be run, is not there, or is no async function.
        """
        self.check(name)
        try:
            found = load(name)
        except ConfigError:
            raise
        except BaseException as error:  # a module may do anything while it is imported, sys.exit() included
            raise ConfigError(f"{name!r:.120} cannot be imported: {told(error)}") from error
        home = f"{getattr(found, '__module__', '')}:{getattr(found, '__qualname__', '')}"
        if not home.startswith(self.prefixes):
            raise ConfigError(
                f"{name!r:.120} is {home}, which may not be run here: an allowed module that imports something does not"
                " allow it"
            )
        if not inspect.iscoroutinefunction(found):
            raise ConfigError(f"{name!r} is no `async def`; an invokable is `async def attribute(task: Task)`")
        return found


def check_builds(packages: Iterable[str], theirs: dict[str, Any]) -> None:
    """Compares the code behind the invokables with what the sender has. Reads files: call it in a thread.

    Args:
        packages: those that the invokables are in, allowed and loaded; what else the sender names is not looked at.
        theirs: the sender's builds.

    Raises:
        ConfigError: a package is another build here, or the sender does not name it.
    """
    for package in packages:
        here, there = build_of(package), theirs.get(package)
        if here != there:
            raise ConfigError(
                f"package {package!r} is build {here} here, and {there or 'not told'!s:.40} at the coordinator: install"
                " one release on every host, and restart the daemons"
            )


def root_package(invokable: str) -> str:
    """The package a name is in; netstack's parts are packages of their own."""
    module = invokable.partition(":")[0]
    return next((part for part in PARTS if module.startswith(f"{part}.")), module.partition(".")[0])
