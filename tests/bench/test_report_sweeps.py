from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from drawings import by_class, drawings

from netstack_bench.cli import main
from netstack_bench.grid import Grid
from netstack_bench.report import Sweep, build_combined_report, together
from netstack_bench.report.sweeps import letter
from netstack_bench.store import Row, Store
from netstack_bench.sweep import COMPARISON, REPORT

Rows = Callable[..., list[Row]]


def two(fake_rows: Rows, **figures: float) -> list[Sweep]:
    grid = Grid(repeats=3)
    faster = {"salt": 9, "faster": 1.3, **figures}
    return [Sweep("before", fake_rows(grid)), Sweep("after <1>", fake_rows(grid, **faster), {"command": "sweep it"})]


def test_letters_go_on_after_z() -> None:
    assert [letter(number) for number in (0, 1, 25, 26, 27, 52)] == ["A", "B", "Z", "AA", "AB", "BA"]


def test_one_sweep_needs_no_letter(fake_rows: Rows) -> None:
    rows = fake_rows()
    assert together([Sweep("a", rows)]) == rows
    page = build_combined_report([Sweep("a", rows)])
    assert 'id="sweeps"' not in page
    assert 'id="compared"' not in page


def test_sweeps_lie_over_each_other(fake_rows: Rows) -> None:
    page = build_combined_report(two(fake_rows))
    chart = drawings(page.partition('id="curves"')[2])[0]
    series = by_class(chart, "series")
    assert len(series) == 8
    looks = [(each.get("class"), each.get("data-f")) for each in series[:2]]
    assert looks == [("series h0 d0", "2-0 3-0 0-0"), ("series h0 d1", "2-0 3-0 0-1")], "one hue, two strokes"
    assert "8 B · 1 ch · sweep B" in page
    assert page.count('class="stairs') == 2 * 4 * 4, "a frontier for each size and sweep"
    assert "after &lt;1&gt;" in page.partition('id="sweeps"')[2].partition("</section>")[0]
    assert "command of B" in page


def test_differences_are_told_with_their_noise(fake_rows: Rows) -> None:
    page = build_combined_report(two(fake_rows))
    compared = page.partition('id="compared"')[2].partition("</section>")[0]
    assert re.search(r"B is 1\.\d\d \u00d7 A .* 20 points; 20 better, 0 worse", compared)
    assert len(re.findall(r'<tr data-f="[\d -]+" class="(?:better|worse|same)">', compared)) == 100
    assert "better</td>" in compared
    assert "within the noise</td>" in compared


def test_a_third_sweep_is_compared_with_the_first_under_its_own_letter(fake_rows: Rows) -> None:
    first, second = two(fake_rows)
    page = build_combined_report([first, second, Sweep("third", second.rows[:-6])])
    assert "<h3>C against A</h3>" in page
    assert "records/s: C is 1." in page
    assert "only in B" not in page


def test_what_a_sweep_alone_decides_is_what_is_compared(fake_rows: Rows) -> None:
    grid = Grid(repeats=3, common={"emit": "batch"})
    page = build_combined_report([Sweep("a", fake_rows(Grid(repeats=3))), Sweep("b", fake_rows(grid, faster=2.0))])
    compared = page.partition('id="compared"')[2].partition("</section>")[0]
    assert "emit batch against emit record" in compared
    assert re.search(r"B is (1\.9|2\.)", compared), "twice as fast but for the noise, which the run's settings decide"
    assert "8 B · 1 ch · sweep B" in page, "the letter stands for it"
    assert "emit batch</td>" in page.partition('id="sweeps"')[2].partition("</section>")[0]
    third = Sweep("c", fake_rows(Grid(repeats=3), salt=3) + fake_rows(grid))
    assert "sweep C · emit batch" in build_combined_report([Sweep("a", fake_rows(Grid(repeats=3))), third, third])


def test_sweeps_with_nothing_in_common_say_so(fake_rows: Rows) -> None:
    other = fake_rows(Grid(record_sizes=(64,)))
    page = build_combined_report([Sweep("a", fake_rows()), Sweep("b", other)])
    assert "point in common" in page
    assert "64 B · 1 ch · sweep B" in page


def stored(folder: Path, rows: list[Row]) -> Path:
    with Store(folder) as store:
        for row in rows:
            store.append(row)
    return folder


def test_the_command_puts_folders_into_one_page(
    fake_rows: Rows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = stored(tmp_path / "a", fake_rows(Grid(repeats=3)))
    b = stored(tmp_path / "b", fake_rows(Grid(repeats=3), faster=1.3))
    assert main(["report", str(a), str(b)]) == 0
    assert f"report: {a / COMPARISON}" in capsys.readouterr().out
    assert "2 sweeps" in (a / COMPARISON).read_text(encoding="utf-8")
    assert not (a / REPORT).exists()
    out = tmp_path / "elsewhere.html"
    assert main(["report", str(a), str(b), "--output", str(out), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["report"] == str(out)
    assert {row["sweep"] for row in reported["rows"]} == {"A", "B"}
    assert main(["report", str(a), "--output", str(out)]) == 0
    assert "2 sweeps" not in out.read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["report"]) == 2
