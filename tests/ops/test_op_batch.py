"""`OpDef.batch`: what an op becomes for several items computes each as it is computed alone.

Every sample of every op that says so: each choice of operands that are different from item to item,
the others constants. What an op refuses is refused with words.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph, Node
from tflgpu.ops.base import Fields, OpDef, Operand, Sample
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.batch import BatchedGraph

COUNT = 3
MOST = 30_000  # elements; larger samples show nothing more
OPS = {name: op for name, op in builtin_ops().items() if op.batch is not None}

#: Ops that answer, and whose answer is always no.
NEVER = {"TFLite_Detection_PostProcess"}


def node_of(
    op: OpDef, sample: Sample, arrays: Sequence[Array | None], each: Collection[int]
) -> tuple[Graph, Node]:
    graph = Graph()
    inputs = []
    for i, (arg, array) in enumerate(zip(sample.args, arrays, strict=True)):
        if arg is None or array is None:
            inputs.append(None)
            continue
        value = graph.add_value(array.shape, arg.dtype, data=None if i in each else array)
        inputs.append(value)
        if i in each:
            graph.inputs.append(value)
    attributes = op.parse(Fields(op.name, sample.fields, sample.custom_options))
    specs = op.infer(attributes, [None if v is None else Operand(v.spec, v.data) for v in inputs])
    outputs = [graph.add_value(s.shape, s.dtype) for s in specs]
    node = graph.add_node(op.name, attributes, inputs, outputs)
    graph.outputs = outputs
    return graph, node


def run(node: Node, given: dict[int, Array]) -> list[Array]:
    op = builtin_ops()[node.op]
    arrays = [None if v is None else given.get(v.id, v.data) for v in node.inputs]
    results = op.reference(node.attrs, arrays)
    assert [r.shape for r in results] == [v.shape for v in node.outputs]
    return results


def choices(sample: Sample) -> Iterator[tuple[int, ...]]:
    free = [
        i for i, a in enumerate(sample.args) if a is not None and a.data is None and not a.const
    ]
    for size in range(1, len(free) + 1) if len(free) < 5 else (1, len(free)):
        yield from itertools.combinations(free, size)


def of_items(
    op: OpDef, sample: Sample, each: tuple[int, ...]
) -> tuple[str | None, list[Array], list[Array]]:
    """Why not; else what comes of all items at once, and of each alone."""
    rng = np.random.default_rng(5)
    arrays: list[Array | None] = [None if a is None else a.draw(rng) for a in sample.args]
    items: list[dict[int, Any]] = [
        {i: a.draw(rng) for i in each if (a := sample.args[i]) is not None} for _ in range(COUNT)
    ]
    graph, node = node_of(op, sample, arrays, each)
    ids = {i: node.input(i).id for i in each}
    alone = [run(node, {ids[i]: item[i] for i in each}) for item in items]
    work = BatchedGraph(graph, COUNT, builtin_ops())
    refused = next(filter(None, map(work.widen, graph.inputs)), None) or work.add(node)
    if refused is not None:
        return refused, [], []
    wide = {ids[i]: np.concatenate([np.atleast_1d(item[i]) for item in items]) for i in each}
    for each_node in work.nodes:
        results = run(each_node, wide)
        wide.update((v.id, r) for v, r in zip(each_node.outputs, results, strict=True))
    joined = [np.concatenate(list(map(np.atleast_1d, parts))) for parts in zip(*alone, strict=True)]
    return None, [wide[v.id] for v in graph.outputs], joined


@pytest.mark.parametrize("name", OPS)
def test_items_are_computed_as_they_are_alone(name: str) -> None:
    op, taken = OPS[name], 0
    for sample in op.samples():
        if sum(np.prod(a.shape, dtype=int) for a in sample.args if a is not None) > MOST:
            continue
        for each in choices(sample):
            refused, got, wanted = of_items(op, sample, each)
            if refused is not None:
                assert len(refused) > 10, refused
                continue
            taken += 1
            limit = Tolerance.of(op.accuracy, sample.accumulates)
            for mine, theirs in zip(got, wanted, strict=True):
                assert mine.dtype == theirs.dtype
                problem = limit.mismatch(mine, theirs)
                assert problem is None, f"{name} {sample.id} {each}: {problem}"
    assert bool(taken) is (name not in NEVER)


def test_most_ops_say_something() -> None:
    """So that the loop above is about something."""
    assert len(OPS) > 90
