"""Any exception becomes a report that is bounded, plain, printable, and names the user's lines."""

from __future__ import annotations

import contextlib
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
from hypothesis import given, strategies as st

from netstack.base.causes import root_cause
from netstack.base.errors import ConfigError, DiskFull, OperatorFailed
from netstack.cluster.failure_report import (
    MAX_BYTES,
    MAX_ERRORS,
    MAX_FRAMES,
    checked_report,
    raised_at,
    rendered,
    with_place,
)
from netstack.cluster.tracebacks import describe


def caught(function: Callable[..., Any], *arguments: Any) -> BaseException:
    try:
        function(*arguments)
    except BaseException as error:
        return error
    raise AssertionError("it does not raise")


def check(report: dict[str, Any]) -> dict[str, Any]:
    """What holds for every report; another process takes it as it is."""
    assert len(json.dumps(report)) <= MAX_BYTES
    assert checked_report(msgpack.unpackb(msgpack.packb(report))) == report
    text = rendered(report)
    assert all(line.isprintable() for line in text.split("\n"))
    return report


def missing(table: dict[str, int]) -> int:
    return table["missing"]


def translated(table: dict[str, int]) -> int:
    try:
        return missing(table)
    except KeyError as error:
        raise RuntimeError("no such thing") from error


LINE = missing.__code__.co_firstlineno + 1
HERE = Path(__file__).name


def test_the_users_line_and_its_source_are_told() -> None:
    report = check(describe(OperatorFailed("look", caught(missing, {}))))
    (error,) = report["errors"]
    assert (error["type"], error["message"], error["how"]) == ("KeyError", "'missing'", "raised")
    last = error["frames"][-1]
    assert (last["file"], last["line"], last["function"]) == (__file__, LINE, "missing")
    assert last["source"] == 'return table["missing"]'
    assert raised_at(report) == f"{HERE}:{LINE}"
    assert with_place("KeyError", report) == f"KeyError, at {HERE}:{LINE}"
    assert rendered(report).endswith(
        f'  File "{__file__}", line {LINE}, in missing\n    return table["missing"]\nKeyError: \'missing\''
    )


def test_a_cause_is_told_above_what_followed_from_it() -> None:
    report = check(describe(caught(translated, {})))
    assert [(each["type"], each["how"]) for each in report["errors"]] == [
        ("RuntimeError", "raised"),
        ("KeyError", "cause"),
    ]
    text = rendered(report)
    assert text.index("KeyError: 'missing'") < text.index("was the direct cause") < text.index("RuntimeError: no such")

    def other() -> None:
        try:
            missing({})
        except KeyError:
            raise ValueError("other")  # noqa: B904  # that is what is tested

    assert [each["how"] for each in describe(caught(other))["errors"]] == ["raised", "context"]

    def only() -> None:
        try:
            missing({})
        except KeyError:
            raise ValueError("only") from None

    assert [each["type"] for each in describe(caught(only))["errors"]] == ["ValueError"]


async def test_groups_are_flattened_and_cancellations_left_out() -> None:
    async def fails(text: str) -> None:
        raise ValueError(text)

    async def waits() -> None:
        await trio.sleep_forever()

    error: BaseException | None = None
    try:
        async with trio.open_nursery() as outer:
            outer.start_soon(waits)
            async with trio.open_nursery() as inner:
                inner.start_soon(fails, "one")
                inner.start_soon(fails, "two")
                inner.start_soon(waits)
    except BaseException as group:
        error = group
    assert error is not None
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as canceled:
            error = BaseExceptionGroup("all", [canceled, BaseExceptionGroup("some", [canceled]), error])
            alone = describe(BaseExceptionGroup("", [canceled]))
            raise
    assert [each["type"] for each in alone["errors"]] == ["Cancelled"]
    report = check(describe(error))
    assert sorted(each["message"] for each in report["errors"]) == ["one", "two"]
    assert [each["how"] for each in report["errors"]] == ["raised", "beside"]
    functions = [frame.get("function", "").rpartition(".")[2] for frame in report["errors"][0]["frames"]]
    assert functions[-1] == "fails"
    assert functions[0] == "test_groups_are_flattened_and_cancellations_left_out", "the way to the nursery, too"
    assert "\n\nAlso raised:\n\n" in rendered(report)


def test_frames_of_ours_are_folded() -> None:
    from netstack.cluster.task.iterable_source import IterableSource

    def source() -> Any:
        yield 1
        missing({})

    class Context:
        operator = "x"

    def reads() -> None:
        reader = IterableSource(source, Context())  # type: ignore[arg-type]
        while True:
            reader.read()

    (error,) = check(describe(caught(reads)))["errors"]
    assert [frame.get("folded") or frame["function"].rpartition(".")[2] for frame in error["frames"]] == [
        "caught",
        "reads",
        "1 frame of netstack",
        "source",
        "missing",
    ]
    text = rendered({"errors": [error]})
    assert "  ... 1 frame of netstack\n" in text
    assert "..." not in rendered({"errors": [error]}, folded=False)


def test_an_error_of_ours_that_says_it_all_has_no_traceback() -> None:
    error = caught(
        lambda: exec(compile("raise E('x')", "here.py", "exec"), {"__name__": "netstack.somewhere", "E": ConfigError})
    )
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert rendered(check(describe(error))) == ""
    bug = caught(
        lambda: exec(compile("raise E('x')", "here.py", "exec"), {"__name__": "netstack.somewhere", "E": TypeError})
    )
    bug.__traceback__ = bug.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert "TypeError: x" in rendered(check(describe(bug))), "one that nobody foresaw tells where"


def decoded(text: str) -> object:
    return json.loads(text)


def test_the_place_of_a_librarys_error_is_the_line_that_called_it(tmp_path: Path) -> None:
    report = check(describe(caught(decoded, "no JSON")))
    assert report["errors"][0]["frames"][-1]["file"] == json.decoder.__file__
    assert raised_at(report) == f"{HERE}:{decoded.__code__.co_firstlineno + 1}"
    (tmp_path / "site-packages").mkdir()
    installed = tmp_path / "site-packages" / "installed.py"
    exec(compile("def f(x): raise ValueError", installed, "exec"), names := {})
    error = caught(names["f"], 1)
    assert error.__traceback__ is not None
    assert raised_at(describe(error)) == f"{HERE}:{error.__traceback__.tb_lineno}"
    error.__traceback__ = error.__traceback__.tb_next  # nothing but the library's own frame
    assert raised_at(describe(error)) == "", "a line of a library helps nobody"


def test_a_source_inside_a_zip_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as file:
        file.writestr("zipped_job.py", "def fails(item):\n    raise ValueError(item)\n")
    monkeypatch.syspath_prepend(str(tmp_path / "code.zip"))
    import zipped_job  # type: ignore[import-not-found]

    (error,) = describe(caught(zipped_job.fails, 1))["errors"]
    assert error["frames"][-1]["source"] == "raise ValueError(item)"
    del sys.modules["zipped_job"]


def test_a_file_that_python_cannot_read_is_named_with_its_line() -> None:
    report = check(describe(caught(compile, "a\nb c\n", "jobs.py", "exec")))
    assert raised_at(report) == "jobs.py:2"
    assert report["errors"][0]["frames"][-1]["source"] == "b c"


def test_a_traceback_of_ten_thousand_frames_has_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(left: int) -> None:
        deep(left - 1) if left else missing({})

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        error = caught(deep, 10_000)
    finally:
        sys.setrecursionlimit(limit)
    (reported,) = check(describe(error))["errors"]
    assert len(reported["frames"]) == MAX_FRAMES + 1
    assert reported["frames"][0]["function"] == "caught"
    assert reported["frames"][-1]["function"] == "missing"
    assert sum(frame.get("folded") == "9,971 more frames" for frame in reported["frames"]) == 1

    def endless() -> None:
        endless()

    assert check(describe(caught(endless)))["errors"][0]["type"] == "RecursionError"


def test_groups_may_be_nested_deeper_than_calls() -> None:
    error: BaseException = caught(missing, {})
    for _ in range(5_000):
        error = BaseExceptionGroup("deep", [error])
    assert type(root_cause(error)) is KeyError
    assert check(describe(error))["errors"][0]["type"] == "KeyError"
    while isinstance(error, BaseExceptionGroup):  # taken apart here: freeing them recurses, too
        error = error.exceptions[0]


def test_what_goes_round_ends() -> None:
    first, second = caught(missing, {}), caught(translated, {})
    first.__cause__, second.__cause__ = second, first
    assert [each["type"] for each in check(describe(first))["errors"]] == ["KeyError", "RuntimeError"]
    many: BaseException = ValueError(0)
    for number in range(1, 1_000):
        after = ValueError(number)
        after.__context__ = many
        many = after
    assert len(check(describe(many))["errors"]) == MAX_ERRORS


class Odd(Exception):
    """Does with its text what a test says."""

    def __init__(self, says: Callable[[], Any]) -> None:
        super().__init__()
        self.says = says

    def __str__(self) -> Any:  # type: ignore[override]
        return self.says()


class Longer(str):
    def __getitem__(self, key: Any) -> str:
        return "x" * 1_000_000

    def __str__(self) -> str:
        return self


def exits() -> str:
    sys.exit(3)


def recurses() -> str:
    return recurses()


NOT_MADE = "(its text is not available)"


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (exits, NOT_MADE),
        (recurses, NOT_MADE),
        (lambda: 3, NOT_MADE),
        (lambda: Longer("a"), "a"),
        (lambda: "\x1b]0;mine\x07\n\u202e\ud800" * 10_000, "\\x1b]0;mine\\x07\\n\\u202e\\ud800"),
    ],
)
def test_a_text_that_is_a_trap(says: Callable[[], Any], message: str) -> None:
    def fails() -> None:
        raise Odd(says)

    error = caught(fails)
    (reported,) = check(describe(error))["errors"]
    assert reported["type"] == "Odd"
    assert reported["message"].startswith(message)
    assert len(reported["message"]) <= 2_000
    assert "operator 'x': Odd" in str(OperatorFailed("x", error))


def test_a_class_that_lies_about_its_parts_is_told_as_nothing() -> None:
    class Lies(Exception):
        @property
        def __cause__(self) -> Any:  # type: ignore[override]
            raise ValueError("no")

    assert describe(Lies()) == {}
    assert rendered({}) == raised_at({}) == ""


TEXTS = st.text(max_size=40) | st.sampled_from(["\x1b[31m", "\n", "\\", "\U0001f600", "\ud800", '"']).map(
    lambda part: part * 3_000
)


def _raised(error: BaseException, depth: int, file: str) -> BaseException:
    """The exception behind `depth` frames of a function of a file."""
    names: dict[str, Any] = {"__name__": "users", "error": error}
    source = f"def {'f' * 50}(left):\n    if left: {'f' * 50}(left - 1)\n    raise error\n"
    try:
        exec(compile(source, file, "exec"), names)
    except ValueError:  # no name of a file
        exec(source, names)
    return caught(names["f" * 50], depth)


@st.composite
def exceptions(draw: st.DrawFn, level: int = 0) -> BaseException:
    error: BaseException
    if level < 3 and draw(st.booleans()):
        members = draw(st.lists(exceptions(level=level + 1), min_size=1, max_size=4))
        error = BaseExceptionGroup(draw(TEXTS), members)
    else:
        kind = type(draw(st.sampled_from(["E", "E" * 5_000, "\u202eE"])), (Exception,), {})
        error = kind(draw(TEXTS))
    if draw(st.booleans()):
        error = _raised(
            error, draw(st.sampled_from([0, 1, 100])), draw(st.sampled_from(["a.py", "\u00e9" * 300, "a\x1b"]))
        )
    if level < 3 and draw(st.booleans()):
        other = draw(exceptions(level=level + 1))
        if draw(st.booleans()):
            error.__cause__ = other
        else:
            error.__context__ = other
    return error


@given(exceptions())
def test_bounds_hold_for_any_exception(error: BaseException) -> None:
    report = check(describe(error))
    assert 1 <= len(report["errors"]) <= MAX_ERRORS
    assert report["errors"][0]["how"] == "raised"


GOOD: dict[str, Any] = {
    "type": "E",
    "message": "m",
    "how": "raised",
    "frames": [{"file": "f", "line": 1, "function": "g", "source": "s"}, {"folded": "2 frames of trio"}],
}


def test_the_place_is_never_in_a_library_that_netstack_calls() -> None:
    report = check(describe(caught(msgpack.packb, object())))
    assert raised_at(report).startswith(HERE)
    assert "pyx" not in rendered(report)


def test_the_place_is_never_in_contextlib() -> None:
    @contextlib.contextmanager
    def writing() -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DiskFull("no space") from error

    def write() -> None:
        with writing():
            raise OSError

    assert "contextlib.py" not in rendered(check(describe(caught(write))))


def test_a_generated_function_is_no_place() -> None:
    names: dict[str, Any] = {"__name__": "netstack.cluster.task.fused"}
    exec(compile("def push(record):\n    for each in record: pass", "<flat_map>", "exec"), names)
    error = caught(names["push"], 3)
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next
    assert raised_at(check(describe(OperatorFailed("flat_map", error)))) == ""


@pytest.mark.parametrize(
    ("report", "text"),
    [
        ({"errors": []}, "with 1 to 8 entries"),
        ({"errors": [GOOD] * 9}, "with 1 to 8 entries"),
        ({"errors": [GOOD], "more": 1}, "exactly the field errors"),
        ({"errors": [GOOD, GOOD]}, "does not fit its position"),
        ({"errors": [GOOD | {"how": "cause"}]}, "does not fit its position"),
        ({"errors": [GOOD | {"how": []}]}, "does not fit its position"),
        ({"errors": [GOOD | {"frames": [{}]}]}, "a frame of a failure report"),
        ({"errors": [GOOD | {"frames": [GOOD["frames"][0]] * 100}]}, "at most 65 frames"),
        ({"errors": [GOOD | {"frames": [GOOD["frames"][0] | {"line": -1}]}]}, "no valid line number"),
        ({"errors": [GOOD | {"frames": [GOOD["frames"][0] | {"line": True}]}]}, "no valid line number"),
        ({"errors": [GOOD | {"frames": [{"folded": 3}]}]}, "a text of a failure report is not a str"),
        ({"errors": [GOOD | {"message": b"x"}]}, "a text of a failure report is not a str"),
        ({"errors": [GOOD | {"message": "\U0001f600" * 2_000}]}, "the maximum is 16384"),
        ({"errors": ["x"]}, "must have type, message, how and frames"),
    ],
)
def test_what_is_no_report_is_refused(report: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        checked_report(report)


def test_texts_of_a_peer_are_made_printable() -> None:
    report = checked_report({"errors": [GOOD | {"message": "\x1b[2Jgone", "type": "T" * 1_000}]})
    assert report["errors"][0]["message"] == "\\x1b[2Jgone"
    assert len(report["errors"][0]["type"]) == 120
    assert checked_report({}) == {}
