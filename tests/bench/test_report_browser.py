"""The report in a real browser: what is clicked is shown, nothing overflows, nothing fails."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from netstack_bench.grid import Grid
from netstack_bench.report import Sweep, build_combined_report, build_report
from netstack_bench.store import Row

Rows = Callable[..., list[Row]]
OnHosts = Callable[[list[Row], tuple[str, ...]], list[Row]]
SWEEP = {"grid": Grid().as_dict(), "command": "netstack-bench sweep", "started_at": "2026-11-21T09:30:00Z"}
PHONE_PX, DESK_PX = 400, 1280

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# Words for the scripts of the tests below.
WORDS = """
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const box = (group, text) => {
  const found = all("#choose fieldset").find((each) => each.querySelector("legend").textContent === group);
  return all("label", found).find((each) => each.textContent === text).querySelector("input");
};
const isSeen = (each) => each.getClientRects().length > 0;
const seen = (selector) => all(selector).filter(isSeen).length;
const rows = () => all("#runs tbody tr:not(.out)").length;
const bends = (line) => line.getAttribute("d").match(/[ML]/g).length;
"""


def chromium_dump(chromium: str, page: Path, profile: Path, budget_ms: int = 2000) -> str:
    """The document as the browser has it after its scripts ran."""
    command = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--window-size={DESK_PX},900",
        f"--user-data-dir={profile}",
        f"--virtual-time-budget={budget_ms}",
        "--dump-dom",
        page.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def ask(
    chromium: str, folder: Path, page: str, script: str, width_px: int = DESK_PX, query: str = "", budget_ms: int = 2000
) -> Any:
    """What a script finds in the page, shown that wide: it fills the object `found`.

    The page stands in a frame, because a browser's window cannot be as narrow as a phone; it posts what it found.
    """
    body = f"const found = {{}}; {WORDS} {script}\nfound.errors = document.documentElement.dataset.errors ?? '';"
    reported = f"<script>(async () => {{ {body} parent.postMessage(JSON.stringify(found), '*'); }})()</script></body>"
    (folder / "report.html").write_text(page.replace("</body>", reported), encoding="utf-8")
    (folder / "frame.html").write_text(
        "<!doctype html><script>onmessage = (e) => { document.documentElement.dataset.found = e.data; };</script>"
        f'<body style="margin:0"><iframe src="report.html{query}" style="border:0;width:{width_px}px;height:800px">',
        encoding="utf-8",
    )
    document = chromium_dump(chromium, folder / "frame.html", folder / "profile", budget_ms)
    actual = re.search(r'<html data-found="([^"]*)"', document)
    assert actual is not None, "the script did not come to its end"
    return json.loads(unescape(actual[1]))


@pytest.fixture(name="one", scope="module")
def _one(fake_rows: Rows) -> str:
    return build_report(fake_rows(Grid(repeats=2)), SWEEP)


@pytest.fixture(name="two", scope="module")
def _two(fake_rows: Rows) -> str:
    grid = Grid(repeats=3)
    return build_combined_report(
        [Sweep("results/before", fake_rows(grid)), Sweep("results/after", fake_rows(grid, salt=5, faster=1.2))]
    )


@pytest.fixture(name="hosts", scope="module")
def _hosts(fake_rows: Rows, on_hosts: OnHosts) -> str:
    return build_report(
        on_hosts(fake_rows(Grid(seconds=2.0)), tuple(f"node-{number}.lab" for number in range(9))), SWEEP
    )


def test_a_browser_draws_the_curves_without_an_error(chromium: str, tmp_path: Path, fake_rows: Rows) -> None:
    page = tmp_path / "report.html"
    page.write_text(build_report(fake_rows(Grid(repeats=2)), SWEEP), encoding="utf-8")
    document = chromium_dump(chromium, page, tmp_path / "profile")
    root = re.search(r"<html[^>]*>", document)
    assert root is not None
    assert 'data-script="done"' in root[0]
    assert "data-errors" not in root[0]
    curves = re.search(r'data-curves="(\d+)"', root[0])
    assert curves is not None
    drawn = [path for path in re.findall(r'class="line" d="([^"]+)"', page.read_text()) if path != "M1 8H33"]
    assert int(curves[1]) == len(drawn) > 2 * (2 + 4) * 4, "every line of every drawing has a length"
    assert document.count('<button type="button">') > 15  # the heads of the tables sort


@pytest.mark.whole
def test_the_browser_test_would_notice_a_broken_script(chromium: str, tmp_path: Path, fake_rows: Rows) -> None:
    page = tmp_path / "report.html"
    broken = build_report(fake_rows(), SWEEP).replace('tip.id = "tip";', 'tip.id = "tip"; missing();', 1)
    page.write_text(broken, encoding="utf-8")
    document = chromium_dump(chromium, page, tmp_path / "profile")
    assert "data-errors" in document.partition("<body")[0]
    assert 'data-script="done"' not in document


@pytest.mark.whole
def test_a_choice_hides_its_marks_rows_and_charts(chromium: str, tmp_path: Path, one: str) -> None:
    actual = ask(
        chromium,
        tmp_path,
        one,
        """
        const line = document.querySelector("#throughput .series .line");
        found.panel = document.querySelector("#choose").open;
        found.before = [seen("#throughput .pt"), rows(), bends(line)];
        box("buffer timeout", "0").click();
        box("record size", "1 KiB").click();
        found.after = [seen("#throughput .pt"), rows(), bends(line)];
        found.charts = seen("#percentiles figure");
        found.heads = seen("#kept th.c");
        found.told = document.querySelector("#shown").textContent;
        found.stairs = all("#frontier .panel.p1 .wide .stairs").map(isSeen);
        document.querySelector("#choose button[type=reset]").click();
        await new Promise((done) => setTimeout(done, 50));
        found.again = [seen("#throughput .pt"), rows(), bends(line)];
        """,
    )
    assert actual == {
        "panel": True,
        "before": [20, 80, 5],
        "after": [8, 32, 4],
        "charts": 2,
        "heads": 4,
        "told": "32 of 80 runs shown",
        "stairs": [True, False],
        "again": [20, 80, 5],
        "errors": "",
    }


@pytest.mark.whole
def test_the_frontier_is_that_of_what_is_shown(chromium: str, tmp_path: Path, one: str) -> None:
    actual = ask(
        chromium,
        tmp_path,
        one,
        """
        const stairs = document.querySelector("#frontier .panel.p1 .wide .stairs .frontier");
        found.untouched = stairs.getAttribute("d");
        found.corners = seen("#frontier .tag");
        box("channels", "1").click();
        found.other = stairs.getAttribute("d");
        box("channels", "1").click();
        found.again = stairs.getAttribute("d");
        box("buffer timeout", "0").dispatchEvent(new MouseEvent("click", { altKey: true, bubbles: true }));
        found.single = seen("#frontier .tag");
        found.left = seen("#throughput .pt");
        box("buffer timeout", "0").click();
        found.last = box("buffer timeout", "0").checked;
        """,
    )
    numbers = re.compile(r"[\d.]+")
    assert [float(x) for x in numbers.findall(actual["untouched"])] == [
        float(x) for x in numbers.findall(actual["again"])
    ]
    assert actual["other"] != actual["untouched"]
    assert actual["corners"] > actual["single"] == 2
    assert actual["left"] == 4
    assert actual["last"], "the last value of a setting cannot be taken away"
    assert actual["errors"] == ""


@pytest.mark.whole
def test_axes_close_in_on_what_is_shown_and_come_back(chromium: str, tmp_path: Path, one: str) -> None:
    actual = ask(
        chromium,
        tmp_path,
        one,
        """
        const chart = all("#throughput svg").find(isSeen);
        const ticks = () => all('.tick[text-anchor="end"]', chart).filter(isSeen).map((each) => each.textContent);
        const left = (svg) =>
          all('.tick[text-anchor="end"]', svg).filter((tick) => tick.style.display !== "none").length;
        const shared = () => new Set(all("#latency .wide svg").map(left)).size;
        const heights = () => all(".pt .m", chart).filter(isSeen).map((each) => each.getBoundingClientRect().y);
        const short = (text) => (text ?? "").replaceAll(/[\\d.]+/g, (digits) => Number(digits));
        const drawn = () => all("svg .line, svg .hair, svg .frontier, svg .whisker, svg .tick")
          .map((each) => short(each.getAttribute("d")) + short(each.getAttribute("y")));
        const names = () => all(".name text", chart).filter(isSeen).map((each) => Number(each.getAttribute("y")));
        const before = drawn();
        found.whole = ticks();
        const high = Math.min(...heights());
        box("record size", "8 B").click();
        found.closer = ticks();
        found.raised = Math.min(...heights()) - high;
        found.shared = shared();
        box("buffer timeout", "none").click();
        found.apart = Math.abs(names()[0] - names()[1]);
        found.labels = all(".tick", chart).filter(isSeen).map((each) => each.textContent).slice(-4);
        document.querySelector("#choose button[type=reset]").click();
        await new Promise((done) => setTimeout(done, 50));
        const after = drawn();
        found.moved = before.filter((each, place) => each !== after[place]);
        """,
    )
    assert actual["whole"] == ["0", "1 M", "2 M", "3 M", "4 M", "5 M"]
    assert actual["closer"] == ["0", "1 M", "2 M"]
    assert 0 < actual["raised"] < 150, "one in two thirds of the height, after nine tenths"
    assert actual["shared"] == 1, "the tabs of a figure keep one axis"
    assert actual["apart"] >= 14
    assert actual["labels"] == ["0", "1 ms", "10 ms", "100 ms"]
    assert actual["moved"] == []
    assert actual["errors"] == ""


@pytest.mark.whole
def test_sweeps_are_switched(chromium: str, tmp_path: Path, two: str) -> None:
    actual = ask(
        chromium,
        tmp_path,
        two,
        """
        found.both = [seen("#throughput .series"), seen("#sweeps tbody tr"), seen(".against")];
        box("sweep", "B").click();
        found.first = [seen("#throughput .series"), seen("#sweeps tbody tr"), seen(".against")];
        found.told = document.querySelector("#shown").textContent;
        box("sweep", "B").click();
        const legend = document.querySelector(".legend button");
        legend.click();
        found.hidden = seen("#throughput .series");
        found.twins = all(`.legend [data-series="0"]`).map((each) => each.getAttribute("aria-pressed"));
        """,
    )
    assert actual["both"] == [8, 2, 1]
    assert actual["first"] == [4, 1, 0]
    assert actual["told"] == "120 of 240 runs shown"
    assert actual["hidden"] == 7
    assert set(actual["twins"]) == {"false"}
    assert actual["errors"] == ""


def test_one_view_is_shown_and_follows_the_choice(chromium: str, tmp_path: Path, hosts: str) -> None:
    actual = ask(
        chromium,
        tmp_path,
        hosts,
        """
        const select = document.querySelector("#pairs-view");
        const head = () => select.selectedOptions[0].textContent;
        found.start = [seen("#hosts .view"), seen("#hosts td.cell"), head()];
        document.querySelector("#hosts [data-step='1']").click();
        found.next = [seen("#hosts .view"), head()];
        box("record size", "8 B").click();
        found.chosen = [seen("#hosts .view"), head(), all("option", select).filter((each) => !each.disabled).length];
        document.querySelector("#hosts [data-step='-1']").click();
        found.round = head();
        select.value = all("option", select).findLast((each) => !each.disabled).value;
        select.dispatchEvent(new Event("change"));
        found.last = head();
        """,
    )
    last = "1 KiB \u00b7 16 ch, timeout none"
    assert actual == {
        "start": [1, 3 * 81, "8 B \u00b7 1 ch, timeout 0"],
        "next": [1, "8 B \u00b7 1 ch, timeout 1 ms"],
        "chosen": [1, "1 KiB \u00b7 1 ch, timeout 0", 10],
        "round": last,
        "last": last,
        "errors": "",
    }


@pytest.mark.whole
def test_values_over_time_are_told_at_the_cursor(chromium: str, tmp_path: Path, one: str) -> None:
    actual = ask(
        chromium,
        tmp_path,
        one,
        """
        const tip = document.querySelector("#tip");
        const chart = all("#timeline svg.bare").find(isSeen);
        chart.focus();
        found.first = tip.textContent;
        for (let step = 0; step < 20; step++) {
          chart.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
        }
        found.later = tip.textContent;
        found.shown = !tip.hidden;
        chart.blur();
        found.hidden = tip.hidden;
        """,
    )
    assert re.fullmatch(r"0\.00 s\nproducer  \d+%", actual["first"])
    assert re.fullmatch(r"0\.\d\d s\nproducer  \d+%", actual["later"])
    assert actual["first"] != actual["later"]
    assert (actual["shown"], actual["hidden"], actual["errors"]) == (True, True, "")


@pytest.mark.whole
@pytest.mark.parametrize("width_px", [PHONE_PX, DESK_PX])
@pytest.mark.parametrize("which", ["one", "two", "hosts"])
def test_nothing_is_wider_than_the_screen(
    chromium: str, tmp_path: Path, request: pytest.FixtureRequest, which: str, width_px: int
) -> None:
    actual = ask(
        chromium,
        tmp_path,
        request.getfixturevalue(which),
        """
        for (const each of all("details")) if (!each.closest(".views")) each.open = true;
        for (const each of all(".pick")) each.checked = each.id.endsWith("-2"); // longer than the first
        found.width = document.documentElement.clientWidth;
        found.content = document.documentElement.scrollWidth;
        const inner = (each) => each.closest(".scroll, .map, #tip");
        found.over = all("main *").filter((each) => isSeen(each) && !inner(each))
          .filter((each) => each.getBoundingClientRect().right > found.width + 0.5)
          .map((each) => `${each.tagName} ${each.getAttribute("class")} ${each.textContent.slice(0, 30)}`);
        """,
        width_px,
    )
    assert actual["content"] <= actual["width"] <= width_px
    assert actual["over"] == []
    assert actual["errors"] == ""


def test_without_a_script_everything_is_there(chromium: str, tmp_path: Path, hosts: str) -> None:
    page = tmp_path / "report.html"
    page.write_text(re.sub(r"<script>.*?</script>", "", hosts, flags=re.DOTALL), encoding="utf-8")
    document = chromium_dump(chromium, page, tmp_path / "profile")
    assert re.search(r'<details id="choose" class="card" hidden', document)
    assert document.count('<details class="view"') == 40
    assert document.count('<details class="view" open') == 2


@pytest.mark.whole
def test_labels_of_the_frontier_do_not_touch(chromium: str, tmp_path: Path, fake_rows: Rows) -> None:
    timeouts = (None, 0.1, 0.09, 0.02, 0.01, 0.009, 0.001, 0.0)
    grid = Grid(timeouts_s=timeouts, record_sizes=(8, 9), channels=(1, 2))
    page = build_combined_report(
        [Sweep("a", fake_rows(grid, noise=0.2)), Sweep("b", fake_rows(grid, salt=3, noise=0.2))]
    )
    script = """
    const touch = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    const boxed = (each) => [each.getBoundingClientRect(), each.textContent];
    found.touching = [];
    found.tags = 0;
    for (const pick of all("#frontier .pick")) {
      pick.checked = true;
      const chart = all("#frontier svg[viewBox]").find(isSeen);
      const tags = all(".tag", chart).filter(isSeen).map(boxed);
      const names = all(".stairs text", chart).filter(isSeen).map(boxed);
      const marks = all(".pt .m", chart).filter(isSeen).map((each) => [each.getBoundingClientRect(), "a mark"]);
      found.tags += tags.length;
      for (const [number, [box, text]] of tags.entries()) {
        for (const [other, what] of [...tags.slice(number + 1), ...names, ...marks]) {
          if (touch(box, other)) found.touching.push(`${text} and ${what}`);
        }
      }
    }
    """
    for width_px in (DESK_PX, PHONE_PX):
        actual = ask(chromium, tmp_path, page, script, width_px)
        assert actual["tags"] > 4
        assert actual["touching"] == []
        assert actual["errors"] == ""


@pytest.mark.whole
def test_a_button_is_a_button_below_its_own_table(chromium: str, tmp_path: Path, hosts: str) -> None:
    actual = ask(
        chromium,
        tmp_path,
        hosts,
        """
        found.high = Math.max(...all(".export button").filter(isSeen).map((each) => each.offsetHeight));
        const below = (map) => {
          const boxes = [map.querySelector("table"), map.querySelector(".export")];
          const [table, box] = boxes.map((each) => each?.getBoundingClientRect());
          return box && box.top >= table.bottom && box.left >= table.left - 1 && box.right <= table.right + 1;
        };
        found.maps = all("#hosts .view[open] .map").map(below);
        """,
    )
    assert actual == {"high": actual["high"], "maps": [True] * 3, "errors": ""}
    assert 10 < actual["high"] < 32


def test_no_heading_is_under_the_chooser(chromium: str, tmp_path: Path, hosts: str) -> None:
    actual = ask(
        chromium,
        tmp_path,
        hosts,
        """
        found.covered = [];
        for (const link of all("nav a")) {
          const target = document.querySelector(link.getAttribute("href"));
          target.scrollIntoView();
          const panel = document.querySelector("#choose").getBoundingClientRect();
          const top = target.getBoundingClientRect().top;
          if (panel.top < 20 && top < panel.bottom) found.covered.push(link.textContent);
        }
        found.stuck = document.querySelector("#choose").getBoundingClientRect().top < 20;
        """,
    )
    assert actual == {"covered": [], "stuck": True, "errors": ""}


SAVED = """
const blobs = [];
URL.createObjectURL = (blob) => { blobs.push(blob); return "about:blank"; };
const names = [];
HTMLAnchorElement.prototype.click = function () { names.push(this.download); };
const press = (root, label) => all(".export button", root).find((each) => each.textContent === label).click();
"""


@pytest.mark.whole
def test_charts_and_tables_are_saved_as_they_are_shown(chromium: str, tmp_path: Path, one: str) -> None:
    actual = ask(
        chromium,
        tmp_path,
        one,
        SAVED
        + """
        box("channels", "16").click();
        press(document.querySelector("#throughput"), "SVG");
        press(document.querySelector("#kept"), "CSV");
        press(document.querySelector("#throughput"), "PNG");
        while (blobs.length < 3) await new Promise((done) => setTimeout(done, 20));
        found.names = names;
        found.kinds = blobs.map((blob) => blob.type);
        [found.svg, found.csv] = await Promise.all(blobs.slice(0, 2).map((blob) => blob.text()));
        found.drawn = new DOMParser().parseFromString(found.svg, "image/svg+xml").querySelectorAll(".series").length;
        const picture = await createImageBitmap(blobs[2]);
        const canvas = new OffscreenCanvas(picture.width, picture.height);
        const context = canvas.getContext("2d");
        context.drawImage(picture, 0, 0);
        const pixels = context.getImageData(0, 0, picture.width, picture.height).data;
        found.size = [picture.width, picture.height];
        found.colours = new Set(new Uint32Array(pixels.buffer)).size;
        """,
        budget_ms=60_000_000,  # a picture is painted in real time, which this clock does not wait for: turns to wait in
    )
    assert actual["errors"] == ""
    assert actual["names"] == [
        "throughput-against-buffer-timeout.svg",
        "throughput-kept-against-100-ms.csv",
        "throughput-against-buffer-timeout.png",
    ]
    assert actual["kinds"] == ["image/svg+xml", "text/csv", "image/png"]
    assert actual["drawn"] == 2, "the lines that were not chosen are left out"
    lines = actual["csv"].splitlines()
    assert len(lines) == 3
    assert all(line.count(",") == lines[0].count(",") for line in lines)
    assert actual["size"] == [1160, 760]
    assert actual["colours"] > 20, "a drawing, not an empty sheet"


@pytest.mark.whole
def test_the_choice_is_in_the_address(chromium: str, tmp_path: Path, one: str) -> None:
    script = 'box("channels", "16").click(); found.address = location.search; found.rows = rows();'
    chosen = ask(chromium, tmp_path, one, script)
    assert chosen["address"].startswith("?hide=")
    reads = "found.rows = rows(); found.off = all('#choose input').filter((each) => !each.checked).length;"
    again = ask(chromium, tmp_path, one, reads, query=chosen["address"])
    assert (again["rows"], again["off"], again["errors"]) == (chosen["rows"], 1, "")


@pytest.mark.whole
def test_the_keyboard_reaches_the_tables_soon_and_every_mark(chromium: str, tmp_path: Path, one: str) -> None:
    actual = ask(
        chromium,
        tmp_path,
        one,
        """
        const kinds = "a[href], button, input, select, summary, [tabindex]";
        const stops = all(kinds).filter((each) => isSeen(each) && each.tabIndex >= 0);
        const radios = new Set();  // one stop for each group
        const isFirst = ({ name }) => !radios.has(name) && radios.add(name);
        const counted = stops.filter((each) => each.type !== "radio" || isFirst(each));
        found.before = counted.findIndex((each) => each.closest("#runs"));
        const chart = all("#throughput svg").find((svg) => svg.querySelector(".pt") && isSeen(svg));
        const marks = all(".pt", chart);
        found.inChart = marks.filter((each) => each.tabIndex >= 0).length;
        marks.find((each) => each.tabIndex >= 0).focus();
        const visited = new Set();
        for (let step = 0; step < marks.length; step++) {
          visited.add(document.activeElement);
          document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
        }
        found.visited = visited.size === marks.length;
        found.told = !document.querySelector("#tip").hidden;
        """,
    )
    assert actual["errors"] == ""
    assert 10 < actual["before"] < 75
    assert (actual["inChart"], actual["visited"], actual["told"]) == (1, True, True)


@pytest.mark.whole
def test_tables_fit_a_desk(chromium: str, tmp_path: Path, one: str) -> None:
    script = """
    for (const each of all("details")) each.open = true;
    found.wide = all("table").filter((each) => each.scrollWidth > each.closest(".card").clientWidth).length;
    """
    assert ask(chromium, tmp_path, one, script) == {"wide": 0, "errors": ""}
