"""Of `OpDef.positions`: a bucket of one op computes what the op does at a smaller size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Union

import attrs
import numpy as np
from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import OpDef, Operand
from tflgpu.ops.binary import BinaryAttrs
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.bucket import bucket_of, corner

Arrays = Sequence[Union[Array, None]]


def smaller(op: OpDef, node: Node, arrays: Arrays) -> Iterator[tuple[Array, Array]]:
    """What a bucket makes of a node of ``op`` with these operands, and what the node makes by
    itself: at each size that is less by one along all axes of one length, where a bucket takes
    it."""
    ops = {**builtin_ops(), op.name: op}
    lengths = {n for v in node.inputs if v is not None and v.data is None for n in v.shape}
    for length in sorted(lengths - {0, 1}):
        parts = [_part(v, array, length) for v, array in zip(node.inputs, arrays, strict=True)]
        narrow = _graph(op, node, parts)
        bucket = None if narrow is None else bucket_of(_whole(op, node, arrays), narrow, ops)
        if narrow is None or bucket is None or isinstance(bucket, Unsupported):
            continue
        given = {i: parts[i] for i in (v.id for v in narrow.inputs)}
        padded = {v.id: np.zeros(v.shape, v.dtype.numpy) for v in bucket.graph.inputs}
        for i, part in given.items():
            assert part is not None
            padded[i][corner(part.shape)] = part
        got = _run(bucket.graph, {**padded, **bucket.contents}, ops)
        for mine, want in zip(got, _run(narrow, given, ops), strict=True):
            yield mine[corner(want.shape)], want


def _part(value: Value | None, array: Array | None, length: int) -> Array | None:
    """An operand whose axes of a length are shorter; of a constant that may say a shape, what it
    says."""
    if value is None or array is None:
        return None
    if value.data is not None and array.dtype.kind == "i" and array.ndim < 2:
        return np.asarray(array - (array == length).astype(array.dtype))
    return np.array(array[corner(tuple(n - (n == length) for n in array.shape))])


def _whole(op: OpDef, node: Node, arrays: Arrays) -> Graph:
    made = _graph(op, node, arrays)
    assert made is not None
    return made


def _graph(op: OpDef, node: Node, arrays: Arrays) -> Graph | None:
    """A node of other operands, to whose floats 1 is added before, so that they are not 0 where
    inputs are; None where it does not take them."""
    graph = Graph("positions", next_id=len(arrays))
    inputs: list[Value | None] = []
    for i, (value, array) in enumerate(zip(node.inputs, arrays, strict=True)):
        own = None
        if value is not None and array is not None:
            data = None if value.data is None else array
            own = graph.add_value(array.shape, value.dtype, data=data, quant=value.quant, id=i)
            if data is None:
                graph.inputs.append(own)
        if own is not None and own.data is None and own.dtype is DType.F32 and own.quant is None:
            one, source = graph.add_const(np.ones((), np.float32)), own
            own = graph.add_value(own.shape, own.dtype)
            graph.add_node("ADD", BinaryAttrs(), [source, one], [own])
        inputs.append(own)
    try:
        specs = op.infer(
            node.attrs, [None if v is None else Operand(v.spec, v.data) for v in inputs]
        )
    except (ModelError, UnsupportedError):
        return None
    graph.outputs = [
        graph.add_value(s.shape, s.dtype, quant=v.quant)
        for s, v in zip(specs, node.outputs, strict=True)
    ]
    graph.nodes.append(attrs.evolve(node, inputs=inputs, outputs=[*graph.outputs]))
    return graph


def _run(graph: Graph, given: Mapping[int, Array | None], ops: Mapping[str, OpDef]) -> list[Array]:
    known = {v.id: v.data for v in graph.values.values() if v.data is not None} | dict(given)
    for node in graph:
        operands = [None if v is None else known[v.id] for v in node.inputs]
        with np.errstate(all="ignore"):
            results = ops[node.op].reference(node.attrs, operands)
        known.update((v.id, r) for v, r in zip(node.outputs, results, strict=False))
    return [np.asarray(known[v.id]) for v in graph.outputs]
