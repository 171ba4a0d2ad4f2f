"""Prints the JSON document of `--json`."""

from __future__ import annotations

import os
import sys

import click

from ..json_text import json_text


def print_document(document: object, *, indent: int | None = None) -> None:
    """Prints one JSON document on standard output; `json_text` says how values are encoded."""
    click.echo(json_text(document, indent=indent))


def drop_output() -> None:
    """Drops what standard output could not take, which must not fail again when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
