"""Small random graphs, and what the op references make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Value
from tflgpu.ir.verify import verify
from tflgpu.ops.base import Fields, OpDef, Operand

_UNARY = ("RELU", "TANH", "LOGISTIC", "ABS", "NEG", "HARD_SWISH", "RELU6")
_BINARY = ("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM")
_CHANNELS = (3, 4, 5, 8)


class Maker:
    """Builds a graph node by node; shapes follow from the ops' own inference."""

    def __init__(self, ops: Mapping[str, OpDef], name: str, seed: int) -> None:
        self.graph = Graph(name)
        self.rng = np.random.default_rng(seed)
        self._ops = ops

    def input(self, *shape: int) -> Value:
        """A runtime input."""
        value = self.graph.add_value(shape, DType.F32, name=f"input{len(self.graph.inputs)}")
        self.graph.inputs.append(value)
        return value

    def weights(self, *shape: int) -> Value:
        """Random constants whose products keep the size of what they multiply."""
        fan_in = max(1, int(np.prod(shape[1:])))
        data = self.rng.uniform(-1.5, 1.5, shape) / np.sqrt(fan_in)
        return self.graph.add_const(data.astype(np.float32))

    def integers(self, *data: Any) -> Value:
        """A constant of i32."""
        return self.graph.add_const(np.array(data, np.int32))

    def op(self, name: str, *inputs: Value | None, **fields: Any) -> Value:
        """A node with one output."""
        definition = self._ops[name]
        attributes = definition.parse(Fields(name, fields))
        operands = [None if v is None else Operand(v.spec, v.data) for v in inputs]
        (spec,) = definition.infer(attributes, operands)
        out = self.graph.add_value(spec.shape, spec.dtype)
        self.graph.add_node(name, attributes, inputs, [out], origins=(len(self.graph.nodes),))
        return out


def random_graph(ops: Mapping[str, OpDef], seed: int, steps: int = 9) -> Graph:
    """A graph of ``steps`` operators or a few more, of convolutions, elementwise ops and moves.
    Values that nothing reads become its outputs."""
    made = Maker(ops, f"random{seed}", seed)
    rng = made.rng
    channels = int(rng.choice(_CHANNELS))
    pool = [made.input(1, 6, 5, channels), made.input(1, 6, 5, channels)]
    for _ in range(steps):
        pool.append(_step(made, pool))
    graph = made.graph
    read = {id(v) for node in graph for v in node.inputs}
    graph.outputs = [n.outputs[0] for n in graph if id(n.outputs[0]) not in read]
    verify(graph)
    return graph


def _step(made: Maker, pool: list[Value]) -> Value:
    rng = made.rng
    # New values more often than old ones, so that chains grow.
    x = pool[max(int(rng.integers(0, len(pool))), int(rng.integers(0, len(pool))))]
    kind = rng.integers(0, 10)
    same = [v for v in pool if v.shape == x.shape]
    window = {"stride_h": 1, "stride_w": 1, "padding": 0}
    if kind <= 1:
        return made.op(str(rng.choice(_UNARY)), x)
    if kind <= 3:
        other = same[int(rng.integers(0, len(same)))]
        return made.op(str(rng.choice(_BINARY)), x, other)
    if kind == 4:
        return made.op("MUL", x, made.weights(x.shape[-1]))
    if kind == 5:
        size, out = int(rng.choice((1, 3))), int(rng.choice(_CHANNELS))
        weights = made.weights(out, size, size, x.shape[3])
        return made.op(
            "CONV_2D", x, weights, made.weights(out), fused_activation_function=1, **window
        )
    if kind == 6:
        near = [v for v in pool if v.shape[:3] == x.shape[:3]]
        other = near[int(rng.integers(0, len(near)))]
        joined = made.op("CONCATENATION", x, other, axis=3)
        weights = made.weights(int(rng.choice(_CHANNELS)), 1, 1, joined.shape[3])
        return made.op("CONV_2D", joined, weights, None, **window)
    if kind == 7:
        flat = made.op("RESHAPE", x, made.integers(1, -1), new_shape=(1, -1))
        gate = made.op("TANH", flat)
        return made.op("RESHAPE", gate, made.integers(*x.shape), new_shape=x.shape)
    if kind == 8:
        window |= {"filter_height": 3, "filter_width": 2}
        return made.op("AVERAGE_POOL_2D", x, **window)
    border = made.integers([0, 0], [1, 0], [0, 2], [0, 0])
    padded = made.op("PAD", x, border)
    part = made.integers(1, *x.shape[1:3], -1)
    return made.op("SLICE", padded, made.integers(0, 1, 1, 0), part)


def reference(
    graph: Graph, ops: Mapping[str, OpDef], arrays: Mapping[int, Array]
) -> dict[int, Array]:
    """Every tensor of a graph by value id, by the op references."""
    env = {v.id: v.data for v in graph.values.values() if v.data is not None} | dict(arrays)
    with np.errstate(all="ignore"):
        for node in graph:
            operands = [None if v is None else env[v.id] for v in node.inputs]
            results = ops[node.op].reference(node.attrs, operands)
            env |= {v.id: a for v, a in zip(node.outputs, results, strict=True)}
    return env
