"""Level 4: small graphs, where nodes meet.

However the nodes are fused, folded or parted between device and CPU, the numbers are those of
the op references.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import attrs
import numpy as np

from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.numerics import Numerics
from tflgpu.compiler.parts import Part
from tflgpu.conformance.dags import random_graph, reference
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable, Outcome
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.contract.device import NodeDevice, NodeRun, Recording
from tflgpu.errors import UnsupportedError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph, Node
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.reason import Unsupported
from tflgpu.passes.registry import default_passes
from tflgpu.runtime.reference import ReferenceRecording

GRAPHS = 6

_VETO = "a test says so"


def graph_checks() -> list[Check]:
    """The random graphs, in every way in which one can be run."""
    ways: dict[str, Callable[[DeviceUnderTest, int, Precision], Outcome]] = {
        "fused": _fused,
        "parts": _parts,
        "passes": _passes,
    }
    return [
        Check(f"4/{way}/{seed}/{precision.value}", partial(_start, run, seed, precision))
        for way, run in ways.items()
        for seed in range(GRAPHS)
        for precision in Precision
    ]


def _start(
    run: Callable[[DeviceUnderTest, int, Precision], Outcome],
    seed: int,
    precision: Precision,
    target: DeviceUnderTest,
) -> Outcome:
    return target.lacks(precision) or run(target, seed, precision)


def _fused(target: DeviceUnderTest, seed: int, precision: Precision) -> Outcome:
    """With and without elementwise chains joined to their producers."""
    if isinstance(target.device, NodeDevice):
        return NotApplicable("the device runs nodes; nothing is fused")
    graph = random_graph(target.ops, seed)
    refused = _whole(target, graph, precision)
    if refused is not None:
        return refused
    apart = run_graph(target, graph, precision, fuse=False)
    joined = run_graph(target, graph, precision, fuse=True)
    _check(target, graph, apart, precision, "unfused")
    _check(target, graph, joined, precision, "fused")
    tolerance = _tolerance(target, precision)
    for i, (a, b) in enumerate(zip(joined, apart, strict=True)):
        tolerance.check(a, b, f"{graph.name}: output {i}, fused against unfused")
    return None


def _parts(target: DeviceUnderTest, seed: int, precision: Precision) -> Outcome:
    """With random nodes vetoed, so that tensors go between device and CPU."""
    graph = random_graph(target.ops, seed, steps=13)
    rng = np.random.default_rng(seed)
    vetoed = {n.outputs[0].id for n in graph if rng.random() < 0.35}
    refused = _whole(target, graph, precision)
    if refused is not None:
        return refused

    found = run_graph(target, graph, precision, vetoed=vetoed)
    _check(target, graph, found, precision, f"{len(vetoed)} of {len(graph.nodes)} vetoed")
    return None


def _passes(target: DeviceUnderTest, seed: int, precision: Precision) -> Outcome:
    """After the graph passes, plugins' included."""
    graph = random_graph(target.ops, seed, steps=13)
    refused = _whole(target, graph, precision)
    if refused is not None:
        return refused
    passes = tuple(default_passes(target.registry.passes()))
    found = run_graph(target, graph, precision, passes=passes)
    _check(target, graph, found, precision, "after passes")
    return None


def _whole(target: DeviceUnderTest, graph: Graph, precision: Precision) -> Unsupported | None:
    """The first refusal of a node, None where the device takes all."""
    for node in graph:
        refused = target.refusal(node, precision)
        if refused is not None:
            return Unsupported(f"{node.op}: {refused.reason}")
    return None


def inputs_of(graph: Graph) -> dict[int, Array]:
    """Random contents that f16 can hold, the same at every call."""
    rng = np.random.default_rng(3)
    return {
        v.id: rng.uniform(-2, 2, v.shape).astype(np.float16).astype(np.float32)
        for v in graph.inputs
    }


def _tolerance(target: DeviceUnderTest, precision: Precision) -> Tolerance:
    # Every node adds its rounding; a graph of a dozen stays within what one sum may be off.
    return target.scaled(Tolerance.accumulate(1, half=precision is not Precision.F32))


def _check(
    target: DeviceUnderTest, graph: Graph, found: list[Array], precision: Precision, how: str
) -> None:
    env = reference(graph, target.ops, inputs_of(graph))
    tolerance = _tolerance(target, precision)
    for value, got in zip(graph.outputs, found, strict=True):
        tolerance.check(got, env[value.id], f"{graph.name}, {how}, {value.name}\n{graph.dump()}\n")


def run_graph(
    target: DeviceUnderTest,
    graph: Graph,
    precision: Precision,
    *,
    vetoed: Collection[int] = (),
    numerics: Numerics = Numerics.FLOAT,
    given: Mapping[int, Array] | None = None,
    **changes: Any,
) -> list[Array]:
    """A graph's outputs, its nodes on the device but for those that are vetoed: the ids of their
    first results. ``given`` are the inputs (default: `inputs_of`); ``changes`` are fields of the
    compiler's target.

    Raises:
        UnsupportedError: the device refused a node that was not vetoed.
    """
    base = target.compiled_for(precision, numerics)

    def objection(node: Node) -> Unsupported | None:
        return Unsupported(_VETO) if node.outputs[0].id in vetoed else base.objection(node)

    compiled = compile_graph(graph, attrs.evolve(base, objection=objection, **changes))
    for refusal in compiled.refusals:
        if refusal.reason != _VETO:
            raise UnsupportedError(f"{refusal.label}: {refusal.reason}")
    graph = compiled.graph
    env: dict[int, Array] = dict(inputs_of(graph) if given is None else given)
    env |= {v.id: v.data for v in graph.values.values() if v.data is not None}
    for part in compiled.parts:
        with closing(_record(target, part)) as recording:
            for value, array in zip(part.inputs, recording.inputs, strict=True):
                np.copyto(array, env[value.id], casting="unsafe")
            recording.run()
            for value, array in zip(part.outputs, recording.outputs, strict=True):
                env[value.id] = np.array(array).astype(value.dtype.numpy)
    return [env[v.id] for v in graph.outputs]


def _record(target: DeviceUnderTest, part: Part) -> Recording:
    run = NodeRun(part.nodes, part.inputs, part.outputs, target.ops, {})
    device = target.device
    if not part.delegated:
        return ReferenceRecording(run)
    if isinstance(device, NodeDevice):
        return device.load_nodes(run)
    assert part.plan is not None
    return device.load(part.plan)
