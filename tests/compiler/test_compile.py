"""`compile`: what a graph becomes for a target, without any device."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.compiled import Compiled
from tflgpu.compiler.report_of import refusals_of, report_of
from tflgpu.compiler.target import Target
from tflgpu.ir.graph import Graph
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.registry import default_passes
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

TARGET = attrs.evolve(Target.plain(DeviceCaps(), Precision.F32), passes=tuple(default_passes(())))


@pytest.fixture(scope="module")
def graph() -> Graph:
    """``y = exp(tanh(x) @ weights)``, operators 0, 1 and 2."""
    weights = np.arange(12, dtype=np.float32).reshape(4, 3)
    tensors = [
        TensorSpec("x", (2, 3)),
        TensorSpec("t", (2, 3)),
        TensorSpec("weights", (4, 3), data=weights),
        TensorSpec("z", (2, 4)),
        TensorSpec("y", (2, 4)),
    ]
    operators = [
        OperatorSpec("TANH", {}, (0,), (1,)),
        OperatorSpec("FULLY_CONNECTED", {}, (1, 2, -1), (3,)),
        OperatorSpec("EXP", {}, (3,), (4,)),
    ]
    content = write_model(ModelSpec(tensors, operators, (0,), (4,)))
    return build_graph(read_model(content), 0, builtin_ops())


def origins(compiled: Compiled) -> list[tuple[int, ...]]:
    return [d.origins for plan in compiled.plans for d in plan.dispatches]


def test_dispatches_know_their_operators(graph: Graph) -> None:
    compiled = compile_graph(graph, TARGET)
    # EXP joins the store of the product.
    assert origins(compiled) == [(0,), (1, 2)]
    report = report_of(graph, compiled)
    assert report.fully_delegated
    assert (report.partitions, report.dispatches) == (1, 2)


def test_an_objection_leaves_a_node_on_the_cpu(graph: Graph) -> None:
    def objection(node: object) -> Unsupported | None:
        return Unsupported("not today") if getattr(node, "op", "") == "FULLY_CONNECTED" else None

    compiled = compile_graph(graph, attrs.evolve(TARGET, objection=objection))
    assert [part.delegated for part in compiled.parts] == [True, False, True]
    assert origins(compiled) == [(0,), (2,)]
    assert [(r.node, r.reason) for r in refusals_of(graph, compiled)] == [(1, "not today")]


def test_a_part_can_go_to_the_cpu_afterwards(graph: Graph) -> None:
    compiled = compile_graph(graph, TARGET)
    moved = compiled.on_cpu(0, "it did not load")
    assert moved.plans == ()
    assert moved.parts[0].nodes == compiled.parts[0].nodes
    assert {r.node for r in refusals_of(graph, moved)} == {0, 1, 2}
    assert report_of(graph, moved).delegated_nodes == 0
    assert len(compiled.plans) == 1, "the first value is as it was"


def test_a_device_that_runs_nodes_gets_no_plans(graph: Graph) -> None:
    compiled = compile_graph(graph, attrs.evolve(TARGET, rules=None))
    assert [(len(p.nodes), p.delegated, p.plan) for p in compiled.parts] == [(3, True, None)]


def test_the_graph_is_not_changed(graph: Graph) -> None:
    before = [(n.op, len(n.inputs), n.origins) for n in graph]
    compile_graph(graph, TARGET)
    assert [(n.op, len(n.inputs), n.origins) for n in graph] == before


def test_repeated_blocks_share_their_kernels() -> None:
    weights = np.ones((1, 2, 2, 1), np.float32)
    tensors = [TensorSpec(f"x{i}", (1, 7, 7, 1)) for i in range(5)]
    tensors += [TensorSpec("w", weights.shape, data=weights)]
    fields = {"padding": 0, "stride_h": 1, "stride_w": 1}
    convolutions = [OperatorSpec("CONV_2D", fields, (i, 5, -1), (i + 1,)) for i in range(4)]
    content = write_model(ModelSpec(tensors, convolutions, (0,), (4,)))
    graph = build_graph(read_model(content), 0, builtin_ops())
    (plan,) = compile_graph(graph, TARGET).plans
    first, second, third, last = (dispatch.kernel for dispatch in plan.dispatches)
    assert second is third
    # At the part's edges tensors lie otherwise than inside it.
    assert len({id(first), id(second), id(last)}) == 3
    (again,) = compile_graph(graph, TARGET).plans
    assert [d.kernel for d in again.dispatches] == [first, second, third, last]
