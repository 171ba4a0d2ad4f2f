"""Names of functions of the main file, which other processes import as a module."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from netstack.base.errors import ConfigError
from netstack.base.function_names import name_of


def _main(file: str | None, monkeypatch: pytest.MonkeyPatch, name: str = "__main__") -> ModuleType:
    main = ModuleType(name)
    exec("def read(): pass", main.__dict__)
    if file is not None:
        main.__file__ = file
    monkeypatch.setitem(sys.modules, name, main)
    return main


class Reader:
    @classmethod
    def read(cls) -> None: ...


class OtherReader(Reader):
    pass


def test_a_class_method_has_the_name_of_its_own_class_only() -> None:
    assert name_of(Reader.read) == f"{__name__}:Reader.read"
    with pytest.raises(ConfigError, match=r"refers to <bound method Reader\.read"):
        name_of(OtherReader.read)


@pytest.mark.parametrize("file", ["words.py", "folder/words.py"])
@pytest.mark.parametrize("name", ["__main__", "__mp_main__"])
def test_a_function_of_the_main_file(file: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_of(_main(file, monkeypatch, name).read) == "words:read"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (None, "operator read is defined interactively"),
        ("<stdin>", "operator read is defined interactively"),
        ("word-count.py", "operator read is defined in word-count.py, which no process can import by this name"),
        ("words", "operator read is defined in words, which no process can import"),
        ("words.v2.py", r"operator read is defined in words\.v2\.py, which"),
    ],
)
def test_a_main_file_that_no_process_can_import(file: str | None, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main = _main(file, monkeypatch)
    with pytest.raises(ConfigError, match=text):
        name_of(main.read)
