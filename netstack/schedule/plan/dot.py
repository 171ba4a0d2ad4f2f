"""A plan in the language of Graphviz: `netstack plan JOB --format dot | dot -Tsvg`.

Takes: a `Plan`. Gives: one digraph: a cluster for each chain, a node for each operator.
"""

from __future__ import annotations

from typing import Final

from ..graph.chaining import Chaining
from .plan import Plan
from .words import channels_text, edge_text, group_text, letter, parallelism_text, shortened

_MOST_NAME: Final = 60


def plan_dot(plan: Plan) -> str:
    """The digraph. Chained operators are joined by bold lines, chains by thin ones."""
    lines = [
        f"digraph {_quoted(plan.job.name)} {{",
        "  rankdir=LR; compound=true;",
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname="sans-serif"];',
        '  edge [fontname="sans-serif", fontsize=10];',
    ]
    for index, vertex in enumerate(plan.job.vertices):
        title = f"{letter(index)}: {parallelism_text(vertex.parallelism)}\n{group_text(plan, index)}"
        lines += [
            f"  subgraph cluster_{index} {{",
            f'    label={_quoted(title)}; style="rounded,filled"; fillcolor="#eef3f8"; fontname="sans-serif";',
        ]
        names = vertex.operators or (vertex.name,)
        lines += [f"    {_node(index, name)} [label={_quoted(shortened(name, _MOST_NAME))}];" for name in names]
        lines.append("  }")
    if plan.chaining is not None:
        lines += _chained(plan.chaining)
    for index, edge in enumerate(plan.job.edges):
        dataset = plan.job.datasets[edge.dataset]
        producer, consumer = plan.job.vertices[dataset.producer], plan.job.vertices[edge.consumer]
        source = _node(dataset.producer, dataset.operator or (producer.operators or (producer.name,))[-1])
        target = _node(edge.consumer, (consumer.operators or (consumer.name,))[0])
        label = "\n".join(filter(None, (edge_text(plan, edge), dataset.type.value, channels_text(plan, index))))
        style = "" if dataset.type.must_be_pipelined else ", style=dashed"
        lines.append(f"  {source} -> {target} [label={_quoted(label)}{style}];")
    return "\n".join([*lines, "}"]) + "\n"


def _chained(chaining: Chaining) -> list[str]:
    nodes = chaining.graph.nodes
    return [
        f"  {_node(chaining.chain_of[edge.source], nodes[edge.source].name)} ->"
        f" {_node(chaining.chain_of[edge.target], nodes[edge.target].name)} [penwidth=3, arrowhead=none];"
        for edge in chaining.graph.edges
        if chaining.is_chained(edge)
    ]


def _node(chain: int, name: str) -> str:
    return _quoted(f"{letter(chain)}.{name}")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
