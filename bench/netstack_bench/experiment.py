"""The frame of an experiment: the facts in its document, and the results folder of one with a page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Final, final

import click
from rich.console import Console
from rich.markup import escape as escape_markup

from netstack.base.errors import ConfigError
from netstack.base.text.json_text import json_text
from netstack.base.units import three_digits

from . import console
from .charts.page import document, facts, notes
from .flags import Flag, flag
from .host import host_facts, version
from .labels import plain, setting_name, setting_text
from .spec import Settings
from .store import reason, replace_file

_TITLES: Final = {"isolate": "isolation"}


def with_facts(spec: Settings, figures: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON document of an experiment: its figures, settings, host and version."""
    return {**figures, "settings": spec.as_dict(), "host": host_facts(), "version": version()}


def output_flag(name: str) -> Flag:
    """The `--output` flag of an experiment with a page."""
    text = f"Folder of {name}.html and {name}.json; results/{name}-<date> if not given."
    return flag("--output", click.Path(file_okay=False, path_type=Path), text)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The contents of an experiment's page; `parts` (findings, charts, tables) are HTML, `remarks` plain text.

    `heading` is the question that it answers, `about` the settings in a line.
    """

    heading: str
    about: str
    parts: Sequence[str]
    remarks: Sequence[str]
    style: str

    def html(self, name: str, spec: Settings, result: Mapping[str, Any], *, command: str, made: str) -> str:
        """The page as one self-contained HTML file, with the command line and the date."""
        host = result["host"]
        line = f"netstack {result['version']} · on {host['name']} · {made} · {self.about}"
        settings = [
            (setting_name(key), ", ".join(map(plain, value)) if isinstance(value, list) else setting_text(key, value))
            for key, value in spec.as_dict().items()
        ]
        body = [
            f"<h1>{self.heading}</h1>",
            f'<p class="sub">{escape(line)}</p>',
            *self.parts,
            f'<section class="two">{facts("Machine", machine_facts(host))}'
            f"{facts('Settings', [*settings, ('command', command)])}</section>",
            notes("Notes", self.remarks),
            f"<footer>Written by netstack-bench {name} · the same figures are in {name}.json beside this page</footer>",
        ]
        return document(f"netstack {_TITLES.get(name, name)} · {host['name']}", body, styles=[self.style])


@final
@dataclass(frozen=True, slots=True)
class ResultFolder:
    """A writable folder for the results of the experiment `name`."""

    name: str
    path: Path
    began: datetime

    @classmethod
    def open(cls, name: str, output: Path | None) -> ResultFolder:
        """Creates the folder, before the measurement. Raises ConfigError if it cannot be created."""
        now = datetime.now()
        path = output or Path("results") / f"{name}-{now:%Y-%m-%d-%H%M%S}"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--output {path}: {error.strerror}; name a folder that can be written") from error
        return cls(name, path, now)

    def finish(
        self,
        spec: Settings,
        figures: Mapping[str, Any],
        build_page: Callable[[Any, Mapping[str, Any]], Page],
        arguments: Sequence[str],
        show: Callable[[Console], None] | None,
    ) -> bool:
        """Prints the result, as JSON without `show`, and writes `<name>.json` and `<name>.html`.

        Returns:
            Whether both were written. If not, standard error says why.
        """
        result = with_facts(spec, figures)
        path = self.path / f"{self.name}.html"
        command = shlex.join(("netstack-bench", *arguments))
        page = build_page(spec, result).html(
            self.name, spec, result, command=command, made=f"{self.began:%Y-%m-%d %H:%M}"
        )
        standard = console.out()
        if show is None:
            console.print_json(result)
        else:
            show(standard)
        text = json_text(result, indent=2) + "\n"
        for file, content in ((path.with_suffix(".json"), text), (path, page)):
            try:
                data = content.encode(errors="backslashreplace")  # names of files need not be UTF-8
                replace_file(file, partial(Path.write_bytes, data=data))
            except OSError as error:
                line = f"[red]not written:[/] {escape_markup(str(file))}: {reason(error)}; the result was printed"
                console.err().print(line, soft_wrap=True)
                return False
        if show is not None:
            standard.print(f"\npicture: {escape_markup(str(path))}", soft_wrap=True)
        return True


def machine_facts(host: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Names and values of the measuring machine, for a page; `host` is the result of `host.host_facts`."""
    for name in ("cpu", "cores", "kernel", "python", "load_average"):
        value = host.get(name)
        if value is not None:
            report = three_digits(value[0]) if name == "load_average" else plain(value)
            yield name.replace("_average", " at the end"), report
