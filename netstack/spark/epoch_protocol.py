"""The epoch protocol between a `Publisher` and its readers: requests and answers.

A request is the name of a partition that does not exist; the Publisher creates the partition when it is requested:

    events?spark?17?1f3a9c   the consumer "spark" has processed all epochs of "events" before 17; which are available?
    events?@17?2?9be01c      the rows of subpartition 2 of epoch 17

The last part is random, so each request has a partition of its own and a repeated request has a new answer. One round
trip both acknowledges and polls, and a reader that retries after a failure repeats the same request.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, final

from ..base.errors import ConfigError

DEFAULT_CONSUMER: Final = "spark"
_CONSUMER: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_POLL: Final = re.compile(r"([^?]+)\?([A-Za-z0-9_.-]{1,64})\?(\d{1,18})\?[0-9a-f]{16}")
_ROWS: Final = re.compile(r"([^?]+)\?@(\d{1,18})\?(\d{1,9})\?[0-9a-f]{16}")


def check_consumer(name: str) -> str:
    """Returns the name of a consumer unchanged. Raises ConfigError if the name is not valid."""
    if not _CONSUMER.fullmatch(name):
        raise ConfigError(f"consumer {name!r}: give 1 to 64 letters, digits, or any of _.-")
    return name


@final
@dataclass(frozen=True, slots=True)
class Poll:
    """A request for the `StreamState`, which also acknowledges epochs.

    Attributes:
        consumer: the reader's name.
        processed: the consumer has processed all epochs before this one.
    """

    stream: str
    consumer: str
    processed: int

    def partition(self) -> str:
        """The name of the partition to read; each call returns a new one."""
        return f"{self.stream}?{self.consumer}?{self.processed}?{secrets.token_hex(8)}"

    @classmethod
    def of(cls, partition: str) -> Poll | None:
        """Parses the name of a partition; None if it is no poll."""
        match = _POLL.fullmatch(partition)
        return None if match is None else cls(match[1], match[2], int(match[3]))


@final
@dataclass(frozen=True, slots=True)
class EpochRequest:
    """A request for the rows of one subpartition of an epoch.

    Attributes:
        subpartition: its index; the partition that the Publisher creates has no other.
    """

    stream: str
    epoch: int
    subpartition: int

    def partition(self) -> str:
        """The name of the partition to read; each call returns a new one."""
        return f"{self.stream}?@{self.epoch}?{self.subpartition}?{secrets.token_hex(8)}"

    @classmethod
    def of(cls, partition: str) -> EpochRequest | None:
        """Parses the name of a partition; None if it is no request for rows."""
        match = _ROWS.fullmatch(partition)
        return None if match is None else cls(match[1], int(match[2]), int(match[3]))


@final
@dataclass(frozen=True, slots=True)
class StreamState:
    """The answer to a `Poll`.

    Attributes:
        first: the oldest epoch that is kept, or the next one if none is kept.
        next: the epoch after the newest one that can be read.
        written: the epoch that is being written; epochs from `next` to here wait for a checkpoint.
        rows: the number of rows of each epoch from `first` to `next`.
        bytes: the size of each of these epochs on the Publisher's disk.
        refusal: why the consumer may not read this stream; empty if it may.
    """

    first: int
    next: int
    written: int
    rows: Sequence[int] = ()
    bytes: Sequence[int] = ()
    refusal: str = ""

    def to_text(self) -> str:
        """Encodes the state as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> StreamState:
        """Decodes what `to_text` has encoded. Raises ValueError, TypeError if the text is no state."""
        return cls(**json.loads(text))
