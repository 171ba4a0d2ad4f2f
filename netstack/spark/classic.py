"""`ClassicDriver`: a Spark session with a JVM of this process. Only this module calls pyspark's private API."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, final

from .driver import Executors, PartitionLayout

_SAFE_PATH: Final = "PYTHONSAFEPATH"
_MANY_TO_ONE: Final = ("Union", "Coalesce", "CartesianProduct", "GroupPartitions")
_UNKNOWN: Final = PartitionLayout(None, is_straight=False, has_barrier=False)


@final
class ClassicDriver:
    """The `Driver` of a classic session."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._context = spark.sparkContext

    def setting(self, name: str) -> str | None:
        """Returns a property of the session."""
        value: str | None = self._context.getConf().get(name)
        return value

    def archives(self) -> Collection[str]:
        """Returns the names of the files that were sent."""
        return {str(known).rpartition("/")[2] for known in self._context.listFiles}

    def add_archive(self, path: Path) -> None:
        """Adds a zip to the path of every executor's Python."""
        self._context.addPyFile(str(path))

    @contextlib.contextmanager
    def archives_first(self) -> Iterator[None]:
        """Sets PYTHONSAFEPATH for the Python workers of jobs that are created in the block."""
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
        """Returns the number of tasks that can run at once."""
        scala = self._context._jsc.sc()
        profiles = scala.resourceProfileManager()
        wanted = profiles.defaultResourceProfile() if profile is None else profiles.resourceProfileFromId(profile.id)
        return int(scala.maxNumConcurrentTasks(wanted))

    def layout(self, df: Any) -> PartitionLayout:
        """Inspects the plan down to its shuffles and its leaves, and the RDDs of these. Runs nothing."""
        return _layout(df._jdf.queryExecution().executedPlan(), is_adaptive=False)

    def collected_lists(self) -> Any:
        """Returns an accumulator of lists."""
        from .accumulator import ListParam

        return self._context.accumulator([], ListParam())

    def executors(self) -> Executors:
        """Returns all executors, lost ones included; none after the session has ended."""
        from py4j.protocol import Py4JError

        try:
            listed = self._context._jsc.sc().statusStore().executorList(False)
            known = [listed.apply(index) for index in range(listed.size())]
            hosts = {str(each.id()): str(each.hostPort()).rpartition(":")[0] for each in known}
            return Executors(hosts, frozenset(str(each.id()) for each in known if each.isActive()))
        except Py4JError:
            return Executors()

    def executor_count(self) -> int:
        """Returns the number of executors, without the driver."""
        return len(self._context._jsc.sc().statusTracker().getExecutorInfos()) - 1

    def replace_executor(self, executor: str) -> None:
        """Lets Spark kill an executor and start another one, if there is room for it."""
        self._context._jsc.sc().killAndReplaceExecutor(executor)

    def java_version(self) -> str:
        """Returns the Java version of the driver's JVM."""
        return str(self._context._jvm.System.getProperty("java.version"))

    def remove_folder(self, url: str) -> None:
        """Deletes a folder with its content, through Hadoop's file systems."""
        path = self._context._jvm.org.apache.hadoop.fs.Path(url)
        path.getFileSystem(self._context._jsc.hadoopConfiguration()).delete(path, True)


def start_jvm(properties: Mapping[str, str], output: IO[bytes]) -> Any:
    """Starts a JVM in a process session of its own, with its output in a file. Returns its gateway.

    Raises:
        PySparkException: the JVM did not start.
    """
    from pyspark import SparkConf, java_gateway

    conf = SparkConf(loadDefaults=False).setAll(list(properties.items()))
    launch: Any = java_gateway.launch_gateway
    return launch(conf, {"stdout": output, "stderr": output, "start_new_session": True})


def forget_jvm() -> None:
    """Makes the next session start a JVM of its own."""
    from pyspark import SparkContext

    SparkContext._gateway = SparkContext._jvm = None


def _children(plan: Any) -> list[Any]:
    """The children of a node whose rows it reads by partition, adaptive and cached nodes included."""
    name = str(plan.nodeName())
    if name == "AdaptiveSparkPlan":
        return [plan.initialPlan()]
    if name.startswith("InMemoryTableScan"):
        return [plan.relation().cachedPlan()]
    children = plan.children()
    return [each for each in map(children.apply, range(children.size())) if not _is_broadcast(each)]


def _is_broadcast(plan: Any) -> bool:
    """Whether each task gets all rows of a node. Asked of the partitioning, which the nodes around it pass on."""
    return str(plan.outputPartitioning().getClass().getSimpleName()) == "BroadcastPartitioning"


def is_straight(rdd: Any) -> bool:
    """Spark's condition for a barrier stage (`DAGScheduler.checkBarrierStageWithRDDChainPattern`)."""
    partitions, waiting = rdd.getNumPartitions(), [rdd]
    while waiting:
        each = waiting.pop()
        if each.getNumPartitions() != partitions:
            return False
        dependencies = each.dependencies()
        listed = [dependencies.apply(index) for index in range(dependencies.size())]
        waiting += [one.rdd() for one in listed if not str(one.getClass().getName()).endswith("ShuffleDependency")]
    return True


def _leaf(plan: Any) -> PartitionLayout:
    """The layout of a table, a range, or an RDD. A recursion, and a filter by a subquery, run to know it."""
    if str(plan.nodeName()) == "UnionLoop" or not plan.subqueries().isEmpty():
        return _UNKNOWN
    rdd = plan.executeColumnar() if plan.supportsColumnar() else plan.execute()
    return PartitionLayout(rdd.getNumPartitions(), is_straight(rdd), bool(rdd.isBarrier()))


def _shuffle(exchange: Any, *, is_adaptive: bool) -> PartitionLayout:
    """Adaptive execution may read a shuffle in fewer partitions, unless the user has set their number."""
    is_fixed = not is_adaptive or str(exchange.shuffleOrigin()) == "REPARTITION_BY_NUM"
    return PartitionLayout(int(exchange.outputPartitioning().numPartitions()) if is_fixed else None, True, False)


def _adds_unmatched(join: Any) -> bool:
    """Whether a nested loop adds rows of the side that is broadcast, in partitions of their own."""
    kind, side = str(join.joinType().toString()), str(join.buildSide().toString())
    return kind not in ("Inner", "Cross") and (kind == "FullOuter" or (side == "BuildLeft") != (kind == "RightOuter"))


def _layout(plan: Any, *, is_adaptive: bool) -> PartitionLayout:
    name = str(plan.nodeName())
    is_adaptive = is_adaptive or name == "AdaptiveSparkPlan"
    if name.endswith("Exchange"):
        return _shuffle(plan.child() if name == "ReusedExchange" else plan, is_adaptive=is_adaptive)
    children = _children(plan)
    if not children:
        return _leaf(plan)
    below = [_layout(each, is_adaptive=is_adaptive) for each in children]
    counts = {each.partitions for each in below}
    has_barrier = any(each.has_barrier for each in below)
    if name in ("MapInArrow", "MapInPandas"):
        has_barrier = has_barrier or bool(plan.isBarrier())
    if name in ("CollectLimit", "TakeOrderedAndProject"):
        return PartitionLayout(1, counts == {1}, has_barrier and counts == {1})
    is_straight = all(each.is_straight for each in below) and len(counts) == 1 and name not in _MANY_TO_ONE
    is_straight = is_straight and not (name == "BroadcastNestedLoopJoin" and _adds_unmatched(plan))
    return PartitionLayout(counts.pop() if is_straight else None, is_straight, has_barrier)
