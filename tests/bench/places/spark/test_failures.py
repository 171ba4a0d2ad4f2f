"""What Spark says, in one sentence; the likeliest cause among nodes; the node that says nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, PythonException

from netstack.spark.driver import Executors
from netstack.spark.failures import explain
from netstack_bench.places.conversation import MeasurementFailed
from netstack_bench.places.spark.engine import EndingWatch, failure_of, first_failure
from netstack_bench.places.spark.node import Ending
from netstack_bench.sweep import PlaceUnusable

TRACE = """Job aborted due to stage failure: Could not recover from a failed barrier ResultStage.
Traceback (most recent call last):
  File "/x/bench/spark/node.py", line 1, in run_node
TimeoutError: node 1: a peer did not arrive in time, or the job was cancelled
 SQLSTATE: XXKST
	at org.apache.spark.api.python.BasePythonRunner"""


RAISED = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/netstack/spark/consumer.py", line 111, in _records
    reader = blocking.RecordReader(network.open_gate([channel]), format=endpoint.record_format())
                                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^
{}

"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[SPARK-24819]: Barrier execution mode does not allow ... requires more slots than", "lower --nodes"),
        ("SPARK-24942 barrier stage with dynamic allocation", "spark.dynamicAllocation.enabled"),
        ("ExecutorLostFailure (executor 1 exited caused by ...)", "an executor was lost"),
        (
            "Lost task 1.0 in stage 0.0 (TID 1) (10.77.0.12 executor 1): ExecutorLostFailure (executor 1 ...)",
            "on 10.77.0.12",
        ),
        ("worker lost: Not receiving heartbeat for 60 seconds", "cut off"),
        ("Python worker exited unexpectedly (crashed)", "ended in the middle"),
        ('Cannot run program "/opt/python": error=2', "no Python at /venv/bin/python"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version", "has another version"),
        ("ModuleNotFoundError: No module named 'trio'", "no package 'trio'"),
        (TRACE, "a peer did not arrive in time"),
        ("something new\nwith lines", "Spark: something new"),
        ("", "Spark: ValueError"),
    ],
)
def test_one_sentence(text: str, says: str) -> None:
    reported = str(failure_of(ValueError(text), nodes=4, python="/venv/bin/python"))
    assert says in reported
    assert "\n" not in reported
    assert "org.apache" not in reported


@pytest.mark.parametrize(
    ("text", "hopeless"),
    [
        ("[SPARK-24819]", True),
        ('Cannot run program "x"', True),
        ("ModuleNotFoundError: No module named 'trio'", True),
        ("Job 3 cancelled because SparkContext was shut down", True),
        ("ExecutorLostFailure", False),
        ("Python worker exited unexpectedly (crashed)", False),
    ],
)
def test_what_every_other_run_would_fail_of_is_told_apart(text: str, hopeless: bool) -> None:
    assert isinstance(failure_of(ValueError(text), nodes=2, python="p"), PlaceUnusable) is hopeless


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (
            "netstack.base.errors.ProducerUnreachable: cannot reach tcp://h:1",
            "a task failed: ProducerUnreachable: cannot",
        ),
        ("__main__.main.<locals>.Boom: at 7\nValueError: is a line of its text", "a task failed: Boom: at 7"),
        ("pyarrow.lib.ArrowInvalid:\n no int", "a task failed: ArrowInvalid"),
        ("AssertionError", "a task failed: AssertionError"),
    ],
)
def test_an_error_of_a_worker_is_explained_whatever_its_class_is_called(raised: str, says: str) -> None:
    text = explain(PythonException(RAISED.format(raised)), tasks=2, python="p").text
    assert text.startswith(says)
    assert "\n" not in text


def test_an_error_before_there_are_tasks_is_none_of_a_task_and_an_unknown_format_says_what_to_call() -> None:
    raised = RAISED.format("netstack.base.errors.ConfigError: no option 'adress'")
    refused = AnalysisException(f"[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source reader: {raised}")
    assert explain(refused, tasks=2, python="p").text == "ConfigError: no option 'adress'"
    unknown = ValueError("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: netstack. Make sure the provider")
    assert "netstack.spark.register(spark)" in explain(unknown, tasks=2, python="p").text


def row(rank: int, kind: str, error: str | None = None) -> dict[str, object]:
    return {"rank": rank, "host": f"10.0.0.{rank}", "kind": kind, "error": error}


def test_the_root_cause_comes_before_what_it_led_to() -> None:
    rows = [row(0, "peer", "lost"), row(1, "timeout", "late"), row(2, "fault", "boom")]
    assert first_failure(rows) == "node 2 at 10.0.0.2: boom"
    assert first_failure(rows[:2]) == "node 1 at 10.0.0.1: late"
    setup = row(0, "setup", "node 1 at x: no port")
    assert first_failure([setup, *rows]) == setup["error"]
    assert first_failure([row(0, "ok"), row(1, "ok")]) == ""


def test_a_lost_executor_is_named_by_its_host_and_so_is_one_whose_slots_are_missed() -> None:
    executors = Executors({"0": "10.77.0.11", "1": "10.77.0.12"}, frozenset("0"))
    assert (executors.active_on(["10.77.0.11"]), executors.active_on(["10.77.0.12"])) == (["0"], [])
    for text, says in (
        ("ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", "an executor on 10.77.0.12 was"),
        ("ExecutorLostFailure (executor 7 exited ...)", "an executor was lost"),
        ("worker lost: (executor 1 exited ...) Not receiving heartbeat for 60 seconds", "a worker on 10.77.0.12 was"),
        ("[SPARK-24819]", "has fewer (10.77.0.12 lost what it had): start more"),
    ):
        assert says in explain(ValueError(text), tasks=2, python="p", executors=executors).text


def ending(rank: int, error: str | None = None) -> Ending:
    return Ending(b"", rank, error, ("10.0.0.1", "10.0.0.2", "10.0.0.3"))


def test_a_node_that_does_not_end_when_the_others_do_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, endings = [0.0], []
    monkeypatch.setattr("netstack_bench.places.spark.engine.time.monotonic", lambda: now_s[0])
    watch = EndingWatch(3, lambda: endings)
    for at_s, ended in ((100.0, None), (101.0, ending(0, "10.0.0.3 said nothing")), (110.0, ending(1)), (119.0, None)):
        now_s[0] = at_s
        endings += [ended] if ended else []
        watch.look()
    now_s[0] = 121.0
    with pytest.raises(MeasurementFailed, match=r"^node 2 at 10.0.0.3 did not end .*\(10.0.0.3 said nothing\)$"):
        watch.look()
    endings.append(ending(2))
    watch.look()
