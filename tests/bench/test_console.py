"""What commands print."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from netstack.cli.json_document import print_document
from netstack_bench import console

NUMBERS = st.lists(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.text() | NUMBERS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(DOCUMENTS)
def test_a_document_with_numbers_in_line_is_the_same(document: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("netstack.cli.json_document.click.echo", printed.append)
        print_document(document, indent=2, numbers_in_line=True)
    assert json.loads(printed[0]) == document


def test_a_histogram_is_a_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    histogram = {"buckets": list(range(300)), "counts": [1.5, -2, 3e9] * 100, "names": ["a", "b"]}
    console.print_json({"latency_histogram": histogram})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"latency_histogram": histogram}
    assert len(printed.splitlines()) == 10


def test_failures_say_how_often_where_and_why_each_once() -> None:
    def row(error: str | None, *hosts: str) -> dict[str, object]:
        return {"error": error, "delivered": error is None, "settings_hosts": list(hosts) or None}

    def printed(*rows: dict[str, object]) -> list[str]:
        text = io.StringIO()
        console.print_failures(rows, Console(file=text, width=200))
        return text.getvalue().splitlines()

    refused = "ConnectionLost: a:1 refuses"
    assert printed(row(None)) == []
    assert printed(*[row(refused, "a:1", "b:2")] * 4) == [f"all 4 runs failed on a:1, b:2: {refused}"]
    assert printed(row(None), row(refused), row(refused)) == [f"2 of 3 runs failed: {refused}"]
    many = [row(f"reason [{number}]") for number in range(5)]
    assert printed(*many)[0] == "1 of 5 runs failed: reason [0]"
    assert printed(*many)[-1] == "and 2 other reasons; the report lists all"
