"""Names stand for what can be called, or the error says what is wrong with them."""

from __future__ import annotations

import pytest

from netstack.base.errors import ConfigError
from netstack.cluster.function_loading import load


def called() -> None:
    """Something with a name."""


def test_names_and_objects() -> None:
    assert load(called) is called
    assert load("collections:OrderedDict.fromkeys").__name__ == "fromkeys"
    for name, text in {
        "collections": "write it like",
        ":x": "write it like",
        "collections:": "write it like",
        "no.such.module:x": "cannot be imported: No module named 'no'",
        "collections:Nothing": "cannot be imported: module 'collections' has no attribute",
        "string:digits": "is a str; give a function or a class",
    }.items():
        with pytest.raises(ConfigError, match=text):
            load(name)
