"""Parses and checks the options of the data source "netstack", which `source` lists."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from ..base.config import NATIVE_DIALECT
from ..base.errors import ConfigError
from .consumer import StreamLocation
from .epoch_protocol import DEFAULT_CONSUMER, check_consumer
from .ports import check_ports
from .row_conversion import arrow_schema
from .sink import SinkSettings

FORMAT: Final = "netstack"
_STARTS: Final = ("oldest", "latest")
_OF_SPARK: Final = ("path", "checkpointLocation")  # accepted, and not read
_BOTH: Final = ("address", "partition", "secretFile", "segmentSizeBytes", "retrySeconds", "path")
_SOURCE_OPTIONS: Final = (
    *(*_BOTH, "subpartitions", "format", "dialect"),
    *("mode", "columnNameOfCorruptRecord"),
    *("consumer", "startingEpoch", "failOnDataLoss", "maxEpochs", "maxRows", "maxBytes"),
)
_SINK_OPTIONS: Final = (*_BOTH, "ports", "checkpointLocation")


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """The options of reading.

    Attributes:
        endpoints: the producers.
        consumer: the reader's name.
        starting_epoch: where a new query starts: "oldest", "latest" or the number of an epoch.
        fails_on_data_loss: whether the query fails when epochs are missing.
        corrupt_column: the column for records that do not fit the schema; None if such a record fails the task.
        max_epochs: the most epochs of a micro-batch.
        max_rows: the most rows of a micro-batch; None for no limit.
        max_bytes: the most bytes of a micro-batch, as stored on the publishers' disks; None for no limit.
    """

    endpoints: tuple[StreamLocation, ...]
    partition: str
    subpartitions: int
    consumer: str
    starting_epoch: str | int
    fails_on_data_loss: bool
    corrupt_column: str | None
    max_epochs: int
    max_rows: int | None
    max_bytes: int | None

    @classmethod
    def of(cls, options: MutableMapping[str, str], schema: Any) -> Settings:
        """Parses the options of reading rows of a schema.

        Raises:
            ConfigError: an option is missing, unknown, or has a wrong value; or a column cannot be read.
        """
        addresses, partition = _places(options, _SOURCE_OPTIONS, "to read")
        starting = options.get("startingEpoch", _STARTS[0])
        if starting not in _STARTS and not starting.isdecimal():
            raise ConfigError(f"option startingEpoch={starting!r}: give oldest, latest or the number of an epoch")
        endpoints = tuple(_location(options, address) for address in addresses)
        try:
            endpoints[0].record_format()
        except ConfigError as error:
            raise ConfigError(f"option format={endpoints[0].format!r}: {error}") from error
        return cls(
            endpoints=endpoints,
            partition=partition,
            subpartitions=_number(options, "subpartitions", 1, 1),
            consumer=check_consumer(options.get("consumer", DEFAULT_CONSUMER)),
            starting_epoch=starting if starting in _STARTS else int(starting),
            fails_on_data_loss=_choice(options, "failOnDataLoss", ("true", "false")) == "true",
            corrupt_column=_corrupt_column(options, schema),
            max_epochs=_number(options, "maxEpochs", 16, 1),
            max_rows=_number(options, "maxRows", 1, 1) if "maxRows" in options else None,
            max_bytes=_number(options, "maxBytes", 1, 1) if "maxBytes" in options else None,
        )


def sink_settings(options: MutableMapping[str, str], *, overwrite: bool) -> SinkSettings:
    """Parses the options of writing.

    Raises:
        ConfigError: an option is missing, unknown, or has a wrong value; or the mode is overwrite.
    """
    addresses, stream = _places(options, _SINK_OPTIONS, "to write")
    if overwrite:
        raise ConfigError(f"rows that were sent to {stream!r} cannot be overwritten: give mode('append')")
    if len(addresses) > 1:
        raise ConfigError(f"address={options.get('address')!r}: rows go to one Subscriber; give one address")
    first, _, last = options.get("ports", "").partition("-")
    ports = (_port(first), _port(last or first)) if first else None
    check_ports(ports)
    return SinkSettings(
        location=_location(options, addresses[0]),
        stream=stream,
        ports=ports,
    )


def _location(options: MutableMapping[str, str], address: str) -> StreamLocation:
    return StreamLocation(
        address=address,
        format=options.get("format", "arrow"),
        dialect=options.get("dialect", NATIVE_DIALECT),
        segment_size_bytes=_number(options, "segmentSizeBytes", 32 * 1024, 256),
        secret_file=options.get("secretFile"),
        retry_s=_number(options, "retrySeconds", 60, 0),
    )


def _places(options: MutableMapping[str, str], known: Sequence[str], what: str) -> tuple[list[str], str]:
    """Returns the addresses and the name of the partition; refuses unknown options."""
    for name in options:
        if name.lower() not in {each.lower() for each in known}:
            own = ", ".join(each for each in known if each not in _OF_SPARK)
            raise ConfigError(f"the data source {FORMAT} has no option {name!r} {what}; it has {own}")
    addresses = [each.strip() for each in options.get("address", "").split(",") if each.strip()]
    partition = options.get("partition", "")
    if not addresses or not partition:
        raise ConfigError(f"the data source {FORMAT} needs the options address and partition")
    return addresses, partition


def _corrupt_column(options: MutableMapping[str, str], schema: Any) -> str | None:
    """Returns the column for records that do not fit, with the mode PERMISSIVE; checks the schema for both modes."""
    arrow_schema(schema)
    if _choice(options, "mode", ("failfast", "permissive")) == "failfast":
        return None
    name = options.get("columnNameOfCorruptRecord", "_corrupt_record")
    kinds = {field.name: field.dataType.simpleString() for field in schema}
    if kinds.get(name) != "string":
        raise ConfigError(
            f"option mode=PERMISSIVE: the schema has no column {name} string, which gets the records that do not fit:"
            " add it, or name another one in the option columnNameOfCorruptRecord"
        )
    fixed = [field.name for field in schema if not field.nullable]
    if fixed:
        raise ConfigError(
            f"option mode=PERMISSIVE: a value that does not fit is NULL, and column {fixed[0]} is NOT NULL"
        )
    return name


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise ConfigError(f"option ports: {text!r} is no port; give one, or the first and the last: 7100-7110")
    return int(text)


def _choice(options: MutableMapping[str, str], name: str, known: Sequence[str]) -> str:
    text = options.get(name, known[0]).lower()
    if text not in known:
        raise ConfigError(f"option {name}={text!r}: give {' or '.join(known)}")
    return text


def _number(options: MutableMapping[str, str], name: str, default: int, least: int) -> int:
    text = options.get(name, str(default))
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ConfigError(f"option {name}={text!r}: give a whole number of at least {least}")
    return value
