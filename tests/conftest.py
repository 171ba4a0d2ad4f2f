"""What every test gets: reproducible examples, a deterministic trio, and skips that say what is missing.

Importing Hypothesis also makes trio's scheduler deterministic (trio registers itself with it).
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import inspect
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import checkout
import leftovers
import pytest
from connect_server import ConnectServer, open_connect_server
from hypothesis import HealthCheck, settings
from trio.testing import MockClock
from trio_runs import run_limited, virtual_clock

from netstack.base.tls.certificates import make_authority

# The everyday profile runs the same examples each time, so that a failure is the change's fault. `thorough` searches:
# HYPOTHESIS_PROFILE=thorough make test. `fresh` draws twice as many, others each time (see --hypothesis-seed).
everyday = settings(
    max_examples=30, derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("everyday", everyday)
# `brief` is for the fast tests on every other Python, which look for what differs between interpreters and packages.
settings.register_profile("brief", everyday, max_examples=5)
settings.register_profile("fresh", everyday, max_examples=60, derandomize=False, print_blob=True)
settings.register_profile("thorough", everyday, max_examples=1000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "everyday"))

# What tests/fuzz draws anew each time; here, so that all processes of a run have the same.
FUZZ_SEED = os.environ.setdefault("NETSTACK_FUZZ_SEED", str(int.from_bytes(os.urandom(4))))


def pytest_report_header() -> str:
    return f"fuzz: NETSTACK_FUZZ_SEED={FUZZ_SEED}"


if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a shell; processes inherit it from us
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if not is_worker:  # once for all workers
        config.pluginmanager.register(checkout.Watch())
    runs_tests = is_worker or not config.getoption("numprocesses", None)
    if runs_tests and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # of nohup; its processes would inherit it
        signal.signal(signal.SIGHUP, _go_on)


def _go_on(number: int, frame: object) -> None:
    """What `nohup` is for; but processes that the tests start do not inherit a handler."""


def pytest_collection() -> None:
    """Thousands of tests are made, and none of them is garbage: looking for some takes a third of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What is here now stays to the end, so no collection has to look at it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _chromium_path() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def _missing(marker: str) -> str | None:
    """Why tests with this marker cannot run here; None when they can."""
    if marker == "browser" and _chromium_path() is None:
        return "needs Chromium: apt-get install chromium"
    if marker == "java" and shutil.which("java") is None:
        return "needs a Java runtime: apt-get install default-jre-headless"
    if marker == "java" and importlib.util.find_spec("pyspark") is None:
        return "needs pyspark: pip install 'pyspark>=4.2'"
    if marker == "flink" and shutil.which("javac") is None:
        return "needs a JDK: apt-get install openjdk-17-jdk-headless"
    if marker == "flink" and importlib.util.find_spec("pyflink") is None:
        return "needs Flink's jars: pip install 'apache-flink-libraries==2.3.0'"
    if marker == "root" and os.geteuid() != 0:
        return "needs root"
    if marker == "root" and shutil.which("ip") is None:
        return "needs the ip command: apt-get install iproute2"
    return _no_namespaces() if marker == "root" else None


@functools.cache
def _no_namespaces() -> str | None:
    """Why hosts cannot be made of network namespaces, as in a container without the right."""
    name = f"netstack-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return f"needs network namespaces: {made.stderr.strip()}" if made.returncode else None


@pytest.hookimpl(tryfirst=True)  # pytest-trio takes the first runner that an item has, and gives one without a limit
@pytest.hookimpl(tryfirst=True)  # before `-m` looks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if order := os.environ.get("NETSTACK_TEST_ORDER"):  # of files: what a clock leaves out differs from time to time
        items.sort(key=lambda item: random.Random(f"{order} {item.path}").random())
    for item in items:
        if item.get_closest_marker("whole") is not None:
            item.add_marker("long")
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.trio(run=run_limited))
    reasons = {marker: _missing(marker) for marker in ("browser", "java", "flink", "root")}
    for item in items:
        for marker, reason in reasons.items():
            if reason is not None and item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


_LOOK: Final = pytest.StashKey[leftovers.Look]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """What fixtures of a module have made is there already."""
    item.stash[_LOOK] = leftovers.Look()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Nothing is left behind; `leaves(why)` marks a test that has a reason."""
    yield
    before = item.stash.get(_LOOK, None)
    if before is None or any(item.get_closest_marker(marker) for marker in ("leaves", "java", "browser")):
        return
    left = leftovers.left_since(before)
    assert not left, f"left behind: {'; '.join(left)}"


@pytest.fixture
def autojump_clock() -> MockClock:
    """As pytest-trio's, but that it waits for threads: who asks for it runs in virtual time."""
    return virtual_clock()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser, for tests marked `browser`."""
    path = _chromium_path()
    assert path is not None, "mark the test with pytest.mark.browser, so that it is skipped without a browser"
    return path


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One session of local mode with two slots, for all tests of the group "spark"; its own output goes to a file."""
    from netstack.spark.session import open_session
    from netstack.spark.settings import SparkSettings

    log: Path = tmp_path_factory.mktemp("spark") / "spark.log"
    settings = SparkSettings(master="local[2]", app_name="netstack-tests", log_file=str(log))
    with open_session(settings) as session:
        yield session


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A Spark Connect server in local mode with two slots, for all tests of the group "connect"."""
    with open_connect_server(tmp_path_factory.mktemp("connect")) as server:
        yield server


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an authority that makes certificates of hosts."""
    pytest.importorskip("cryptography")
    folder = tmp_path_factory.mktemp("authority")
    make_authority(folder)
    return folder
