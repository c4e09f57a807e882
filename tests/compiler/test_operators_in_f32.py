"""`Target.in_f32`: some operators in f32, the others in the target's precision."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.compile import halved_in
from tflgpu.compiler.compiled import Compiled
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Precision
from tflgpu.ops.base import Fields
from tflgpu.ops.registry import builtin_ops
from tflgpu_cpu_ref.device import CpuRefDevice

CAPS = DeviceCaps(f16_arithmetic=True)
SHAPE = (1, 3, 5, 7)


def graph(*ops: str) -> Graph:
    """Operators of one operand, one after another, with the numbers of a file."""
    made = Graph()
    value = made.add_value(SHAPE, DType.F32, name="v0")
    made.inputs.append(value)
    for origin, op in enumerate(ops):
        fields = {"new_shape": SHAPE} if op == "RESHAPE" else {}
        result = made.add_value(SHAPE, DType.F32, name=f"v{origin + 1}")
        attributes = builtin_ops()[op].parse(Fields(op, fields))
        made.add_node(op, attributes, [value], [result], origins=(origin,))
        value = result
    made.outputs.append(value)
    return made


def compiled(
    made: Graph, in_f32: set[int], precision: Precision = Precision.F16
) -> tuple[Compiled, Target]:
    target = attrs.evolve(Target.plain(CAPS, precision), in_f32=frozenset(in_f32))
    return compile_graph(made, target), target


def plan(made: Graph, in_f32: set[int], precision: Precision = Precision.F16) -> Plan:
    (found,) = compiled(made, in_f32, precision)[0].plans
    return found


def scalars(found: Plan) -> list[tuple[str, list[Scalar]]]:
    return [(d.label, [b.scalar for b in d.kernel.buffers]) for d in found.dispatches]


def run(found: Plan, x: Array) -> Array:
    device = CpuRefDevice()
    recording = device.load(found)
    recording.inputs[0][...] = x
    recording.run()
    y = recording.outputs[0].copy()
    recording.close()
    device.close()
    return y


def test_operators_of_one_precision_run_as_one_kernel() -> None:
    made = graph("SQUARE", "ABS", "SQRT")
    assert len(plan(made, set()).dispatches) == 1
    assert len(plan(made, {0, 1, 2}).dispatches) == 1
    assert [d.origins for d in plan(made, {1}).dispatches] == [(0,), (1,), (2,)]
    assert [d.origins for d in plan(made, {0, 1}).dispatches] == [(0, 1), (2,)]


def test_what_they_make_lies_as_f32() -> None:
    made = graph("SQUARE", "SQRT", "TANH")
    f32, f16 = Scalar.F32, Scalar.F16
    assert [kinds for _, kinds in scalars(plan(made, {0}))] == [[f32, f32], [f32, f32]]
    # At the edges it is f32 in any case.
    assert [kinds for _, kinds in scalars(plan(made, {1}))] == [[f32, f16], [f16, f32], [f32, f32]]


@pytest.mark.parametrize("precision", [Precision.F16, Precision.F32_F16])
def test_numbers_too_large_for_f16_survive_in_them(precision: Precision) -> None:
    caps = attrs.evolve(CAPS, cache_bytes=0)
    x = np.full(SHAPE, 1000, np.float32)
    found = {}
    for in_f32 in (set(), {0}, {0, 1}, {0, 1, 2}):
        target = Target.plain(caps, precision)
        target = attrs.evolve(target, in_f32=frozenset(in_f32), fuse=False)
        (only,) = compile_graph(graph("SQUARE", "RESHAPE", "SQRT"), target).plans
        found[frozenset(in_f32)] = run(only, x)
    assert not np.isfinite(found[frozenset()]).any()
    assert not np.isfinite(found[frozenset({0})]).any()  # RESHAPE rounds
    if precision is Precision.F32_F16:
        np.testing.assert_allclose(found[frozenset({0, 1})], x, rtol=1e-6)
    np.testing.assert_allclose(found[frozenset({0, 1, 2})], x, rtol=1e-6)


def test_what_a_device_keeps_in_16_bits_is_known() -> None:
    caps = attrs.evolve(CAPS, cache_bytes=0)
    made = graph("SQUARE", "SQRT", "TANH", "NEG")
    for in_f32, fuse, halved in (
        (set(), False, {1, 2, 3}),
        ({1}, False, {1, 3}),
        (set(), True, set()),  # one kernel: nothing is stored
        ({1}, True, {1}),  # and v3 is inside the last of three
    ):
        target = Target.plain(caps, Precision.F32_F16)
        target = attrs.evolve(target, in_f32=frozenset(in_f32), fuse=fuse)
        (part,) = compile_graph(made, target).parts
        assert halved_in(part, target) == halved, (in_f32, fuse)


def test_so_is_what_shares_memory_with_it() -> None:
    target = Target.plain(attrs.evolve(CAPS, cache_bytes=0), Precision.F32_F16)
    (part,) = compile_graph(graph("SQUARE", "RESHAPE", "SQRT"), target).parts
    assert halved_in(part, target) == {1, 2}


def test_the_same_graph_and_target_give_the_same_plan() -> None:
    made = graph("SQUARE", "SQRT", "TANH")
    assert scalars(plan(made, {1})) == scalars(plan(made, {1}))
    assert scalars(plan(made, set())) != scalars(plan(made, {1}))
