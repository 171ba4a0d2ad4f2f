"""`netstack run`: a job in processes that come and go with it, whatever ends it."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import batch_jobs
import cluster_jobs
import pytest
import trio
from process_tree import children_of

import netstack
from netstack.base.errors import LocalProtocolError, NetstackError
from netstack.cluster.jobmanager.children import (
    TaskManagerSettings,
    open_local_taskmanagers,
    search_path,
    wait_registered,
)
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.service import open_jobmanager
from netstack.cluster.web.recording import read_recording
from netstack.network.connection.authentication import Secret

pytestmark = pytest.mark.slow
PATIENCE_S = 120.0


def start(folder: Path, *words: str, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """`netstack run` with a folder of its own for temporary files."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "netstack.cli", "run", *words],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search_path()), "TMPDIR": str(folder)},
    )


def finished(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    """What it wrote, but that a busy machine let its loops wait."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, err
    return out, "".join(line for line in err.splitlines(keepends=True) if "event loop has been blocked" not in line)


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.05)


def test_a_job_runs_and_leaves_nothing(tmp_path: Path) -> None:
    words = ("cluster_jobs:word_count", "-p", "parallelism=2", "--taskmanagers", "2", "--slots", "1", "--as", "flink")
    words += ("--json",)
    recording = tmp_path / "recording"
    out, err = finished(start(tmp_path, *words, "--record", str(recording), "--web", "127.0.0.1:0"), 0)
    document = json.loads(out)
    assert document["results"]["result"] == {"0": cluster_jobs.expected_counts()}
    assert (document["state"], document["taskmanagers"], document["slots"]) == ("finished", 2, 1)
    assert re.fullmatch(r"web page: http://127\.0\.0\.1:\d+\n", err)
    assert json.loads(read_recording(recording).last)["jobs"][0]["state"] == "finished"
    assert [*tmp_path.iterdir()] == [recording]


@pytest.mark.whole
def test_a_result_that_is_no_json_ends_neither_page_nor_recording_nor_job(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    words = ("cluster_jobs:odd_results", "--taskmanagers", "2", "--slots", "1", "--json")
    out, err = finished(start(tmp_path, *words, "--record", str(recording), "--web", "127.0.0.1:0"), 0)
    assert json.loads(out)["results"] == {"odd": {"0": cluster_jobs.ODD_AS_JSON}, "result": {"0": [0, 1, 2]}}
    assert re.fullmatch(r"web page: http://127\.0\.0\.1:\d+\n", err)
    looks = [json.loads(line) for line in gzip.decompress(recording.read_bytes()).splitlines()[1:]]
    seen = [job["results"].get("odd") for look in looks for job in look["snapshot"]["jobs"]]
    assert {"0": cluster_jobs.ODD_AS_JSON} in seen


@pytest.mark.whole
@pytest.mark.parametrize("flags", [("--web", "127.0.0.1:0"), ("--record", "recording")])
def test_a_job_that_fails_while_somebody_looks_says_why_in_one_line(tmp_path: Path, flags: tuple[str, str]) -> None:
    flag, value = flags
    words = (flag, value if flag == "--web" else str(tmp_path / value))
    _, err = finished(start(tmp_path, "cluster_jobs:raising", "--taskmanagers", "1", *words), 1)
    *lines, message = [line for line in err.splitlines() if not line.startswith("web page: ")]
    assert f"operator 'check': no room for 2, at cluster_jobs.py:{line_of('raise ValueError(f')} " in message
    assert lines[-1] == "ValueError: no room for 2"
    assert f"{Path(netstack.__file__).parent}/" not in "".join(lines), "frames of ours are folded"


@pytest.mark.long
def test_a_job_whose_results_are_too_large_to_show_runs_to_its_end(tmp_path: Path) -> None:
    """Neither the recording nor the view of a terminal ends it before."""
    words = ("cluster_jobs:large_results", "--taskmanagers", "3", "--slots", "1")
    _, err = finished(start(tmp_path, *words, "--record", str(tmp_path / "recording")), 1)
    (message,) = err.splitlines()
    assert "answer cannot be sent" in message

    terminal, its_end = os.openpty()
    displayed = b""
    with start(tmp_path, *words, stderr=its_end) as process:
        os.close(its_end)
        with open(terminal, "rb", buffering=0) as file, contextlib.suppress(OSError):  # EIO: the other end is closed
            while more := file.read(4096):
                displayed += more
    assert process.returncode == 1
    assert b"answer cannot be sent" in displayed
    assert b"Traceback" not in displayed


@pytest.mark.whole
def test_what_cannot_be_bound_or_made_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        out, err = finished(start(tmp_path, "cluster_jobs:raising", "--web", place), 2)
    assert out == ""
    assert err.startswith(f"netstack: --web {place}: Address already in use;")
    nowhere = tmp_path / "nowhere" / "recording"
    out, err = finished(start(tmp_path, "cluster_jobs:raising", "--record", str(nowhere)), 2)
    assert out == ""
    assert err.startswith(f"netstack: {nowhere} cannot be written: No such file")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.whole
def test_a_recording_that_cannot_be_written_ends_no_job(tmp_path: Path) -> None:
    words = ("cluster_jobs:computing", "--taskmanagers", "1", "--record", "/dev/full")
    out, err = finished(start(tmp_path, *words), 0)
    assert out.split() == ["0", "1", "2"]
    assert "recording cannot be written and stops here: OSError: [Errno 28]" in err


@pytest.mark.whole
def test_what_was_decided_while_it_ran_is_told(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("to be or not to be\n" * 100)
    words = ("netstack.examples:batch_word_count", "--input", str(text), "-p", "volume=2000", "--taskmanagers", "1")
    out, err = finished(start(tmp_path, *words), 0)
    assert json.loads(out)["words"] == 600
    # to be or not to be: 6 words with a length, a msgpack head and 13 letters
    assert "count: parallelism 3" in err
    assert "ceil(4300 / 2000) = 3" in err


@pytest.mark.whole
@pytest.mark.parametrize(
    ("flags", "why", "written"),
    [
        ((), "max_parallelism 128, at most 128; ceil(20000 / 16777216) = 1; 7 splits: 1", 128),
        (("--avg-data-volume-per-task", "8000"), "ceil(20000 / 8000) = 3; 7 splits: 3", 128),
        (("--avg-data-volume-per-task", "1", "--max-parallelism", "4"), "max_parallelism 4, at most 128;", 4),
        (("--avg-data-volume-per-task", "1", "--default-source-parallelism", "2"), "7 splits: 2", 128),
    ],
)
def test_a_source_that_can_tell_and_flags_with_the_names_of_flinks_options(
    tmp_path: Path, flags: tuple[str, ...], why: str, written: int
) -> None:
    out, _ = finished(start(tmp_path, "batch_jobs:told", "--taskmanagers", "1", "--json", *flags), 0)
    document = json.loads(out)
    assert document["results"]["result"]["0"] == batch_jobs.expected()
    assert why in document["decided"]["parts"]["steps"][0]
    (read,) = document["decided"]["sums"]["inputs"]
    assert max(piece["subpartitions"][1] for pieces in read["reads"] for piece in pieces) == written - 1


@pytest.mark.whole
def test_a_job_with_nothing_to_decide_takes_no_such_flags(tmp_path: Path) -> None:
    _, err = finished(start(tmp_path, "cluster_jobs:computing", "--max-parallelism", "4"), 2)
    assert "is not dynamic" in err


@pytest.mark.whole
def test_an_operator_that_prints_and_exits_is_named_with_its_exit_code(tmp_path: Path) -> None:
    out, err = finished(start(tmp_path, "cluster_jobs:exiting", "--taskmanagers", "1"), 1)
    assert out == ""
    *printed, message = err.strip().splitlines()
    assert "saw 0" in printed
    assert message.startswith("netstack: ")
    assert "exited with code 3" in message
    assert [*tmp_path.iterdir()] == []


@pytest.mark.whole
def test_a_failure_that_the_job_goes_on_after_is_told(tmp_path: Path) -> None:
    out, err = finished(start(tmp_path, "cluster_jobs:raising_once", "--taskmanagers", "1"), 0)
    assert out.split() == ["0", "1", "2"]
    (message,) = err.splitlines()
    assert message.startswith("netstack: three -> check -> result (0) on 127.0.0.1:")
    place = f"cluster_jobs.py:{line_of('raise ValueError(f')}"
    assert message.endswith(f"operator 'check': no room for 2, at {place}; restart 1, next in 0.05 s")


@pytest.mark.long
def test_code_that_never_returns_is_named_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    words = ("cluster_jobs:deadly", "-p", "how=sleep", "-p", f"folder={tmp_path}", "--taskmanagers", "1")
    process = start(tmp_path, *words)
    assert process.stderr is not None
    message = process.stderr.readline()
    assert "event loop has been" in message
    assert "operator 'deadly'" in message
    assert f"cluster_jobs.py:{line_of('# it sleeps')}" in message
    process.send_signal(signal.SIGINT)
    out, err = finished(process, 130)
    assert (out, err.splitlines()[-1]) == ("", "netstack: stopped by Ctrl-C")


def line_of(source: str) -> int:
    """Of the module of the jobs."""
    lines = Path(cluster_jobs.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if source in line)


def test_a_failure_names_the_line_its_cause_and_each_restart(tmp_path: Path) -> None:
    words = ("cluster_jobs:failing", "--taskmanagers", "1", "--json")
    out, err = finished(start(tmp_path, *words), 1)
    place = f"cluster_jobs.py:{line_of('raise LookupError')}"
    first, second, *lines, message = err.splitlines()
    cause = f": LookupError: operator 'odd': nobody knows \\x1b[31m2, at {place}"
    assert first.endswith(f"{cause}; restart 1 of 2, next in 0.1 s")
    assert second.endswith(f"{cause}; restart 2 of 2, next in 0.1 s")
    assert message.startswith("netstack: three -> odd -> sink (0) on ")
    assert message.endswith(f"{cause} (2 restarts are used up)")
    text = "\n".join(lines)
    assert f'{cluster_jobs.__file__}", line {line_of("return {0: 0, 1: 1}")}, in looks_up\n    return {{0: 0' in text
    assert "KeyError: 2\n\nThe above exception" in text
    assert re.search(r"^  \.\.\. \d+ frames of netstack$", text, re.MULTILINE)
    assert text.endswith("LookupError: nobody knows \\x1b[31m2")
    assert json.loads(out) == {"error": message.removeprefix("netstack: "), "traceback": text}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("unstorable", r"StateNotPlain: .*\['odd'\]\['own'\]\['seen'\]:"),
        ("no_such_module", r"ConfigError: 'no_such_module:change' .*'no_such_module'"),
        ("cluster_jobs", r"ConfigError: 'cluster_jobs:change' .* no attribute"),
        ("imports", r"ModuleNotFoundError: operator 'odd': .*'no_such_module', at cluster_jobs\.py:"),
        ("refuses", r"ValueError: operator 'odd': limit=-1, at cluster_jobs\.py:"),
        ("opens", r"TypeError: operator 'odd': OpensWithoutContext\.open"),
        ("takes_three", r"ConfigError: operator 'odd': TakesThree\.process"),
    ],
)
def test_what_cannot_get_better_is_not_tried_again(tmp_path: Path, how: str, why: str) -> None:
    _, err = finished(start(tmp_path, "cluster_jobs:failing", "-p", f"how={how}", "--taskmanagers", "1"), 1)
    message = err.splitlines()[-1]
    assert re.search(rf": {why}.* \(a restart", message)
    assert "next in" not in err


@pytest.mark.whole
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_function_that_raises_while_it_builds_a_job_shows_the_user_s_frames_only(
    tmp_path: Path, command: str
) -> None:
    words = [sys.executable, "-P", "-m", "netstack.cli", command, "cluster_jobs:failing", "-p", "how=builds"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search_path())}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    place, inside = line_of("return _build_more"), line_of(".map(lambda")
    assert (done.returncode, done.stdout) == (2, "")
    head, *frames, error, message = done.stderr.splitlines()
    assert head == "Traceback (most recent call last):"
    assert frames == [
        f'  File "{cluster_jobs.__file__}", line {place}, in failing',
        "    return _build_more(job)",
        f'  File "{cluster_jobs.__file__}", line {inside}, in _build_more',
        "    job.source(three).map(lambda item: item)",
    ]
    assert error.startswith("ConfigError: operator: a lambda")
    assert message.startswith("netstack: operator: a lambda")
    assert message.endswith(f", at cluster_jobs.py:{inside}")


@pytest.mark.whole
def test_what_does_not_fit_is_said_before_anything_is_started(tmp_path: Path) -> None:
    words = ("cluster_jobs:two_groups", "--taskmanagers", "1", "--slots", "29")
    out, err = finished(start(tmp_path, *words), 1)
    assert not out
    assert "does not fit" in err
    assert "30 slots" in err


@pytest.mark.whole
def test_what_operators_say_is_shown_and_the_log_of_the_taskmanagers_is_not(tmp_path: Path) -> None:
    _, err = finished(start(tmp_path, "cluster_jobs:saying_much"), 0)
    lines = [line for line in err.splitlines() if "warnings.warn" not in line]
    lines.remove("printed")  # on standard output, whose lines come before or after those of standard error
    assert lines[0] == "an error of ours"
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING shop.stock: logged", lines[1])
    assert re.fullmatch(r".*cluster_jobs.py:\d+: UserWarning: warned", lines[2])
    late = r"task \S+ .*: closing it failed: ConfigError: operator 'late' emits after the end of its task, .* finish"
    assert re.fullmatch(rf"\d\d:\d\d:\d\d WARNING operators: {late}, at cluster_jobs\.py:\d+", lines[3])
    assert len(lines) == 4


@pytest.mark.whole
def test_one_slot_suffices_for_a_batch_job(tmp_path: Path) -> None:
    words = ("batch_jobs:sums", "-p", "parallelism=5", "--taskmanagers", "1", "--slots", "1", "--json")
    out, _ = finished(start(tmp_path, *words), 0)
    assert json.loads(out)["results"]["result"]["0"] == batch_jobs.expected()


@pytest.mark.whole
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    process = start(tmp_path, "cluster_jobs:forever", "--taskmanagers", "1")
    wait_for_children(process)
    children = children_of(process.pid)
    process.send_signal(number)
    out, err = finished(process, 128 + number)
    assert (out, err) == ("", f"netstack: stopped by {'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}\n")
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert [*tmp_path.iterdir()] == []


def wait_for_children(process: subprocess.Popen[str], count: int = 1) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(children_of(process.pid)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.whole
def test_children_of_a_killed_parent_end_by_themselves(tmp_path: Path) -> None:
    process = start(tmp_path, "cluster_jobs:forever", "--taskmanagers", "2", "--slots", "1")
    wait_for_children(process, 2)
    children = children_of(process.pid)
    process.kill()
    process.communicate()
    wait_until_gone(children)


def run_program(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Runs a main file `mine.py` in a folder."""
    (folder / "mine.py").write_text(text)
    return subprocess.run(
        [sys.executable, "mine.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search_path())},
    )


@pytest.mark.whole
def test_a_program_runs_its_own_job(tmp_path: Path) -> None:
    displayed = run_program(
        tmp_path,
        "import netstack\n"
        "from cluster_jobs import three\n"
        "def double(item):\n    return 2 * item\n"
        "class Sum:\n"
        "    def __init__(self):\n        self.sum = 0\n"
        "    def process(self, item):\n        self.sum += item\n"
        "    def finish(self, out):\n        return self.sum\n"
        "if __name__ == '__main__':\n"
        "    job = netstack.StreamEnvironment('mine')\n"
        "    job.source(three).map(double).sink(Sum, name='sum')\n"
        "    print(netstack.run_job(job, taskmanagers=1, slots=1).results)\n",
    )
    assert (displayed.stdout, displayed.stderr) == ("{'sum': {0: 6}}\n", "")


@pytest.mark.whole
def test_a_program_without_a_main_guard_is_refused_once(tmp_path: Path) -> None:
    displayed = run_program(
        tmp_path,
        "import os\n"
        "import netstack\n"
        "def read():\n    return [1]\n"
        "def show(item):\n    print(item)\n"
        "open('runs', 'a').write('x')\n"
        "assert os.path.getsize('runs') < 4, 'each process would start others'\n"
        "job = netstack.StreamEnvironment('mine')\n"
        "job.source(read).sink(show)\n"
        "netstack.run_job(job, taskmanagers=1, slots=1)\n",
    )
    assert displayed.returncode == 1
    message = displayed.stderr.splitlines()[-1]
    assert "ConfigError: run_job was called while mine was imported;" in message
    assert ", at mine.py:11 (a restart" in message
    assert (tmp_path / "runs").read_text() == "xx"


@pytest.mark.whole
def test_taskmanagers_that_are_stopped_while_they_start_print_nothing_of_it() -> None:
    printed: list[str] = []

    async def main() -> None:
        for step in range(12):
            async with open_local_taskmanagers(
                "127.0.0.1:1", ["1"], TaskManagerSettings(), on_printed=lambda _name, line: printed.append(line)
            ) as children:
                while not children.pids:  # noqa: ASYNC110  # another process
                    await trio.sleep(0.01)
                await trio.sleep(step * 0.04)  # from before it handles signals until after its start

    trio.run(main)
    assert [line for line in printed if not line.startswith("listening at ")] == []


@pytest.mark.whole
def test_taskmanagers_that_are_not_let_in_say_why() -> None:
    async def main() -> None:
        config = JobManagerConfig(listen="tcp://127.0.0.1:0", secret=Secret.generate())
        async with (
            open_jobmanager(config) as jobmanager,
            open_local_taskmanagers(
                jobmanager.address, ["1"], TaskManagerSettings(), secret=Secret.generate()
            ) as children,
        ):
            with trio.fail_after(PATIENCE_S):
                while not children.last_words():  # noqa: ASYNC110  # another process
                    await trio.sleep(0.05)
            await wait_registered(children, lambda: len([*jobmanager.taskmanagers.all()]), 1, 0.1)

    with pytest.raises(NetstackError, match=r"only 0 of 1 .* 0.1 s; .*secret"):
        trio.run(main)


def test_run_job_blocks_so_it_is_refused_inside_trio() -> None:
    async def main() -> None:
        netstack.run_job(cluster_jobs.word_count())

    with pytest.raises(LocalProtocolError, match="open_local_cluster"):
        trio.run(main)
