"""Names stand for what can be called, or the error says what is wrong with them."""

from __future__ import annotations

import pytest

from netstack.errors import ConfigError
from netstack.runtime.names import load


def called() -> None:
    """Something with a name."""


def test_names_and_objects() -> None:
    assert load(called) is called
    assert load("collections:OrderedDict.fromkeys").__name__ == "fromkeys"
    for name, text in {
        "collections": "write it like",
        ":x": "write it like",
        "collections:": "write it like",
        "no.such.module:x": "is not there: No module named 'no'",
        "collections:Nothing": "is not there: module 'collections' has no attribute",
        "string:digits": "is a str, and has to be something to call",
    }.items():
        with pytest.raises(ConfigError, match=text):
            load(name)
