"""The programs and the commands of the README and of the documentation do what their page says."""

from __future__ import annotations

import ast
import json
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

import netstack.cli
import netstack_bench.cli
from netstack.cli.job import load_job, parameters_of

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "tools/docs/pages"


def program_with(page: Path, text: str) -> str:
    """The first Python program of a page that contains a text."""
    return next(block for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if text in block)


def test_the_embedding_example_prints_every_word_once(tmp_path: Path) -> None:
    program = tmp_path / "embed.py"
    program.write_text(program_with(ROOT / "README.md", "open_gate"))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["no", "record", "lost", "and", "none", "repeated"]


def test_the_example_of_a_kept_partition_reads_half_of_it() -> None:
    program = program_with(PAGES / "how-to/embed.md", "ResultPartitionType.BLOCKING")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    half = sum(number for number in range(100_000) if number % 128 < 64)
    assert done.stdout.splitlines() == ["128 subpartitions, 1200000 bytes", str(half)]


@pytest.mark.whole
def test_the_example_of_own_checkpoints_counts_what_was_written_before_each() -> None:
    program = program_with(PAGES / "how-to/embed.md", "aligns_barriers=True")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"checkpoint {number} after {2000 * (number + 1)} records" for number in range(3)
    ]


@pytest.mark.whole
def test_the_checkpoint_example_counts_every_word(tmp_path: Path) -> None:
    program = tmp_path / "checkpoints.py"
    program.write_text(program_with(ROOT / "README.md", "interval_s="))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    counted: dict[str, int] = {}
    for line in done.stdout.splitlines():
        counted |= ast.literal_eval(line.partition(" ")[2])
    assert counted == {"to": 2, "be": 2, "or": 1, "not": 1}


def test_the_sites_first_tutorial_prints_every_word_once(tmp_path: Path) -> None:
    program = program_with(PAGES / "tutorials/embed.md", "open_gate")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["no", "record", "lost", "and", "none", "repeated"]


def test_the_blocking_example_prints_every_word_once(tmp_path: Path) -> None:
    program = tmp_path / "worker.py"
    program.write_text(program_with(PAGES / "how-to/embed.md", "import threading"))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["no", "record", "lost", "and", "none", "repeated"]


def test_the_asyncio_example_prints_every_word_once(tmp_path: Path) -> None:
    program = tmp_path / "asyncio_worker.py"
    program.write_text(program_with(PAGES / "how-to/embed.md", "import asyncio"))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["no", "record", "lost", "and", "none", "repeated"]


@pytest.mark.whole
def test_the_two_phase_sink_commits_every_record_once(tmp_path: Path) -> None:
    program = program_with(PAGES / "how-to/jobs.md", "def prepare_commit")
    (tmp_path / "files.py").write_text(program)
    command = [sys.executable, tmp_path / "files.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    names: dict[str, Any] = {"__name__": "the page"}
    exec(program, names)
    sink = names["Files"](tmp_path)
    sink.open(SimpleNamespace(subtask=0))
    committables = []
    for record in range(2):  # of which the first checkpoint failed
        sink.process(record)
        committables.append(sink.prepare_commit())
    assert sink.prepare_commit() is None
    assert not list(tmp_path.glob("[!.]*.json")), "nothing is visible before the commit"
    for _ in range(2):  # a restart commits again
        sink.commit(committables)
        assert sorted(json.loads(each.read_text()) for each in tmp_path.glob("[!.]*.json")) == [[0], [1]]


def test_the_planning_example_is_what_is_shown() -> None:
    page = PAGES / "how-to/jobs.md"
    program = program_with(page, "make_plan")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    (displayed,) = re.findall(r"```\n(Chaining\n.*?)```", page.read_text(), re.DOTALL)
    assert displayed in done.stdout
    assert "split -> count: not chained" in done.stdout


def test_make_has_the_targets_that_are_named() -> None:
    targets = re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert targets == ["sweep", "test"]
    makefile = (ROOT / "Makefile").read_text()
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_the_first_screen_says_why_and_how_to_install_and_embed() -> None:
    first_screen = (ROOT / "README.md").read_text()[:2500]
    places = [first_screen.index(text) for text in ("network stack", "pip install", "## Embed it", "import netstack")]
    assert places == sorted(places)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


@pytest.mark.parametrize(
    "page",
    [*ROOT.glob("*.md"), *(ROOT / "netstack").rglob("*.md"), *(ROOT / "bench").rglob("*.md"), *PAGES.rglob("*.md")],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_to_files_of_the_checkout(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        assert "://" in link or (page.parent / link).is_file(), link


def test_the_first_screen_names_both_commands_and_they_exist() -> None:
    first_screen = (ROOT / "README.md").read_text()[:1500]
    targets = re.findall(r"^make (\w+)", first_screen, re.MULTILINE)
    assert targets == ["sweep", "test"]
    makefile = (ROOT / "Makefile").read_text()
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def commands() -> list[str]:
    """Every command of netstack in the shell blocks of the README and of the site, its continued lines joined."""
    actual: dict[str, None] = {}
    for page in (ROOT / "README.md", *sorted(PAGES.rglob("*.md"))):
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            actual |= dict.fromkeys(line for line in lines if re.match(r"netstack(-bench)? ", line))
        if page.name == "flink-tuning.md":  # a command a line of its tables
            actual |= dict.fromkeys(re.findall(r"`(netstack(?:-bench)? [^`]+)`", page.read_text()))
    return [line for line in actual if not line.endswith("--help")]


@pytest.fixture
def readers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout in which the commands above the one that is tried have been run."""
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    for name in ("before", "after", "mine"):
        (tmp_path / "results" / name).mkdir(parents=True)
    (tmp_path / "secret").write_text("x" * 44)
    (tmp_path / "README.md").symlink_to(ROOT / "README.md")
    (tmp_path / "secret").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.whole
@pytest.mark.parametrize("line", commands())
def test_every_command_is_understood(line: str, readers_folder: Path) -> None:
    words = shlex.split(line.partition(";")[0].replace("$ID", "0" * 120), comments=True)
    group = {"netstack": netstack.cli.cli, "netstack-bench": netstack_bench.cli.cli}[words[0]]
    if words[1:] == ["--version"]:
        return
    name, command, rest = group.resolve_command(click.Context(group, **group.context_settings), words[1:])
    assert command is not None
    try:
        made = command.make_context(name, rest, parent=click.Context(group, **group.context_settings))
    except click.BadParameter as error:
        if "does not exist" not in str(error):  # a file of the reader's own is all that may be missing
            raise
        return
    job = made.params.get("job") or made.params.get("target") or ""
    if job.startswith("netstack."):
        load_job(job, parameters_of(made.params["input_file"], made.params["given"]))


@pytest.mark.whole
def test_what_is_served_is_consumed() -> None:
    serve, consume = (line.partition("#")[0] for line in commands() if ":6130 " in line)
    with socket.socket() as probe:  # the README's port may be taken here
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    words = [shlex.split(line.replace("6130", str(free)).replace("$ID", "0" * 119 + "1")) for line in (serve, consume)]
    served, consumed = ([str(Path(sys.executable).with_name(each[0])), *each[1:]] for each in words)
    with subprocess.Popen(served, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as serving:
        assert serving.stdout is not None
        assert str(free) in serving.stdout.readline(), "it says where it listens"
        done = subprocess.run(consumed, capture_output=True, text=True, timeout=180, check=False)
        serving.communicate(timeout=180)
    assert (done.returncode, serving.returncode) == (0, 0), done.stderr
    assert sum(each["records"] for each in json.loads(done.stdout)["channels"]) == 100_000
