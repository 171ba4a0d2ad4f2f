"""`.ci/run` runs every test and names what failed, passed only alone or was left out; CI's jobs are its steps."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("ruamel.yaml", reason="comes with check-jsonschema")
ROOT = Path(__file__).parents[2]
RUN = ROOT / ".ci/run"
WORKFLOW = ROOT / ".github/workflows/ci.yml"
STEPS = subprocess.run([RUN, "--list"], capture_output=True, text=True, check=True).stdout.split()

MAKE = """#!/bin/sh
# Stands in for make: it notes its words, and fails as the files beside it say.
echo "$@" >>"$NOTES/commands"
case "$*" in
    *--last-failed*) exit 0 ;;
    pytest*)
        mkdir -p .pytest_cache/v/cache
        last=.pytest_cache/v/cache/lastfailed
        [ ! -e "$NOTES/flaky" ] || { echo '{"tests/a.py::test": true}' >$last && exit 1; }
        [ ! -e "$NOTES/broken" ] || exit 2
        [ ! -e "$NOTES/slow" ] || { echo '{"tests/a.py::test": true}' >$last && exec sleep 60; } ;;
    sweep) mkdir -p results/sweep-1 && echo page >results/sweep-1/report.html ;;
esac
echo "=== 1 passed in 0.01s ==="
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with `.ci`, a README and a stand-in for make."""
    root = tmp_path / "a b"
    (root / ".ci").mkdir(parents=True)
    for name in ("run", "flakes"):
        (root / ".ci" / name).write_bytes((ROOT / ".ci" / name).read_bytes())
        (root / ".ci" / name).chmod(0o755)
    (root / "README.md").write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("make", "apt-get"):
        (tools / name).write_text(MAKE if name == "make" else "#!/bin/sh\n")
        (tools / name).chmod(0o755)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(root)]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*git, *words], check=True)
    return root


def run(checkout: Path, *steps: str, **environment: str) -> subprocess.CompletedProcess[str]:
    folder = checkout.parent
    return subprocess.run(
        [checkout / ".ci/run", *steps],
        env={
            **os.environ,
            "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NOTES": str(folder),
            "FLAKES": str(folder / "flakes.txt"),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_it_begins_with_the_commands_of_the_readme_as_they_stand(checkout: Path) -> None:
    done = run(checkout, "readme")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (checkout.parent / "commands").read_text().splitlines() == ["sweep", "test PYTEST_ARGS="]
    assert STEPS[0] == "readme"


def test_what_passes_only_alone_is_named_at_the_end(checkout: Path) -> None:
    (checkout.parent / "flaky").touch()
    done = run(checkout, "python-build")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-2:] == [
        "passed only when it ran again, alone: tests/a.py::test",
        "passed: 1 steps",
    ]


def test_a_step_that_fails_is_named_last_and_the_others_run(checkout: Path) -> None:
    (checkout.parent / "broken").touch()
    done = run(checkout, "python-build", "docs")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "not passed: python-build"
    assert "docs" in (checkout.parent / "commands").read_text()


def test_what_the_clock_leaves_out_is_named_and_only_a_long_step_may_be(checkout: Path) -> None:
    done = run(checkout, "spark", END_S="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out by the clock: spark" in done.stdout
    assert run(checkout, "docs", END_S="0").returncode == 1


def test_what_failed_before_the_clock_ended_a_step_runs_alone(checkout: Path) -> None:
    (checkout.parent / "slow").touch()
    done = run(checkout, "spark", END_S="2", LEAST_S="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out by the clock: the rest of spark" in done.stdout
    assert "alone: tests/a.py::test" in done.stdout


def test_each_long_step_has_a_share_of_the_time() -> None:
    script = RUN.read_text(encoding="utf-8")
    (long,) = re.findall(r"LONG=\(([^)]*)\)", script)
    shares = {step: int(share) for step, share in re.findall(r"\[(\S+)\]=(\d+)", script)}
    assert sorted(shares) == sorted(long.split())
    (function,) = re.findall(r"^step_end_s\(\) \{.*?^\}", script, re.DOTALL | re.MULTILINE)
    table = " ".join(f"[{step}]={share}" for step, share in shares.items())
    before = f"steps=({long}) everything=yes END_S=4800; declare -A SHARE=({table})\n{function}\nSECONDS=1200\n"
    for number, step in enumerate(long.split()):
        done = subprocess.run(["bash", "-c", before + f"step_end_s {step}"], capture_output=True, text=True, check=True)
        left = sum(shares[later] for later in long.split()[number:])
        assert abs(int(done.stdout) - 1200 - 3600 * shares[step] / left) < 3


def test_a_step_that_does_not_exist_is_refused(checkout: Path) -> None:
    assert run(checkout, "no-such-step").returncode == 2


def test_every_test_that_is_marked_long_runs_in_exactly_one_step() -> None:
    expressions = re.findall(r'-m "(long [^"]*)"', RUN.read_text(encoding="utf-8"))
    assert len(expressions) == 4
    for values in itertools.product((False, True), repeat=3):
        names = dict(zip(("java", "flink", "whole"), values, strict=True))
        chosen = [each for each in expressions if eval(each, {"long": True, **names})]  # noqa: S307
        assert len(chosen) == 1, (names, chosen)


def test_the_tests_of_the_compiled_build_are_there() -> None:
    done = subprocess.run(["make", "--silent", "core-tests"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [each for each in done.stdout.split() if not (ROOT / each).exists()] == []


def test_the_jobs_of_the_workflow_are_the_steps() -> None:
    jobs = yaml.YAML(typ="safe").load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    pythons = [f"on-{each}" for each in jobs["wheel"]["strategy"]["matrix"]["python"]]
    # Python 3.11 runs everything else.
    steps = ["readme", *jobs["step"]["strategy"]["matrix"]["step"], *pythons, "on-3.11"]
    assert sorted(steps) == sorted(STEPS)


@pytest.mark.slow  # the oldest click cannot load the checker
def test_the_workflow_has_the_form_of_one() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
