"""The jobs that commands name: `module:attribute`, or a JSON job file.

Takes: a word of the command line, and parameters for a function that makes a job. Gives: its graph.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from ..errors import ConfigError
from ..runtime.failure_report import rendered, with_place
from ..runtime.tracebacks import describe
from ..schedule.graph.job_file import read_job
from ..schedule.graph.job_graph import JobGraph
from ..schedule.graph.stream_builder import StreamEnvironment
from ..schedule.graph.stream_graph import StreamGraph
from ..shown import shown_error
from .values import Parsed


class JobNotBuilt(ConfigError):
    """The user's code raised while it was imported, or while it made a job.

    Attributes:
        traceback: its frames, from the first of the user's on.
    """

    def __init__(self, text: str, error: Exception) -> None:
        report = describe(error)
        super().__init__(with_place(text, report))
        self.traceback = rendered(report, folded=False)


def _named_value(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise ConfigError(f"{text!r} is no parameter; write name=value")
    return name, value


def job_parameters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags whose values become arguments of the job's function; the command takes `inputs` and `given`."""
    for option in (
        click.option(
            "-p",
            "given",
            type=Parsed("NAME=VALUE", _named_value),
            metavar="NAME=VALUE",
            multiple=True,
            help="An argument of the job's function; repeatable. Where it has a number as default, it is one.",
        ),
        click.option(
            "--input",
            "input_file",
            type=click.Path(path_type=Path),
            help="The same as -p input=FILE, with the whole path; it is read where sources run.",
        ),
    ):
        command = option(command)
    return command


def parameters_of(input_file: Path | None, given: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """What the flags of `job_parameters` say.

    Raises:
        ConfigError: one is given twice.
    """
    parameters: dict[str, str] = {} if input_file is None else {"input": os.path.abspath(input_file)}
    for name, value in given:
        if name in parameters:
            raise ConfigError(f"the parameter {name!r} is given twice; give it once")
        parameters[name] = value
    return parameters


def load_job(name: str, parameters: Mapping[str, str] | None = None) -> StreamGraph | JobGraph:
    """The job that a word of the command line stands for.

    Args:
        name: path of a job file, or `module:attribute`.
        parameters: arguments by name for a function that makes the job; numbers and switches where it has such a
            default or annotation.

    Raises:
        ConfigError: there is no such file or attribute, it is no job, or takes other parameters.
        JobNotBuilt: it raises, or its module does.
    """
    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        if parameters:
            raise ConfigError(f"job file {name!r} takes no parameters; give module:function, or write them in the file")
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
    """The job of a command that runs it; as `load_job`.

    Raises:
        ConfigError: also for a JobGraph, which can be planned and not run.
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
        raise ConfigError(f"{name!r} is no job; give module:attribute, or the path of a JSON job file")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        imported: Any = importlib.import_module(module)
    except ImportError as error:
        text = f"{name!r} is not there: {error}; run this where the module can be imported"
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(text) from error  # the module itself: none of its lines has run
        raise JobNotBuilt(text, error) from error
    except Exception as error:  # a module may raise what it likes
        raise _not_built(name, error) from error
    try:
        for attribute in path.split("."):
            imported = getattr(imported, attribute)
    except AttributeError as error:
        raise ConfigError(f"{name!r} is not there: {error}; run this where the module can be imported") from error
    return imported


def _not_built(name: str, error: Exception) -> JobNotBuilt:
    """What the user's code raised; an error of ours says already what is wrong with the job."""
    message = str(error) if isinstance(error, ConfigError) else f"{name!r} cannot be built: {shown_error(error)}"
    return JobNotBuilt(message, error)


def _as_graph(name: str, job: Any, parameters: Mapping[str, str]) -> StreamGraph | JobGraph:
    if callable(job) and not isinstance(job, StreamEnvironment):
        arguments = _arguments(name, job, parameters)
        try:
            job = job(**arguments)
        except Exception as error:  # the user's function may raise what it likes, too
            raise _not_built(name, error) from error
    elif parameters:
        raise ConfigError(f"{name!r} is no function, so it takes no parameters ({', '.join(parameters)})")
    if isinstance(job, StreamEnvironment):
        job = job.stream_graph()
    if not isinstance(job, StreamGraph | JobGraph):
        raise ConfigError(
            f"{name!r} is a {type(job).__name__}; give a StreamEnvironment, a StreamGraph, a JobGraph, or a function"
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
            f"{name!r} cannot be called {called}: {error}; it takes {takes or 'none'} (-p name=value)"
        ) from error
    return arguments


_SWITCHES = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def _converted(name: str, text: str, parameter: inspect.Parameter | None) -> Any:
    """A parameter of the kind that the function has it in."""
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
        raise ConfigError(f"the parameter {name}={text!r} is no {kind.__name__ if kind else 'text'}") from None
