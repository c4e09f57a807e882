"""Cutting graphs between CPU and device."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tflgpu.compiler.partition import Partitioning, partition
from tflgpu.compiler.work import estimate
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.base import Fields, NoAttrs
from tflgpu.ops.facets import Work
from tflgpu.ops.registry import builtin_ops


def supported(node: Node) -> Unsupported | None:
    """Ops that start with G run on the device."""
    return None if node.op.startswith("G") else Unsupported(f"{node.op} is for the CPU")


def build(nodes: Sequence[tuple[str, Sequence[int]]], elements: Sequence[int] = ()) -> Graph:
    """Value 0 is the input, value i + 1 node i's result; unread results are outputs."""
    graph = Graph()
    graph.inputs.append(graph.add_value((4,), DType.F32))
    for i, (op, reads) in enumerate(nodes):
        size = elements[i] if elements else 4
        inputs = [graph.values[r] for r in reads]
        out = graph.add_value((size,), DType.F32)
        graph.add_node(op, NoAttrs(), inputs, [out], origins=(i,))
    read = {v.id for n in graph.nodes for v in n.inputs if v is not None}
    graph.outputs = [v for v in graph.values.values() if v.id not in read]
    return graph


def sides(result: Partitioning) -> list[tuple[str, list[int]]]:
    return [
        ("device" if p.delegated else "cpu", [n.origins[0] for n in p.nodes]) for p in result.parts
    ]


def test_all_supported_is_one_part() -> None:
    graph = build([("G", [0]), ("G", [1]), ("G", [1, 2])])
    result = partition(graph, supported, {})
    assert sides(result) == [("device", [0, 1, 2])]
    assert result.refusals == ()
    (part,) = result.parts
    assert part.inputs == tuple(graph.inputs)
    assert part.outputs == tuple(graph.outputs)


def test_nothing_supported() -> None:
    result = partition(build([("C", [0]), ("C", [1])]), supported, {})
    assert sides(result) == [("cpu", [0, 1])]
    assert [r.reason for r in result.refusals] == ["C is for the CPU"] * 2
    assert result.delegated == ()


def test_independent_nodes_do_not_cut_the_device_part() -> None:
    # In the file's order the sides would change four times.
    graph = build([("G", [0]), ("C", [0]), ("G", [1]), ("C", [2]), ("G", [3])])
    assert sides(partition(graph, supported, {})) == [("device", [0, 2, 4]), ("cpu", [1, 3])]


def test_the_better_side_to_begin_with_is_chosen() -> None:
    # Beginning with the device would run node 1 first, and node 2 in a part of its own.
    graph = build([("C", [0]), ("G", [0]), ("G", [1])])
    assert sides(partition(graph, supported, {})) == [("cpu", [0]), ("device", [1, 2])]


def test_parts_name_what_crosses() -> None:
    graph = build([("G", [0]), ("C", [1]), ("G", [1, 2])])
    first, middle, last = partition(graph, supported, {}).parts
    one, two, three = graph.values[1], graph.values[2], graph.values[3]
    assert (first.inputs, first.outputs) == ((graph.inputs[0],), (one,))
    assert (middle.inputs, middle.outputs) == ((one,), (two,))
    assert (last.inputs, last.outputs) == ((one, two), (three,))


def test_constants_and_variables_do_not_cross() -> None:
    graph = build([("G", [0])])
    weights = graph.add_const(np.ones(4, np.float32))
    state = graph.add_value((4,), DType.F32)
    state.is_variable = True
    graph.nodes[0].inputs += [weights, None, state]
    assert partition(graph, supported, {}).parts[0].inputs == (graph.inputs[0],)


def test_users_of_a_variable_keep_their_order() -> None:
    graph = build([("C", [0]), ("G", [0]), ("C", [0])])
    state = graph.add_value((4,), DType.F32)
    state.is_variable = True
    for node in graph.nodes:
        node.inputs.append(state)
    assert sides(partition(graph, supported, {})) == [("cpu", [0]), ("device", [1]), ("cpu", [2])]


def test_small_parts_stay_on_the_cpu() -> None:
    graph = build([("G", [0]), ("C", [1]), ("G", [2]), ("G", [3])])
    result = partition(graph, supported, {}, min_nodes=2)
    assert sides(result) == [("cpu", [0, 1]), ("device", [2, 3])]
    assert [(r.label, r.op, r.origins) for r in result.refusals] == [
        ("#0 G", "G", (0,)),
        ("#1 C", "C", (1,)),
    ]
    assert result.refusals[0].reason == "its part of the graph has 1 nodes, fewer than 2"


def test_the_part_with_the_largest_gain_is_kept_not_the_one_with_most_nodes() -> None:
    nodes = [("G", [0]), ("G", [1]), ("G", [2]), ("C", [3]), ("G", [4]), ("C", [5])]
    graph = build(nodes, elements=[4, 4, 4, 4, 4, 4])
    heavy = graph.nodes[4]
    weights = graph.add_const(np.ones((4, 1 << 18), np.float32))
    heavy.op = "GEMM"
    heavy.inputs.append(weights)
    result = partition(graph, supported, {}, max_partitions=1)
    assert sides(result) == [("cpu", [0, 1, 2, 3]), ("device", [4]), ("cpu", [5])]
    assert "number 2 by estimated gain, and at most 1 parts" in result.refusals[0].reason


def test_each_node_is_asked_once() -> None:
    asked: list[Node] = []

    def ask(node: Node) -> Unsupported | None:
        asked.append(node)
        return supported(node)

    graph = build([("G", [0]), ("C", [1]), ("G", [2])])
    partition(graph, ask, {}, max_partitions=1)
    assert asked == graph.nodes


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 14))
    nodes = []
    for i in range(count):
        op = draw(st.sampled_from(["G", "C"]))
        reads = draw(st.lists(st.integers(0, i), min_size=1, max_size=3))
        nodes.append((op, reads))
    return build(nodes)


def check_parts(graph: Graph, result: Partitioning) -> None:
    """Every node once, in an order in which the nodes and the parts can run."""
    order = [n for p in result.parts for n in p.nodes]
    assert sorted(n.origins for n in order) == [n.origins for n in graph.nodes]
    made: set[Value] = set(graph.inputs)
    for part in result.parts:
        # All that a part needs is there before it starts: parts are convex.
        assert set(part.inputs) <= made
        inside = set(part.inputs)
        for node in part.nodes:
            assert all(v in inside for v in node.inputs)
            inside |= set(node.outputs)
        made |= set(part.outputs)
    assert set(graph.outputs) <= made


@given(graphs(), st.integers(1, 4), st.none() | st.integers(1, 3))
@settings(max_examples=300, deadline=None)
def test_random_graphs(graph: Graph, min_nodes: int, max_partitions: int | None) -> None:
    result = partition(graph, supported, {}, min_nodes=min_nodes, max_partitions=max_partitions)
    check_parts(graph, result)
    assert len(result.delegated) <= (max_partitions or len(graph.nodes))
    refused = {r.origins for r in result.refusals}
    for part in result.parts:
        for node in part.nodes:
            assert (node.origins in refused) != part.delegated
            assert not part.delegated or supported(node) is None
        assert not part.delegated or len(part.nodes) >= min_nodes
    for before, after in zip(result.parts, result.parts[1:], strict=False):
        assert before.delegated != after.delegated


def least_changes(graph: Graph) -> int:
    """The fewest delegated parts over all orders, by search."""
    best = len(graph.nodes)
    seen: set[tuple[frozenset[int], bool | None, int]] = set()

    def search(done: frozenset[int], side: bool | None, parts: int) -> None:
        nonlocal best
        if parts >= best or (done, side, parts) in seen:
            return
        seen.add((done, side, parts))
        if len(done) == len(graph.nodes):
            best = parts
            return
        have = set(graph.inputs) | {graph.nodes[i].outputs[0] for i in done}
        for i, node in enumerate(graph.nodes):
            if i not in done and all(v in have for v in node.inputs):
                device = node.op == "G"
                search(done | {i}, device, parts + (device and side is not True))

    search(frozenset(), None, 0)
    return best


@st.composite
def small_graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 7))
    ops = draw(st.lists(st.sampled_from(["G", "C"]), min_size=count, max_size=count))
    reads = [draw(st.lists(st.integers(0, i), min_size=1, max_size=2)) for i in range(count)]
    return build(list(zip(ops, reads, strict=True)))


@given(small_graphs())
@settings(max_examples=150, deadline=None)
def test_no_order_has_fewer_delegated_parts(graph: Graph) -> None:
    assert len(partition(graph, supported, {}).delegated) == least_changes(graph)


@pytest.mark.parametrize(
    ("op", "shapes", "out", "flops"),
    [
        ("CONV_2D", [(1, 8, 8, 3), (5, 3, 3, 3), (5,)], (1, 6, 6, 5), 2 * 180 * 27),
        ("DEPTHWISE_CONV_2D", [(1, 8, 8, 3), (1, 3, 3, 6), (6,)], (1, 6, 6, 6), 2 * 216 * 9),
        ("FULLY_CONNECTED", [(2, 7), (5, 7), None], (2, 5), 2 * 10 * 7),
        ("TRANSPOSE_CONV", [(4,), (5, 2, 2, 3), (1, 4, 4, 3)], (1, 8, 8, 5), 2 * 48 * 20),
        ("BATCH_MATMUL", [(2, 3, 7), (2, 7, 5)], (2, 3, 5), 2 * 30 * 7),
        ("ADD", [(2, 3), (3,)], (2, 3), 6),
        ("MEAN", [(1, 8, 8, 3), (2,)], (1, 3), 192),
    ],
)
def test_estimates(
    op: str, shapes: list[tuple[int, ...] | None], out: tuple[int, ...], flops: int
) -> None:
    graph = Graph()
    inputs = [None if s is None else graph.add_value(s, DType.F32) for s in shapes]
    result = graph.add_value(out, DType.F32)
    definition = builtin_ops()[op]
    attributes = definition.parse(Fields(op, {"stride_h": 1, "stride_w": 1}))
    node = graph.add_node(op, attributes, inputs, [result])
    nbytes = 4 * sum(v.elements for v in (*inputs, result) if v is not None)
    assert estimate(node, definition) == Work(flops, nbytes)
