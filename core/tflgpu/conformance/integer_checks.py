"""Level 4, too: a quantized graph with integer numerics, to the last bit.

The operators that have integer kernels run on stored numbers, another one between them in floats,
and tensors lie on the device as integers in between.
"""

from __future__ import annotations

from functools import partial

import attrs
import numpy as np

from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.numerics import Numerics
from tflgpu.compiler.parts import Compiled
from tflgpu.conformance.graph_checks import run_graph
from tflgpu.conformance.target import Check, DeviceUnderTest, Outcome
from tflgpu.contract.device import NodeRun
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Value
from tflgpu.ir.quant import Quantization
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.reason import Unsupported
from tflgpu.lowering.storage import IntegerStorage
from tflgpu.ops.base import Fields
from tflgpu.runtime.reference import ReferenceRecording

_SEEDS = 3


def integer_checks() -> list[Check]:
    """A few graphs in every precision, of which the integers must know nothing."""
    return [
        Check(f"4/integers/{seed}/{precision.value}", partial(_check, seed, precision))
        for seed in range(_SEEDS)
        for precision in Precision
    ]


def _check(seed: int, precision: Precision, target: DeviceUnderTest) -> Outcome:
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
