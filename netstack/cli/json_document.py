"""Prints the JSON document of `--json`."""

from __future__ import annotations

import os
import sys

import click

from ..json_text import json_text
from ..safe_text import printable_lines


def print_document(document: object, *, indent: int | None = None) -> None:
    """Prints one JSON document on standard output; `json_text` says how values are encoded.

    Characters that a terminal would obey, such as marks of the writing direction, are escaped, as JSON allows.
    """
    click.echo(printable_lines(json_text(document, indent=indent)))


def drop_output() -> None:
    """Drops what standard output could not take, which must not fail again when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
