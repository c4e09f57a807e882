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
from tflgpu.compiler.parts import Compiled, Part
from tflgpu.conformance.dags import random_graph, reference
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable, Outcome
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.contract.device import NodeDevice, NodeRun, Recording
from tflgpu.errors import UnsupportedError
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.reason import Unsupported
from tflgpu.lowering.storage import IntegerStorage
from tflgpu.ops.base import Fields
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


_SEEDS = 3


def integer_checks() -> list[Check]:
    """Quantized graphs with integer numerics, to the last bit: with an operator in floats between
    those that have integer kernels, and in every precision, of which the integers must know
    nothing."""
    return [
        Check(f"4/integers/{seed}/{precision.value}", partial(_check_integers, seed, precision))
        for seed in range(_SEEDS)
        for precision in Precision
    ]


def _check_integers(seed: int, precision: Precision, target: DeviceUnderTest) -> Outcome:
    lacking = target.lacks(precision)
    if lacking is not None:
        return lacking
    graph, wanted = integer_graph(target, seed)
    compiled = compile_graph(graph, target.compiled_for(precision, Numerics.INTEGER))
    missing = wanted - compiled.integers
    if missing:
        return Unsupported("; ".join(compiled.in_floats[at] for at in sorted(missing)))
    for refusal in compiled.refusals:
        return Unsupported(f"{refusal.op}: {refusal.reason}")
    rng = np.random.default_rng(seed)
    given = {v.id: rng.integers(-128, 128, v.shape, np.int8) for v in graph.inputs}
    wants = _reference(compiled, target, given)
    site = target.compiled_for(precision, Numerics.INTEGER).site
    for policy in (IntegerStorage.WORDS, IntegerStorage.OWN_WIDTH):
        found = run_graph(
            target,
            graph,
            precision,
            numerics=Numerics.INTEGER,
            given=given,
            site=attrs.evolve(site, integers=policy),
        )
        for value, got, want in zip(graph.outputs, found, wants, strict=True):
            off = int((got != want).sum())
            assert not off, (
                f"{value.name}: {off} of {want.size} numbers are off, integers stored in "
                f"{policy.value}\n{compiled.graph.dump()}"
            )
    return None


def integer_graph(target: DeviceUnderTest, seed: int) -> tuple[Graph, frozenset[int]]:
    """An 8-bit graph as a file has it, and the operators of it that integer kernels are for."""
    rng = np.random.default_rng([seed, 11])
    graph = Graph(f"integers{seed}")

    def tensor(shape: tuple[int, ...], scale: float, data: Array | None = None) -> Value:
        zero = 0 if data is not None else int(rng.integers(-20, 20))
        quant = Quantization((float(np.float32(scale)),), (zero,))
        return graph.add_value(shape, DType.I8, data=data, quant=quant)

    def node(op: str, fields: dict[str, int], inputs: list[Value], result: Value) -> Value:
        attributes = target.ops[op].parse(Fields(op, fields))
        origin = len(graph.nodes)
        graph.add_node(op, attributes, inputs, [result], origins=(origin,))
        return result

    height, width, inner, outer = (int(n) for n in rng.integers(3, 9, 4))
    image = tensor((1, height, width, inner), 0.03)
    filters = tensor(
        (outer, 3, 3, inner), 0.01, rng.integers(-127, 128, (outer, 3, 3, inner), np.int8)
    )
    bias = graph.add_const(rng.integers(-900, 900, outer).astype(np.int32))
    graph.inputs.append(image)
    shape = (1, height, width, outer)
    window = {"stride_h": 1, "stride_w": 1}
    summed = node("CONV_2D", window, [image, filters, bias], tensor(shape, 0.12))
    offset = tensor((outer,), 0.05, rng.integers(-128, 128, outer, np.int8))
    moved = node("ADD", {}, [summed, offset], tensor(shape, 0.1))
    # In floats, and exact: its result has the scale of its operand.
    cut = graph.add_value(shape, DType.I8, quant=moved.quant)
    node("RELU", {}, [moved], cut)
    graph.outputs += [moved, node("ADD", {}, [cut, summed], tensor(shape, 0.15))]
    return graph, frozenset({0, 1, 3})


def _reference(compiled: Compiled, target: DeviceUnderTest, given: dict[int, Array]) -> list[Array]:
    graph = compiled.graph
    run = NodeRun(tuple(graph.nodes), tuple(graph.inputs), tuple(graph.outputs), target.ops, {})
    recording = ReferenceRecording(run)
    for value, array in zip(graph.inputs, recording.inputs, strict=True):
        np.copyto(array, given[value.id])
    recording.run()
    return [np.array(a) for a in recording.outputs]
