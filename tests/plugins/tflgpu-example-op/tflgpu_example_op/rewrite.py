"""A pass: ``NEG(NEG(x))`` is ``x``."""

from __future__ import annotations

from tflgpu.sdk.passes import Graph, Pass, PassContext


def _run(graph: Graph, context: PassContext) -> int:
    edits = 0
    for node in graph:
        before = graph.producer(node.input(0)) if node.op == "NEG" else None
        # A graph output keeps its own tensor.
        if before is not None and before.op == "NEG" and not graph.is_output(node.outputs[0]):
            edits += graph.replace_uses(node.outputs[0], before.input(0))
    return edits


PASS = Pass("drop_double_negation", _run)
