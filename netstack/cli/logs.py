"""Sets up the log of a service: text lines, or JSON for a log collector.

Takes: the flag `--log`. Gives: `logging` on standard error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, final

import click

from ..base.text.json_text import json_text

Command = TypeVar("Command", bound=Callable[..., Any])

KINDS: Final = ("text", "json")


@final
class JsonFormatter(logging.Formatter):
    """One JSON document per line with `at` (UTC), `level`, `logger`, `text`, and `error` if there is a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats a record as one JSON document."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        document = {
            "at": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return json_text(document)


@final
class TextFormatter(logging.Formatter):
    """A line with the time and the text; records of user code also have the level and the name of their logger."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", datefmt="%H:%M:%S")
        self._of_users = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Formats a record."""
        is_own = record.name.partition(".")[0] == "netstack"
        return super().format(record) if is_own else self._of_users.format(record)


def log_flag(command: Command) -> Command:
    """Adds `--log` to a service."""
    return click.option(
        "--log",
        "log_kind",
        type=click.Choice(KINDS),
        default="text",
        show_default=True,
        help="Format of the log on standard error: text lines, or one JSON document per line.",
    )(command)


def set_up_logging(kind: str) -> None:
    """Sends log records of level INFO and above to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
