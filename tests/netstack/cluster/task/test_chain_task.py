"""Jobs of every kind of operator and partitioner, chained and not, over two network environments."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from task.task_functions import (
    Arrays,
    Collect,
    CollectAsync,
    CollectBatches,
    CountArrays,
    CountAtEnd,
    DoubleAsync,
    DoubleBatch,
    EmitsLate,
    EmitsWithoutAwait,
    Join,
    JoinByContext,
    Lengths,
    Returns,
    ReusesAnArray,
    ReusesItsResult,
    StartsNothing,
    add_in_place,
    boxes,
    double,
    is_even,
    key_of,
    last_channel,
    numbers,
    numbers_of_subtask,
    plus,
    returns_a_value,
    shown,
    split_by_size,
    starts_nothing,
    twice,
    where,
    yields,
    yields_later,
)
from task.tasks import SMALL, Run, run_to_its_end, running
from trio.testing import MockClock

from netstack.base.errors import ConfigError, OperatorFailed, RecordError
from netstack.cluster.task.gates import selector_of
from netstack.exchange.keygroups import key_group, operator_index
from netstack.schedule import ChainingStrategy, DataStream, StreamEnvironment, StreamSettings
from netstack.schedule.descriptors.information import EdgeId, OutputInformation
from netstack.schedule.graph.job_graph import OperatorKind
from netstack.schedule.graph.stream_graph import StreamNode

CHAINED = pytest.mark.parametrize("is_chained", [True, False], ids=["chained", "unchained"])


def environment(*, is_chained: bool = True, parallelism: int = 1) -> StreamEnvironment:
    return StreamEnvironment("job", parallelism=parallelism, settings=StreamSettings(is_chaining_enabled=is_chained))


def flat(found: list[list[Any]]) -> list[Any]:
    return [record for part in found for record in part]


@CHAINED
async def test_map_filter_flat_map_sink(autojump_clock: MockClock, is_chained: bool) -> None:
    job = environment(is_chained=is_chained)
    job.source(numbers).map(plus, addend=3).map(double).filter(is_even).flat_map(twice).sink(Collect, name="sink")
    run = await run_to_its_end(job)
    assert run.result("sink") == [[2 * (number + 3) for number in range(1000) for _ in range(2)]]
    assert len(run.tasks) == (1 if is_chained else 6)


async def test_a_type_is_a_function_too(autojump_clock: MockClock) -> None:
    job = environment()
    job.source(numbers, parameters={"count": 3}).map(str).map(float, name="float").filter(bool).sink(
        Collect, name="sink"
    )
    run = await run_to_its_end(job)
    assert run.result("sink") == [[1.0, 2.0]]


@CHAINED
@pytest.mark.parametrize("is_first", [False, True])
async def test_a_reader_that_changes_records_in_place_does_not_change_those_of_other_readers(
    autojump_clock: MockClock, is_chained: bool, is_first: bool
) -> None:
    job = environment(is_chained=is_chained)
    source = job.source(boxes)
    if is_first:
        source.map(add_in_place).sink(Collect, name="changed")
    source.sink(Collect, name="other")
    source.rebalance().sink(Collect, name="elsewhere")
    source.map(add_in_place, name="again").sink(Collect, name="changed again")
    run = await run_to_its_end(job)
    for name in ("changed", "changed again") if is_first else ("changed again",):
        assert run.result(name) == [[[100], [101], [102]]]
    for name in ("other", "elsewhere"):
        assert run.result(name) == [[[0], [1], [2]]]


@CHAINED
@pytest.mark.parametrize("again", [False, True])
async def test_an_operator_may_reuse_the_array_that_it_has_emitted(
    autojump_clock: MockClock, is_chained: bool, again: bool
) -> None:
    job = environment(is_chained=is_chained)
    stream = job.source(numbers).process(ReusesAnArray).with_format("int64")
    if again:
        stream = stream.process(ReusesItsResult).with_format("int64")
    stream.rebalance().with_format("int64").sink(Collect, name="sink")
    run = await run_to_its_end(job)
    assert run.result("sink") == [[*range(1000)]]


@CHAINED
async def test_emit_sends_the_record_though_nobody_awaits_it(autojump_clock: MockClock, is_chained: bool) -> None:
    job = environment(is_chained=is_chained)
    job.source(numbers, parameters={"count": 50}).process(EmitsWithoutAwait).sink(Collect, name="sink")
    run = await run_to_its_end(job)
    assert run.result("sink") == [[number for number in range(50) for _ in range(3)]]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_an_async_operator_that_does_not_await_emit_loses_nothing(autojump_clock: MockClock) -> None:
    job = environment(is_chained=False)
    job.source(numbers).process(EmitsLate).sink(Collect, name="sink")
    run = await run_to_its_end(job)
    assert run.result("sink") == [[*range(1000)]]


@CHAINED
@pytest.mark.parametrize(
    ("function", "what"),
    [
        (starts_nothing, "coroutine of never_runs"),
        (StartsNothing, "coroutine of never_runs"),
        (yields, "generator of yields"),
        (yields_later, "generator of yields_later"),
    ],
)
async def test_a_sync_operator_that_returns_what_nothing_runs_is_refused(
    autojump_clock: MockClock, is_chained: bool, function: Any, what: str
) -> None:
    job = environment(is_chained=is_chained)
    job.source(numbers).sink(function, name="client")
    with pytest.raises(ConfigError, match=f"operator 'client' returned a {what}, which nothing runs"):
        await run_to_its_end(job)


async def test_a_process_that_returns_its_record_is_warned_of_once(autojump_clock: MockClock) -> None:
    job = environment()
    job.source(numbers).process(returns_a_value, name="returns").sink(double, name="sink")
    with pytest.warns(RuntimeWarning) as warned:
        await run_to_its_end(job)
    (warning,) = [str(each.message) for each in warned]
    assert warning.startswith("operator 'returns' returned 0: what a process returns is not emitted; call out.collect")


@CHAINED
async def test_records_are_counted_for_every_operator(autojump_clock: MockClock, is_chained: bool) -> None:
    job = environment(is_chained=is_chained)
    evens = job.source(numbers).filter(is_even)
    evens.sink(Collect, name="even")
    evens.flat_map(twice).map(double).sink(Collect, name="twice")
    run = await run_to_its_end(job)
    counted = {
        each.name: (each.records_in, each.records_out)
        for task in run.tasks.values()
        for each in task.statistics().operators
    }
    assert run.task("source").statistics().records_in == 1000
    assert counted == {
        "source": (0, 1000),
        "filter": (1000, 500),
        "even": (500, 0),
        "flat_map": (500, 1000),
        "map": (1000, 1000),
        "twice": (1000, 0),
    }


@CHAINED
async def test_async_operators_keep_the_order(autojump_clock: MockClock, is_chained: bool) -> None:
    job = environment(is_chained=is_chained)
    job.source(numbers, parameters={"count": 200}).process(DoubleAsync).map(double).process(
        DoubleAsync, name="again"
    ).sink(CollectAsync, name="sink")
    run = await run_to_its_end(job)
    assert run.result("sink") == [[8 * number for number in range(200)]]


@CHAINED
async def test_arrays_stay_arrays(autojump_clock: MockClock, is_chained: bool) -> None:
    job = environment(is_chained=is_chained)
    doubled = job.source(Arrays).with_format("int64").process(DoubleBatch).with_format("int64")
    doubled.sink(CollectBatches, name="sink")
    doubled.map(double).sink(Collect, name="one by one")
    run = await run_to_its_end(job)
    (actual,) = run.result("sink")
    assert actual["records"] == [2 * number for number in range(1000)]
    assert actual["kinds"] == (["ndarray"] if is_chained else ["list"])
    assert run.result("one by one") == [[4 * number for number in range(1000)]]


@CHAINED
async def test_side_outputs_and_records_that_nobody_reads(autojump_clock: MockClock, is_chained: bool) -> None:
    job = environment(is_chained=is_chained)
    split = job.source(numbers).process(split_by_size)
    split.sink(Collect, name="small")
    split.side_output("middle").map(double).sink(Collect, name="middle")
    run = await run_to_its_end(job)
    assert run.result("small") == [[*range(100)]]
    assert run.result("middle") == [[2 * number for number in range(100, 200)]]


@pytest.mark.parametrize("operator", [Join, JoinByContext])
async def test_two_inputs_are_told_apart(autojump_clock: MockClock, operator: type) -> None:
    job = environment(parallelism=2)
    left = job.source(numbers_of_subtask, name="left")
    right = job.source(numbers_of_subtask, name="right").map(double)
    left.key_by(key_of).connect(right.key_by(key_of), operator).sink(Collect, name="sink")
    run = await run_to_its_end(job)
    actual = Counter((side, number) for side, number in flat(run.result("sink")))
    assert actual == Counter({("left", number): 1 for number in range(400)}) + Counter(
        {("right", 2 * number): 1 for number in range(400)}
    )


async def test_a_union_has_all_records(autojump_clock: MockClock) -> None:
    job = environment(parallelism=2)
    first, second = (job.source(numbers_of_subtask, name=name) for name in ("first", "second"))
    first.union(second.map(double)).map(double, name="all").sink(Collect, name="sink")
    run = await run_to_its_end(job)
    assert sorted(flat(run.result("sink"))) == sorted(
        [2 * number for number in range(400)] + [4 * number for number in range(400)]
    )


class TestPartitioners:
    """Who gets which record: 2 producers of 200 numbers each, 4 consumers."""

    @staticmethod
    async def shares(way: str, *arguments: Any, consumers: int = 4) -> list[list[int]]:
        job = environment(parallelism=2)
        stream: DataStream = getattr(job.source(numbers_of_subtask), way)(*arguments)
        stream.map(where).set_parallelism(consumers).forward().sink(Collect, name="sink").set_parallelism(consumers)
        run = await run_to_its_end(job)
        shares: list[list[int]] = [[] for _ in range(consumers)]
        for subtask, number in flat(run.result("sink")):
            shares[subtask].append(number)
        return shares

    async def test_forward(self, autojump_clock: MockClock) -> None:
        assert await self.shares("forward", consumers=2) == [[*range(200)], [*range(200, 400)]]

    async def test_rebalance(self, autojump_clock: MockClock) -> None:
        shares = await self.shares("rebalance")
        assert [len(share) for share in shares] == [100] * 4
        assert sorted(flat(shares)) == [*range(400)]

    async def test_rescale(self, autojump_clock: MockClock) -> None:
        shares = await self.shares("rescale")
        assert sorted(shares[0] + shares[1]) == [*range(200)]
        assert sorted(shares[2] + shares[3]) == [*range(200, 400)]
        assert [len(share) for share in shares] == [100] * 4

    async def test_shuffle(self, autojump_clock: MockClock) -> None:
        shares = await self.shares("shuffle")
        assert sorted(flat(shares)) == [*range(400)]
        assert all(len(share) > 50 for share in shares)

    async def test_global(self, autojump_clock: MockClock) -> None:
        shares = await self.shares("global_")
        assert sorted(shares[0]) == [*range(400)]
        assert shares[1:] == [[], [], []]

    async def test_broadcast(self, autojump_clock: MockClock) -> None:
        assert [sorted(share) for share in await self.shares("broadcast")] == [[*range(400)]] * 4

    async def test_hash(self, autojump_clock: MockClock) -> None:
        for subtask, share in enumerate(await self.shares("key_by", key_of)):
            assert all(operator_index(key_group(key_of(number), 128), 4, 128) == subtask for number in share)

    async def test_custom(self, autojump_clock: MockClock) -> None:
        shares = await self.shares("partition_custom", last_channel)
        assert sorted(shares[0]) == [number for number in range(400) if number % 3 == 0]
        assert sorted(shares[3]) == [number for number in range(400) if number % 3]


async def test_keyed_state_counts_every_key_once(autojump_clock: MockClock) -> None:
    job = environment(parallelism=3)
    job.source(numbers_of_subtask).key_by(key_of).process(CountAtEnd, name="count")
    run = await run_to_its_end(job)
    assert dict(flat(run.result("count"))) == Counter(map(key_of, range(600)))


@pytest.mark.parametrize(("key", "divisor"), [(None, 1 << 62), ("remainder_key", 7), ("key_of", 7)])
async def test_keyed_arrays_are_counted_by_key(autojump_clock: MockClock, key: str | None, divisor: int) -> None:
    job = environment(parallelism=3)
    source = job.source(Arrays, parameters={"count": 600}).set_parallelism(1).with_format("int64")
    keyed = source.key_by(None if key is None else f"task.task_functions:{key}")
    keyed.sink(CountArrays, name="count", divisor=divisor)
    run = await run_to_its_end(job)
    assert dict(flat(run.result("count"))) == Counter(number % divisor for number in range(600))


@pytest.mark.parametrize("operator", ["Join", "JoinByContext"])
async def test_sources_that_are_inputs_of_a_chain(autojump_clock: MockClock, operator: str) -> None:

    job = environment()
    first, second = (job.source(numbers, name=name) for name in ("first", "second"))
    node = StreamNode(
        name="join",
        kind=OperatorKind.CONNECT,
        function=f"task.task_functions:{operator}",
        strategy=ChainingStrategy.HEAD_WITH_SOURCES,
    )
    job.add(node, first, second).sink(Collect, name="sink")
    run = await run_to_its_end(job)
    assert len(run.tasks) == 1
    assert Counter(side for side, _ in flat(run.result("sink"))) == {"left": 1000, "right": 1000}


async def test_the_seeds_example_runs_as_three_tasks_and_as_four_with_a_new_chain(autojump_clock: MockClock) -> None:
    for starts_chain, tasks in ((False, 3), (True, 4)):
        job = environment()
        first = job.source(numbers, name="source").map(double, name="map 1")
        second = first.filter(is_even, name="filter 1").slot_sharing_group("group_03").map(double, name="map 2")
        third = second.filter(is_even, name="filter 2").slot_sharing_group("group_04").map(double, name="map 3")
        if starts_chain:
            third.start_new_chain()
        third.sink(Collect, name="print")
        run = await run_to_its_end(job)
        assert len(run.tasks) == tasks
        assert run.result("print") == [[8 * number for number in range(1000)]]


class TestRefusals:
    @pytest.mark.parametrize(
        ("function", "parameters", "says"),
        [
            ("task.task_functions:plus", {"addition": 1}, "operator 'map': plus cannot be called with the parameters"),
            ("task.task_functions:nobody", {}, "'task.task_functions:nobody' cannot be imported"),
            ("task.task_functions:Count", {}, "Count has no method map or __call__"),
        ],
    )
    async def test_an_operator_that_cannot_be_made(
        self, autojump_clock: MockClock, function: str, parameters: Any, says: str
    ) -> None:
        job = environment()
        job.source(numbers).map(function, **parameters)
        with pytest.raises(ConfigError, match=says):
            await run_to_its_end(job)

    async def test_one_of_two_methods_is_not_enough(self, autojump_clock: MockClock) -> None:
        job = environment()
        job.source(numbers).connect(job.source(numbers), "task.task_functions:JoinsOne").sink(Collect)
        with pytest.raises(ConfigError, match=r"no method process_batch or .* both process1"):
            await run_to_its_end(job)

    async def test_keyed_state_without_keys(self, autojump_clock: MockClock) -> None:
        job = environment()
        job.source(numbers).process(CountAtEnd)
        with pytest.raises(ConfigError, match="use key_by on every input"):
            await run_to_its_end(job)

    async def test_keyed_state_of_somebody_else_s_keys(self, autojump_clock: MockClock) -> None:
        job = environment(parallelism=3)
        job.source(numbers_of_subtask).key_by("task.task_functions:modulo").process(CountAtEnd, name="count")
        await run_to_its_end(job)  # the same keys, by another function
        job = environment(parallelism=3)
        job.source(numbers_of_subtask).key_by("builtins:int").process(CountAtEnd, name="count")
        with pytest.raises(ConfigError, match=r"subtask ., not to ."):
            await run_to_its_end(job)

    async def test_a_record_that_does_not_fit_its_format(self, autojump_clock: MockClock) -> None:
        job = environment(is_chained=False)
        job.source(numbers).with_format("str").sink(Collect)
        with pytest.raises(RecordError, match=r"'source' .* 'sink': record 0 .* format str"):
            await run_to_its_end(job)

    @pytest.mark.parametrize("as_arrays", [False, True])
    async def test_a_record_that_is_too_long(self, autojump_clock: MockClock, as_arrays: bool) -> None:
        job = environment(is_chained=False)
        source = job.source(Lengths, parameters={"lengths": [10, 3000, 3001], "as_arrays": as_arrays})
        source.with_format("bytes").sink(Collect)
        with pytest.raises(RecordError, match=r"'source' .* 'sink': .* 3001 .*max_record_bytes"):
            await run_to_its_end(job, config=replace(SMALL, max_record_bytes=3000))

    @CHAINED
    @pytest.mark.parametrize("kind", ["map", "filter", "flat_map", "process", "sink"])
    async def test_an_operator_that_raises_is_named(
        self, autojump_clock: MockClock, is_chained: bool, kind: str
    ) -> None:
        job = environment(is_chained=is_chained)
        stream = job.source(numbers).map(double).flat_map(twice)
        function = "task.task_functions:fail_with_output" if kind == "process" else "task.task_functions:fail"
        getattr(stream, kind)(function, name="bad")
        with pytest.raises(OperatorFailed, match="operator 'bad': ZeroDivisionError: ") as caught:
            await run_to_its_end(job)
        assert isinstance(caught.value.cause, ZeroDivisionError)

    @pytest.mark.parametrize("where", ["made", "open", "finish", "read"])
    @pytest.mark.parametrize("exits", [False, True])
    async def test_a_method_that_raises_is_its_operators(
        self, autojump_clock: MockClock, where: str, exits: bool
    ) -> None:
        job = environment()
        job.source("task.task_functions:Fails", name="bad", parameters={"where": where, "exits": exits})
        kind = "SystemExit" if exits else "RuntimeError"
        with pytest.raises(OperatorFailed, match=f"operator 'bad': {kind}: in {where}"):
            await run_to_its_end(job)

    async def test_of_two_sources_of_one_class_the_one_that_raises_is_named(self, autojump_clock: MockClock) -> None:
        job = environment()
        first, second = (job.source("task.task_functions:Fails", name=name, where=name) for name in ("none", "read"))
        node = StreamNode(
            name="join",
            kind=OperatorKind.CONNECT,
            function="task.task_functions:Join",
            strategy=ChainingStrategy.HEAD_WITH_SOURCES,
        )
        job.add(node, first, second).sink(Collect)
        with pytest.raises(OperatorFailed, match="operator 'read': RuntimeError: in read"):
            await run_to_its_end(job)

    @pytest.mark.parametrize("returned", ["one record", b"one record", 5, False, {}, {1}, iter([1]), deque([1])])
    async def test_a_read_that_returns_no_list_is_refused(self, autojump_clock: MockClock, returned: Any) -> None:
        Returns.returned = returned
        job = environment()
        job.source(Returns, name="bad").sink(Collect)
        kind = type(returned).__name__
        with pytest.raises(ConfigError, match=f"source 'bad': read returned an? {kind}; return a list or an array of"):
            await run_to_its_end(job)

    async def test_a_function_that_runs_out_of_something_ends_no_stream(self, autojump_clock: MockClock) -> None:
        job = environment()
        job.source(Arrays).map("task.task_functions:stop_in_the_middle", name="bad").sink(Collect)
        with pytest.raises(OperatorFailed, match="operator 'bad': StopIteration"):
            await run_to_its_end(job)

    async def test_a_function_that_exits_ends_its_task_only(self, autojump_clock: MockClock) -> None:
        job = environment()
        job.source(numbers).map("sys:exit", name="bad").sink(Collect)
        with pytest.raises(OperatorFailed, match="operator 'bad': SystemExit: 0"):
            await run_to_its_end(job)


async def test_a_cancelled_task_gives_everything_back(autojump_clock: MockClock) -> None:
    job = environment(is_chained=False, parallelism=2)
    job.source("task.task_functions:SlowNumbers").rebalance().map(double).rebalance().sink(Collect)
    async with running(job) as run:
        assert isinstance(run, Run)


@pytest.mark.parametrize("source", ["numbers", "Arrays", "AllAtTheEnd"])
async def test_the_next_stage_comes_with_the_first_output(autojump_clock: MockClock, source: str) -> None:
    settings = StreamSettings(scheduling="next_stage_on_first_output")
    job = StreamEnvironment("job", settings=settings)
    made = job.source(f"task.task_functions:{source}", parameters={"count": 5000}).with_format("int64")
    made.rebalance().map(double).with_format("int64").rebalance().sink(Collect, name="sink")
    async with running(job) as run:
        assert run.deployed_at_first == 1
        await run.wait()
    assert run.result("sink") == [[2 * number for number in range(5000)]]


@pytest.mark.parametrize(
    ("partitioner", "function", "wanted"), [("custom", key_of, "record, channels"), ("hash", last_channel, "record")]
)
def test_a_function_of_an_edge_that_cannot_be_called_is_refused(
    partitioner: str, function: Callable[..., int], wanted: str
) -> None:
    output = OutputInformation(EdgeId("a", "b"), partitioner, "jobs:function")
    message = rf"edge 'a' -> 'b': {function.__name__} cannot be called as \({wanted}\)"
    with pytest.raises(ConfigError, match=message):
        selector_of(output, cast(Any, None), 0, lambda name: function)


async def test_a_function_that_takes_a_record_gets_no_output(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """`print` takes any number of arguments, and `shown` has a default for its second one."""
    for sink in (print, shown):
        job = StreamEnvironment("job")
        job.source(numbers, name="source", parameters={"count": 3}).sink(sink, name="sink")
        await run_to_its_end(job)
        assert capsys.readouterr().out.split() == ["0", "1", "2"]
