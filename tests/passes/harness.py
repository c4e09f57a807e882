"""Small graphs by op name and TFLite option names, and what they compute by the references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.verify import verify
from tflgpu.ops.base import Activation, Fields, Operand
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.base import Pass, PassContext, run_passes

CONTEXT = PassContext(builtin_ops())
RELU = {"fused_activation_function": Activation.RELU.value}


class Maker:
    """Builds a graph operator by operator, as a file would hold it."""

    def __init__(self, seed: int = 0) -> None:
        self.graph = Graph()
        self.rng = np.random.default_rng(seed)

    def input(self, *shape: int, dtype: DType = DType.F32) -> Value:
        value = self.graph.add_value(shape, dtype, name=f"input{len(self.graph.inputs)}")
        self.graph.inputs.append(value)
        return value

    def const(self, data: Any, dtype: DType = DType.F32) -> Value:
        return self.graph.add_const(np.array(data, dtype.numpy))

    def ints(self, *data: Any) -> Value:
        return self.const(data, DType.I32)

    def random(self, *shape: int) -> Value:
        return self.const(self.rng.uniform(0.5, 1.5, shape))

    def op(self, name: str, *inputs: Value | None, **fields: Any) -> Value:
        (out,) = self.ops(name, *inputs, **fields)
        return out

    def ops(self, name: str, *inputs: Value | None, **fields: Any) -> list[Value]:
        definition = builtin_ops()[name]
        attributes = definition.parse(Fields(name, fields))
        specs = definition.infer(
            attributes, [None if v is None else Operand(v.spec, v.data) for v in inputs]
        )
        outputs = [self.graph.add_value(s.shape, s.dtype) for s in specs]
        self.graph.add_node(name, attributes, inputs, outputs, origins=(len(self.graph.nodes),))
        return outputs

    def conv(
        self, x: Value, out: int, kernel: int = 3, bias: bool = True, groups: int = 1, **fields: Any
    ) -> Value:
        weights = self.random(out, kernel, kernel, x.shape[3] // groups)
        return self.op("CONV_2D", x, weights, self.random(out) if bias else None,
                       **{"stride_h": 1, "stride_w": 1, "padding": 0, **fields})  # fmt: skip

    def depthwise(self, x: Value, multiplier: int = 1, kernel: int = 3, **fields: Any) -> Value:
        out = x.shape[3] * multiplier
        return self.op("DEPTHWISE_CONV_2D", x, self.random(1, kernel, kernel, out),
                       self.random(out),
                       **{"stride_h": 1, "stride_w": 1, "padding": 0, **fields})  # fmt: skip

    def done(self, *outputs: Value) -> Graph:
        self.graph.outputs = list(outputs)
        verify(self.graph)
        return self.graph


def evaluate(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """A graph's outputs, by the references."""
    known: dict[int, Array] = {v.id: a for v, a in zip(graph.inputs, inputs, strict=True)}
    for v in graph.values.values():
        if v.data is not None:
            known[v.id] = v.data
        elif v.is_variable:
            known[v.id] = np.zeros(v.shape, v.dtype.numpy)
    for node in graph.nodes:
        arrays = [None if v is None else known[v.id] for v in node.inputs]
        results = builtin_ops()[node.op].reference(node.attrs, arrays)
        variables = [v for v in node.inputs if v is not None and v.is_variable]
        for value, result in zip([*node.outputs, *variables], results, strict=True):
            assert result.shape == value.shape, f"{node.label}: {result.shape}, not {value.shape}"
            assert result.dtype == value.dtype.numpy, f"{node.label}: {result.dtype}"
            known[value.id] = result
    return [known[v.id] for v in graph.outputs]


def draw(graph: Graph, seed: int = 1) -> list[Array]:
    """Random contents for a graph's inputs."""
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(v.shape).astype(v.dtype.numpy)
        if v.dtype.is_float
        else rng.integers(0, 9, v.shape).astype(v.dtype.numpy)
        for v in graph.inputs
    ]


def check(graph: Graph, passes: Pass | Sequence[Pass], rtol: float = 2e-6) -> Graph:
    """The graph after passes, having seen that it computes what it did before.

    ``rtol`` is relative to the largest element: folding into weights only reorders products.
    """
    after = graph.copy()
    before_io = [v.id for v in (*graph.inputs, *graph.outputs)]
    edits = run_passes(after, [passes] if isinstance(passes, Pass) else list(passes), CONTEXT)
    assert [v.id for v in (*after.inputs, *after.outputs)] == before_io
    inferred(after)
    inputs = draw(graph)
    for mine, theirs in zip(evaluate(after, inputs), evaluate(graph, inputs), strict=True):
        scale = float(np.abs(theirs).max(initial=0)) if theirs.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=rtol * scale)
    assert (after.dump() != graph.dump()) == (sum(edits.values()) > 0)
    return after


def inferred(graph: Graph) -> None:
    """That every node's results have the shapes its op infers."""
    for node in graph.nodes:
        operands = [None if v is None else Operand(v.spec, v.data) for v in node.inputs]
        specs = builtin_ops()[node.op].infer(node.attrs, operands)
        assert [v.spec for v in node.outputs] == specs, node.label


def names(graph: Graph) -> list[str]:
    """The graph's ops in order."""
    return [n.op for n in graph.nodes]


def only(graph: Graph, op: str) -> Node:
    """The one node of an op."""
    (found,) = [n for n in graph.nodes if n.op == op]
    return found
