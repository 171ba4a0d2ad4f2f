"""The results folder of an experiment with a page: `<name>.html` and `<name>.json`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any, Final, TypeVar, final

import click

from netstack.errors import ConfigError
from netstack.json_text import json_text
from netstack.units import three_digits

from .charts.page import document, facts, notes
from .spec import Settings
from .words import plain, setting_name, setting_text

_TITLES: Final = {"isolate": "isolation"}
_Command = TypeVar("_Command", bound=Callable[..., Any])


def output_flag(name: str) -> Callable[[_Command], _Command]:
    """The `--output` flag of an experiment with a page."""
    return click.option(
        "--output",
        type=click.Path(file_okay=False, path_type=Path),
        help=f"Folder of {name}.html and {name}.json; results/{name}-<date> if not given.",
    )


@final
@dataclass(frozen=True, slots=True)
class ResultFolder:
    """A writable folder for the results of the experiment `name`."""

    name: str
    path: Path
    began: datetime

    @classmethod
    def open(cls, name: str, output: Path | None) -> ResultFolder:
        """Creates the folder, before the measurement.

        Raises:
            ConfigError: it cannot be created.
        """
        now = datetime.now()
        path = output or Path("results") / f"{name}-{now:%Y-%m-%d-%H%M%S}"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--output {path}: {error.strerror}; name a folder that can be written") from error
        return cls(name, path, now)

    def write(self, result: Mapping[str, Any], build_page: Callable[..., str], arguments: Sequence[str]) -> Path:
        """Writes both files and returns the path of the page.

        Args:
            result: the JSON document.
            build_page: makes the page from `command` and `made` (the date).
            arguments: of the command line.
        """
        page = self.path / f"{self.name}.html"
        command = shlex.join(("netstack-bench", *arguments))
        page.write_text(build_page(command=command, made=f"{self.began:%Y-%m-%d %H:%M}"), encoding="utf-8")
        page.with_suffix(".json").write_text(json_text(result, indent=2) + "\n", encoding="utf-8")
        return page


def result_page(
    name: str,
    heading: str,
    findings: str,
    parts: Sequence[str],
    remarks: Sequence[str],
    *,
    spec: Settings,
    result: Mapping[str, Any],
    about: str,
    command: str,
    made: str,
    style: str,
) -> str:
    """The page of an experiment: one self-contained HTML file.

    Args:
        name: of the experiment's command.
        heading: the question that it answers.
        findings: the first part, HTML.
        parts: charts and tables, HTML.
        remarks: notes on the method, plain text.
        spec: its settings.
        result: its document; its `host` and `version` are shown.
        about: the settings in a line.
        command: the command line.
        made: the date.
        style: CSS beyond that of every page.
    """
    host = result["host"]
    line = f"netstack {result['version']} · on {host['name']} · {made} · {about}"
    settings = [*((setting_name(key), _setting(key, value)) for key, value in spec.as_dict().items())]
    body = [
        f"<h1>{heading}</h1>",
        f'<p class="sub">{escape(line)}</p>',
        findings,
        *parts,
        f'<section class="two">{facts("Machine", machine_facts(host))}'
        f"{facts('Settings', [*settings, ('command', command)])}</section>",
        notes("Notes", remarks),
        f"<footer>Written by netstack-bench {name} · the same figures are in {name}.json beside this page</footer>",
    ]
    return document(f"netstack {_TITLES.get(name, name)} · {host['name']}", body, styles=[style])


def _setting(name: str, value: Any) -> str:
    return ", ".join(map(plain, value)) if isinstance(value, list) else setting_text(name, value)


def machine_facts(host: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Names and values of the measuring machine, for a page; `host` is the result of `host.host_facts`."""
    for name in ("cpu", "cores", "kernel", "python", "load_average"):
        value = host.get(name)
        if value is not None:
            report = three_digits(value[0]) if name == "load_average" else plain(value)
            yield name.replace("_average", " at the end"), report
