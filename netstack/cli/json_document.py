"""What `--json` prints.

Takes: a document. Gives: one JSON text on standard output.
"""

from __future__ import annotations

import click

from ..json_text import json_text


def print_document(document: object, *, indent: int | None = None) -> None:
    """One JSON document on standard output, whatever is in it (see `json_text`)."""
    click.echo(json_text(document, indent=indent))
