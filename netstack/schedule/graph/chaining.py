"""Operator chaining: eleven conditions, the chains that they give, and an explanation for every edge.

Rules: an edge is chained when all conditions hold, C1 to C11. C1 is waived for a source
that becomes an input of its target's chain. Nothing recurses: 100,000 operators may be one chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from .stream_graph import ChainingStrategy, ExchangeMode, Partitioner, StreamEdge, StreamGraph


@final
@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, evaluated for one edge.

    Attributes:
        number: `C1` to `C11`.
        text: what it compared, such as `parallelism 1 and 2 differ`.
        is_waived: it does not hold but is not needed: the source becomes an input of the chain.
    """

    number: str
    holds: bool
    text: str
    is_waived: bool = False


@final
@dataclass(frozen=True, slots=True)
class ChainingExplanation:
    """Why an edge was chained or not.

    Attributes:
        source: name of the operator that writes.
        target: name of the operator that reads.
        is_chained: whether both run in one thread.
        is_source_input: whether the source is an input of its target's chain.
        conditions: all of them, C1 first.
    """

    source: str
    target: str
    is_chained: bool
    is_source_input: bool
    conditions: tuple[Condition, ...]

    @property
    def deciding(self) -> tuple[Condition, ...]:
        """The conditions that forbid chaining; of a chained edge all."""
        if self.is_chained:
            return self.conditions
        return tuple(condition for condition in self.conditions if not condition.holds and not condition.is_waived)

    @property
    def reason(self) -> str:
        """The decision in one line."""
        if self.is_source_input:
            return "chained as a source input of its target: C1 is waived, all other conditions hold"
        if self.is_chained:
            return "chained: all conditions hold"
        return "not chained: " + "; ".join(f"{condition.number} {condition.text}" for condition in self.deciding)

    def __str__(self) -> str:
        lines = [f"{self.source} -> {self.target}: {self.reason}"]
        for condition in self.conditions:
            sign = "waived" if condition.is_waived else "yes" if condition.holds else "no"
            lines.append(f"  {condition.number:<3} {sign:<6} {condition.text}")
        return "\n".join(lines)


@final
@dataclass(frozen=True, slots=True)
class Chain:
    """A tree of operators that one task runs.

    Attributes:
        head: index of the node that reads the chain's input.
        nodes: all of them except chained sources, the head first, every node before those it feeds.
        sources: indices of the sources that are inputs of the head.
    """

    head: int
    nodes: tuple[int, ...]
    sources: tuple[int, ...] = ()


@final
class Chaining:
    """The chains of a stream graph.

    Attributes:
        chains: in topological order.
        chain_of: the index of every node's chain.
    """

    __slots__ = ("_heads", "_source_inputs", "_streams", "chain_of", "chains", "graph")

    def __init__(self, graph: StreamGraph) -> None:
        """Decides every edge, in time linear in their number."""
        self.graph = graph
        self._streams = Counter((edge.target, edge.input_number) for edge in graph.edges)
        self._heads: list[int] = []
        self._source_inputs = [False] * len(graph.nodes)
        for node in range(len(graph.nodes)):
            self._heads.append(self._head(node))
        numbers: dict[int, int] = {}  # a head has the lowest index of its chain, so this order is topological
        sources: dict[int, list[int]] = {}
        for node, head in enumerate(self._heads):
            if self._source_inputs[node]:
                sources.setdefault(graph.outputs_of(node)[0].target, []).append(node)
            elif node == head:
                numbers[node] = len(numbers)
        self.chain_of = tuple(
            numbers[graph.outputs_of(node)[0].target if self._source_inputs[node] else head]
            for node, head in enumerate(self._heads)
        )
        self.chains = tuple(Chain(head, self._members(head), tuple(sources.get(head, ()))) for head in numbers)

    def is_chained(self, edge: StreamEdge) -> bool:
        """Whether both ends of an edge run in one thread."""
        return self._source_inputs[edge.source] or self._is_in_chain(edge)

    def chained_outputs(self, node: int) -> tuple[int, ...]:
        """Indices of the nodes that read this one in its chain."""
        return tuple(edge.target for edge in self.graph.outputs_of(node) if self._is_in_chain(edge))

    def network_edges(self) -> tuple[StreamEdge, ...]:
        """The edges that were not chained, in the order in which they were made."""
        return tuple(edge for edge in self.graph.edges if not self.is_chained(edge))

    def name(self, chain: Chain) -> str:
        """The name of a chain: `A -> B`, `A -> (B, C)`, or `X [s1, s2]` with sources as inputs."""
        parts: list[str] = []
        stack: list[str | int] = [chain.head]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                parts.append(item)
                continue
            parts.append(self.graph.nodes[item].name)
            if item == chain.head and chain.sources:
                parts.append(f" [{', '.join(self.graph.nodes[source].name for source in chain.sources)}]")
            behind = self.chained_outputs(item)
            if len(behind) == 1:
                stack += (behind[0], " -> ")
            elif behind:
                stack.append(")")
                for number, node in enumerate(reversed(behind)):
                    stack += (node, " -> (" if number == len(behind) - 1 else ", ")
        return "".join(parts)

    def explain(self, edge: StreamEdge) -> ChainingExplanation:
        """Explains why an edge was chained or not."""
        is_source_input = self._source_inputs[edge.source]
        conditions = []
        for number, holds, text in self._conditions(edge):
            conditions.append(Condition(number, holds, text, not holds and number == "C1" and is_source_input))
        nodes = self.graph.nodes
        return ChainingExplanation(
            nodes[edge.source].name,
            nodes[edge.target].name,
            self.is_chained(edge),
            is_source_input,
            tuple(conditions),
        )

    def explain_between(self, source: str, target: str) -> tuple[ChainingExplanation, ...]:
        """Explains every edge from one operator to another, by their names.

        Raises:
            ConfigError: there is no such operator.
        """
        first, second = self.graph.named(source), self.graph.named(target)
        return tuple(self.explain(edge) for edge in self.graph.outputs_of(first) if edge.target == second)

    def _is_in_chain(self, edge: StreamEdge) -> bool:
        return not self._source_inputs[edge.source] and self._heads[edge.target] != edge.target

    def _head(self, node: int) -> int:
        """The head of a node's chain, given those of all lower nodes."""
        inputs = self.graph.inputs_of(node)
        for edge in inputs:
            self._source_inputs[edge.source] = self._is_source_input(edge)
        if len(inputs) != 1 or self._source_inputs[inputs[0].source]:
            return node
        return self._heads[inputs[0].source] if self._allowed(inputs[0]) else node

    def _is_source_input(self, edge: StreamEdge) -> bool:
        return (
            self.graph.nodes[edge.source].is_chainable_source
            and self.graph.nodes[edge.target].strategy is ChainingStrategy.HEAD_WITH_SOURCES
            and len(self.graph.outputs_of(edge.source)) == 1
            and self._allowed(edge, waived="C1")
        )

    def _allowed(self, edge: StreamEdge, waived: str = "") -> bool:
        return all(number == waived or holds for number, holds, _ in self._conditions(edge))

    def _conditions(self, edge: StreamEdge) -> Iterator[tuple[str, bool, str]]:
        """Each condition: its number, whether it holds, and a text about the compared values; evaluated one by one."""
        source, target = self.graph.nodes[edge.source], self.graph.nodes[edge.target]
        settings = self.graph.settings
        inputs = len(self.graph.inputs_of(edge.target))
        yield "C1", inputs == 1, f"{target.name} has {inputs} input edge{'s' if inputs != 1 else ''}"
        on = settings.is_chaining_enabled
        yield "C2", on, f"chaining is {'on' if on else 'off'} for the job"
        yield "C3", *_compared("slot sharing group", source.slot_sharing_group, target.slot_sharing_group)
        without = [node.name for node in (source, target) if not node.has_operator]
        text = f"{' and '.join(without)} has no operator" if without else "both have an operator"
        yield "C4", not without, text
        head = self.graph.nodes[self._heads[edge.source]]
        yields = f"{target.name} {'yields' if target.is_yielding else 'does not yield'}"
        kind = "a legacy source" if head.is_legacy_source else "no legacy source"
        text = f"{yields}, and the chain before it begins with {head.name}, {kind}"
        yield "C5", not (target.is_yielding and head.is_legacy_source), text
        text = f"{source.name} before it has strategy {source.strategy.name}"
        yield "C6", source.strategy is not ChainingStrategy.NEVER, text
        with_sources = target.strategy is ChainingStrategy.HEAD_WITH_SOURCES
        text = f"{target.name} has strategy {target.strategy.name}"
        if with_sources:
            text += f", and {source.name} is {'a' if source.is_chainable_source else 'no'} new-style source"
        is_open = target.strategy is ChainingStrategy.ALWAYS or (with_sources and source.is_chainable_source)
        yield "C7", is_open, text
        widths = (node.parallelism if node.parallelism > 0 else "undecided" for node in (source, target))
        yield "C8", *_compared("parallelism", *widths)
        if settings.chains_different_max_parallelism:
            yield "C9", True, "max parallelism may differ"
        else:
            limits = (node.max_parallelism or "not set" for node in (source, target))
            yield "C9", *_compared("max parallelism", *limits)
        is_forward = edge.partitioner is Partitioner.FORWARD_CONSECUTIVE_HASH or (
            edge.partitioner in (Partitioner.FORWARD, Partitioner.FORWARD_UNSPECIFIED)
            and edge.mode is not ExchangeMode.BATCH
        )
        mode = f", exchange mode {edge.mode.name}" if edge.mode is not ExchangeMode.UNDEFINED else ""
        yield "C10", is_forward, f"partitioner is {edge.partitioner.value.replace('_', ' ')}{mode}"
        is_single = self._streams[edge.target, edge.input_number] == 1
        text = f"input {edge.input_number} of {target.name} is {'one stream' if is_single else 'a union'}"
        yield "C11", is_single, text

    def _members(self, head: int) -> tuple[int, ...]:
        """Depth first, in the order of their calls."""
        members: list[int] = []
        stack = [head]
        while stack:
            node = stack.pop()
            members.append(node)
            stack.extend(reversed(self.chained_outputs(node)))
        return tuple(members)


def _compared(what: str, first: object, second: object) -> tuple[bool, str]:
    if first == second:
        return True, f"{what} is {first} on both sides"
    return False, f"{what} differs: {first} and {second}"
