"""Loads the job that a command line names: `module:attribute`, or a JSON job file.

Takes: the name, and parameters for the function that builds the job. Gives: the job's graph.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from ..base.errors import ConfigError
from ..base.text.safe_text import is_utf8, safe_error, safe_repr, type_text
from ..cluster.failure_report import rendered, with_place
from ..cluster.function_loading import import_code
from ..cluster.tracebacks import describe
from ..schedule.graph.job_file import read_job
from ..schedule.graph.job_graph import JobGraph
from ..schedule.graph.stream_builder import StreamEnvironment
from ..schedule.graph.stream_graph import StreamGraph
from .values import Parsed


class JobNotBuilt(ConfigError):
    """User code raised while it was imported or while it built the job.

    Attributes:
        traceback: the traceback, beginning with the first frame of user code.
    """

    def __init__(self, text: str, error: Exception) -> None:
        report = describe(error)
        super().__init__(with_place(text, report))
        self.traceback = rendered(report, folded=False)


def _named_value(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise ConfigError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def job_parameters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `input_file` and `given`, the arguments of the function that builds the job."""
    for option in (
        click.option(
            "-p",
            "given",
            type=Parsed("NAME=VALUE", _named_value),
            metavar="NAME=VALUE",
            multiple=True,
            help="Argument of the function that builds the job; repeatable. It is converted to the type of the"
            " parameter's annotation or default.",
        ),
        click.option(
            "--input",
            "input_file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Shorthand for -p input=/ABSOLUTE/PATH/OF/FILE. Sources read the file on the hosts where they run.",
        ),
    ):
        command = option(command)
    return command


def savepoint_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `from_savepoint` and `allow_non_restored_state`."""
    allow = click.option(
        "--allow-non-restored-state",
        is_flag=True,
        help="With --from: ignore state of operators that JOB does not have.",
    )
    return click.option(
        "--from", "from_savepoint", metavar="FOLDER", help="Start from the savepoint or checkpoint in FOLDER."
    )(allow(command))


def checked_savepoint(from_savepoint: str | None, allow_non_restored_state: bool) -> str | None:
    """The folder of `--from`, as an absolute path if it exists on this host.

    Raises:
        ConfigError: `--allow-non-restored-state` without `--from`.
    """
    if from_savepoint is None and allow_non_restored_state:
        raise ConfigError("--allow-non-restored-state requires --from")
    exists_here = from_savepoint is not None and os.path.exists(from_savepoint)
    return os.path.abspath(from_savepoint) if from_savepoint is not None and exists_here else from_savepoint


def parameters_of(input_file: Path | None, given: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """The parameters that the flags of `job_parameters` set. Raises ConfigError: given twice, or not UTF-8."""
    parameters: dict[str, str] = {} if input_file is None else {"input": os.path.abspath(input_file)}
    for name, value in given:
        if name in parameters:
            raise ConfigError(f"the parameter {name!r} is given twice; give it once")
        parameters[name] = value
    for name, value in parameters.items():
        if not is_utf8(name + value):
            raise ConfigError(
                f"the parameter {name}={safe_repr(value)} is not UTF-8; rename the file, or give another text"
            )
    return parameters


def load_job(name: str, parameters: Mapping[str, str] | None = None) -> StreamGraph | JobGraph:
    """Loads a job by its name.

    Args:
        name: path of a job file, or `module:attribute`.
        parameters: arguments by name for the function that builds the job. An argument is converted to a number or a
            bool if the parameter has such an annotation or default.

    Raises:
        ConfigError: the file or attribute does not exist, is no job, or takes other parameters.
        JobNotBuilt: the function or its module raised.
    """
    path = Path(name)
    if path.suffix == ".py":
        raise ConfigError(f"{name!r} is a Python file; name the job in it, such as {path.stem}:job")
    if path.suffix == ".json" or path.is_file():
        if parameters:
            raise ConfigError(
                f"job file {name!r} takes no parameters; write them into the file, or give MODULE:FUNCTION instead"
            )
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"job file {name!r} cannot be read: {error}") from error
        try:
            return read_job(text, name=path.stem)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
    return _as_graph(name, _imported(name), parameters or {})


def load_stream_graph(name: str, parameters: Mapping[str, str]) -> StreamGraph:
    """Loads a job that is to run; see `load_job`.

    Raises:
        ConfigError: as `load_job`, and for a JobGraph, which can only be planned.
    """
    graph = load_job(name, parameters)
    if not isinstance(graph, StreamGraph):
        raise ConfigError(
            f"{name!r} is a JobGraph, which can only be planned; give a StreamEnvironment or a StreamGraph"
        )
    return graph


def _imported(name: str) -> Any:
    module, separator, path = name.partition(":")
    if not separator or not module or not path:
        raise ConfigError(f"{name!r} is no job; give MODULE:ATTRIBUTE, or the path of a JSON job file")
    if "/" in module or module.startswith(".") or module.endswith(".py"):
        file = Path(module.lstrip("."))
        parts = file.parts if not file.is_absolute() else (file.name,)
        dotted = ".".join(parts).removesuffix(".py")
        raise ConfigError(f"{name!r} names a file; give its module, such as {dotted}:{path}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        imported: Any = import_code(module)
    except ImportError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):  # none of the module's lines has run
            raise ConfigError(
                f"{name!r} cannot be loaded: {error}; run this in the folder that contains the module, or install it"
            ) from error
        raise JobNotBuilt(f"{name!r} cannot be loaded: {error}", error) from error
    except Exception as error:  # user code may raise anything
        raise _not_built(name, error) from error
    try:
        for attribute in path.split("."):
            imported = getattr(imported, attribute)
    except AttributeError as error:
        raise ConfigError(f"{name!r} cannot be loaded: {error}") from error
    return imported


def _not_built(name: str, error: Exception) -> JobNotBuilt:
    """Wraps an exception of user code. A ConfigError already explains what is wrong, so its text is kept."""
    message = str(error) if isinstance(error, ConfigError) else f"{name!r} cannot be built: {safe_error(error)}"
    return JobNotBuilt(message, error)


def _as_graph(name: str, job: Any, parameters: Mapping[str, str]) -> StreamGraph | JobGraph:
    if callable(job) and not isinstance(job, StreamEnvironment):
        arguments = _arguments(name, job, parameters)
        try:
            job = job(**arguments)
        except Exception as error:  # user code may raise anything
            raise _not_built(name, error) from error
    elif parameters:
        raise ConfigError(f"{name!r} is no function and takes no parameters; omit {', '.join(parameters)}")
    if isinstance(job, StreamEnvironment):
        job = job.stream_graph()
    if not isinstance(job, StreamGraph | JobGraph):
        raise ConfigError(
            f"{name!r} is {type_text(job)}; give a StreamEnvironment, a StreamGraph, a JobGraph, or a function"
            " that returns one"
        )
    return job


def _arguments(name: str, function: Callable[..., Any], parameters: Mapping[str, str]) -> dict[str, Any]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name!r} cannot be called without arguments: {error}") from error
    arguments = {key: _converted(key, value, signature.parameters.get(key)) for key, value in parameters.items()}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        takes = ", ".join(key for key, each in signature.parameters.items() if each.kind is not each.VAR_POSITIONAL)
        called = "with these parameters" if parameters else "without arguments"
        raise ConfigError(
            f"{name!r} cannot be called {called}: {error}; it takes {takes or 'none'} (-p NAME=VALUE)"
        ) from error
    return arguments


_SWITCHES = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def _converted(name: str, text: str, parameter: inspect.Parameter | None) -> Any:
    if parameter is None:
        return text
    kinds = {"bool": bool, "int": int, "float": float}
    annotation = parameter.annotation
    kind = kinds.get(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))
    if kind is None and type(parameter.default) in (bool, int, float):
        kind = type(parameter.default)
    try:
        if kind is bool:
            return _SWITCHES[text.lower()]
        return text if kind is None else kind(text)
    except (KeyError, ValueError):
        raise ConfigError(f"the parameter {name}={text!r} is no {getattr(kind, '__name__', 'text')}") from None
