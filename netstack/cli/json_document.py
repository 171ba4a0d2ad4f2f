"""Prints the JSON document of `--json`."""

from __future__ import annotations

import os
import re
import sys
from typing import Final

import click

from ..base.text.json_text import json_text
from ..base.text.safe_text import printable_lines

_NUMBERS: Final = re.compile(r"\[\n\s*-?[\d.eE+-]+(?:,\n\s*-?[\d.eE+-]+)*\n\s*\]")  # no line break is inside a text


def print_document(document: object, *, indent: int | None = None, numbers_in_line: bool = False) -> None:
    """Prints one JSON document on standard output; `json_text` says how values are encoded.

    Characters that a terminal would obey, such as marks of the writing direction, are escaped, as JSON allows. With
    `numbers_in_line` an indented list of numbers is one line, however long: histograms have hundreds of numbers.
    """
    text = printable_lines(json_text(document, indent=indent))
    click.echo(_NUMBERS.sub(lambda found: " ".join(found[0].split()), text) if numbers_in_line else text)


def drop_output() -> None:
    """Drops what standard output could not take, which must not fail again when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
