"""A Spark session whose JVM this process started: all calls of what is private in pyspark, and of the JVM.

Takes: a session, or nothing yet. Gives: `ClassicDriver`; starting and forgetting a JVM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, final

from .driver import Executors, PartitionLayout

_SAFE_PATH: Final = "PYTHONSAFEPATH"
_MANY_TO_ONE: Final = ("Union", "Coalesce", "CartesianProduct")


@final
class ClassicDriver:
    """See `Driver`.

    Args:
        spark: the session.
    """

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._context = spark.sparkContext

    def setting(self, name: str) -> str | None:
        """See `Driver`."""
        value: str | None = self._context.getConf().get(name)
        return value

    def archives(self) -> Collection[str]:
        """See `Driver`."""
        return {str(known).rpartition("/")[2] for known in self._context.listFiles}

    def add_archive(self, path: Path) -> None:
        """See `Driver`."""
        self._context.addPyFile(str(path))

    @contextlib.contextmanager
    def archives_first(self) -> Iterator[None]:
        """See `Driver`."""
        environment = self._context.environment
        before = environment.get(_SAFE_PATH)
        environment[_SAFE_PATH] = "1"
        try:
            yield
        finally:
            if before is None:
                del environment[_SAFE_PATH]
            else:
                environment[_SAFE_PATH] = before

    def slots(self, profile: Any = None) -> int:
        """See `Driver`."""
        scala = self._context._jsc.sc()
        profiles = scala.resourceProfileManager()
        wanted = profiles.defaultResourceProfile() if profile is None else profiles.resourceProfileFromId(profile.id)
        return int(scala.maxNumConcurrentTasks(wanted))

    def layout(self, df: Any) -> PartitionLayout:
        """See `Driver`. Runs nothing: a plan with a shuffle is looked at as far as that, others are their RDDs."""
        execution = df._jdf.queryExecution()
        plan = execution.executedPlan()
        if not _has_boundary(plan):
            rdd = execution.toRdd()
            return PartitionLayout(rdd.getNumPartitions(), _is_straight(rdd), bool(rdd.isBarrier()))
        return _layout(plan, is_adaptive=False)

    def collected_lists(self) -> Any:
        """See `Driver`."""
        from .accumulator import ListParam

        return self._context.accumulator([], ListParam())

    def executors(self) -> Executors:
        """All that there are or were; none when Spark does not tell any more."""
        from py4j.protocol import Py4JError

        try:
            listed = self._context._jsc.sc().statusStore().executorList(False)
            known = [listed.apply(index) for index in range(listed.size())]
            hosts = {str(each.id()): str(each.hostPort()).rpartition(":")[0] for each in known}
            return Executors(hosts, frozenset(str(each.id()) for each in known if each.isActive()))
        except Py4JError:
            return Executors()

    def executor_count(self) -> int:
        """How many executors there are, the driver left out."""
        return len(self._context._jsc.sc().statusTracker().getExecutorInfos()) - 1

    def replace_executor(self, executor: str) -> None:
        """Has Spark start another in its place, if there is room for one."""
        self._context._jsc.sc().killAndReplaceExecutor(executor)

    def java_version(self) -> str:
        """Of the driver's JVM."""
        return str(self._context._jvm.System.getProperty("java.version"))

    def remove_folder(self, url: str) -> None:
        """Removes it with everything in it, by Hadoop's file systems."""
        path = self._context._jvm.org.apache.hadoop.fs.Path(url)
        path.getFileSystem(self._context._jsc.hadoopConfiguration()).delete(path, True)


def start_jvm(properties: Mapping[str, str], output: IO[bytes]) -> Any:
    """A JVM with a session of its own, its output on a file for good. Returns its gateway.

    Raises:
        PySparkException: it did not start.
    """
    from pyspark import SparkConf, java_gateway

    conf = SparkConf(loadDefaults=False).setAll(list(properties.items()))
    launch: Any = java_gateway.launch_gateway
    return launch(conf, {"stdout": output, "stderr": output, "start_new_session": True})


def forget_jvm() -> None:
    """The next session starts a JVM of its own."""
    from pyspark import SparkContext

    SparkContext._gateway = SparkContext._jvm = None


def _children(plan: Any) -> list[Any]:
    """Of a node of a physical plan; those of adaptive and of cached ones too."""
    name = str(plan.nodeName())
    if name == "AdaptiveSparkPlan":
        return [plan.initialPlan()]
    if name.startswith("InMemoryTableScan"):
        return [plan.relation().cachedPlan()]
    children = plan.children()
    return [children.apply(index) for index in range(children.size())]


def _has_boundary(plan: Any) -> bool:
    """Whether making RDDs of it could run a part of it."""
    name = str(plan.nodeName())
    return "Exchange" in name or name == "AdaptiveSparkPlan" or any(map(_has_boundary, _children(plan)))


def _is_straight(rdd: Any) -> bool:
    """What Spark asks of a barrier stage (`DAGScheduler.checkBarrierStageWithRDDChainPattern`)."""
    partitions, waiting = rdd.getNumPartitions(), [rdd]
    while waiting:
        each = waiting.pop()
        if each.getNumPartitions() != partitions:
            return False
        dependencies = each.dependencies()
        found = [dependencies.apply(index) for index in range(dependencies.size())]
        waiting += [one.rdd() for one in found if not str(one.getClass().getName()).endswith("ShuffleDependency")]
    return True


def _layout(plan: Any, *, is_adaptive: bool) -> PartitionLayout:
    name = str(plan.nodeName())
    is_adaptive = is_adaptive or name == "AdaptiveSparkPlan"
    if name == "Exchange":
        # Adaptive execution may read a shuffle in fewer partitions, unless the user has said how many.
        is_fixed = not is_adaptive or str(plan.shuffleOrigin()) == "REPARTITION_BY_NUM"
        return PartitionLayout(int(plan.outputPartitioning().numPartitions()) if is_fixed else None, True, False)
    children = [each for each in _children(plan) if str(each.nodeName()) != "BroadcastExchange"]
    if not children:
        rdd = plan.execute()  # a table, a range, an RDD of the user's
        return PartitionLayout(rdd.getNumPartitions(), _is_straight(rdd), bool(rdd.isBarrier()))
    below = [_layout(each, is_adaptive=is_adaptive) for each in children]
    counts = {each.partitions for each in below}
    has_barrier = any(each.has_barrier for each in below)
    if name in ("MapInArrow", "MapInPandas"):
        has_barrier = has_barrier or bool(plan.isBarrier())
    if name in ("CollectLimit", "TakeOrderedAndProject"):
        return PartitionLayout(1, counts == {1}, has_barrier and counts == {1})
    is_straight = all(each.is_straight for each in below) and len(counts) == 1 and name not in _MANY_TO_ONE
    return PartitionLayout(counts.pop() if is_straight else None, is_straight, has_barrier)
