from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from netstack.testing.shaped_line import Shape
from netstack_bench.cli import Runners, main
from netstack_bench.interval import Verdict
from netstack_bench.lines.command import LINES, LineCell, Measured, cells, counts, measure

CELLS = cells(3.0)
ROUND_TRIP_S = 0.0123


def result(value: float, **more: Any) -> dict[str, Any]:
    return {"delivered": True, "payload_mb_per_s": value, "latency_us": {"p50": value, "p99": value}, **more}


def passes(
    real: Callable[[LineCell], Mapping[str, Any]],
    emulated: Callable[[float, LineCell], Mapping[str, Any]],
    *,
    only: tuple[LineCell, ...] = CELLS,
    repeats: int = 3,
    most: int = 3,
) -> list[list[Measured]]:
    @contextlib.contextmanager
    def line(shape: Shape) -> Iterator[tuple[Callable[[LineCell], Mapping[str, Any]], float]]:
        yield real, ROUND_TRIP_S

    return list(measure(only, line, emulated, repeats=repeats, most_repeats=most))


def test_there_are_24_cells_and_the_two_sides_do_the_same_work() -> None:
    assert len(CELLS) == len(set(CELLS)) == 24
    assert {cell.shape for cell in CELLS} == set(LINES)
    for cell in CELLS:
        emulated = cell.emulated(ROUND_TRIP_S).as_dict()
        line = [emulated.pop(name) for name in ("round_trip_s", "link_bytes_per_s", "queue_bytes")]
        assert line == [ROUND_TRIP_S, cell.shape.rate_bytes_per_s, cell.shape.queue]
        assert emulated.items() <= cell.spec.as_dict().items()
        if cell.spec.rate_per_s is not None:
            assert cell.spec.rate_per_s * cell.spec.record_bytes <= (cell.shape.rate_bytes_per_s or 0) / 4


def test_noise_decides_nothing_and_only_what_is_undecided_is_measured_again() -> None:
    steady, noisy, apart = CELLS[0], CELLS[1], CELLS[2]
    wobble = itertools.cycle([1.0, 3.0, 0.4])

    def emulated(round_trip_s: float, cell: LineCell) -> Mapping[str, Any]:
        return result(100.0 if cell is steady else 100.0 * next(wobble) if cell is noisy else 200.0)

    slight = itertools.count()

    def real(cell: LineCell) -> Mapping[str, Any]:
        return result(100.0 + next(slight) % 2 * 0.1)

    runs = passes(real, emulated, only=(steady, noisy, apart), most=6)
    assert [each.verdict for each in runs[-1]] == [Verdict.WITHIN, Verdict.UNDECIDED, Verdict.OUTSIDE]
    assert [len(each.real["p50"]) for each in runs[-1]] == [3, 6, 3]
    assert counts(runs[-1])["cells"] == {"within": 1, "outside": 1, "undecided": 1}
    figure = runs[-1][2].as_dict()["figures"]["p50"]
    assert figure["verdict"] == "outside"
    assert figure["error"] == pytest.approx(1.0, rel=0.01)


def test_a_run_that_failed_counts_as_nothing() -> None:
    runs = passes(lambda cell: {"error": "no line"}, lambda round_trip_s, cell: result(1.0), only=CELLS[:1])
    (measured,) = runs[-1]
    assert (measured.verdict, measured.errors) == (Verdict.UNDECIDED, ["no line"] * 3)
    assert measured.as_dict()["figures"]["p50"]["real"] is None


def test_the_sides_take_turns() -> None:
    log: list[str] = []

    def side(name: str) -> Callable[..., Mapping[str, Any]]:
        def run(*given: float | LineCell) -> Mapping[str, Any]:
            assert given[:-1] == (() if name == "real" else (ROUND_TRIP_S,)), "the emulated line has the real one's"
            log.append(name)
            return result(1.0)

        return run

    passes(side("real"), side("emulated"), only=CELLS[:2], repeats=2, most=2)
    assert log == ["real", "emulated"] * 2 + ["emulated", "real"] * 2


def test_ctrl_c_keeps_the_cells_that_were_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def line(shape: Shape) -> Iterator[tuple[Callable[[LineCell], Mapping[str, Any]], float]]:
        yield lambda cell: result(2.0), ROUND_TRIP_S

    class Stops(Runners):
        runs = 0

        def run_once(self, spec: Any, **more: Any) -> dict[str, Any]:
            self.runs += 1
            if self.runs == 3:
                raise KeyboardInterrupt
            return result(2.0)

    monkeypatch.setattr("netstack_bench.lines.command.why_not", lambda: None)
    monkeypatch.setattr("netstack_bench.lines.command.real_line", line)
    assert main(["lines", "--json"], runners=Stops()) == 130
    captured = capsys.readouterr()
    assert [each["figures"]["p50"]["repeats"] for each in json.loads(captured.out)["lines"]] == [1, 1] + [0] * 22
    assert "stopped by Ctrl-C" in captured.err


def test_without_the_right_to_make_hosts_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("netstack_bench.lines.command.why_not", lambda: "network namespaces need root")
    assert main(["lines"]) == 2
    assert "a real line cannot be made here: network namespaces need root" in capsys.readouterr().err
