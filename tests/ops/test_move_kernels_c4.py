"""Kernels that move data, between tensors as they lie inside a partition.

There channels are padded to a multiple of four, which `test_kernels` does not see: its tensors
all lie at a partition's edge.
"""

from __future__ import annotations

from importlib import import_module

import attrs
import numpy as np
import pytest
from tflgpu.compiler.target import Target
from tflgpu.conformance.samples import SampleCase, materialize
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Value
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.interpreter import interpret
from tflgpu.lowering.layout import Layout, LayoutKind
from tflgpu.lowering.lowering import Constant, Lowering, Precision, Temp, storage_of
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.base import OpDef, Sample
from tflgpu.ops.registry import builtin_ops

FAMILIES = (
    "argmax_pool", "concat", "gather", "one_hot", "pad", "reshape", "resize", "scatter", "segments",
    "shape", "slice", "space_depth", "split", "tile", "transpose",
)  # fmt: skip
_RULES = Target.plain(DeviceCaps(), Precision.F32).kernels.ops
CASES = [
    pytest.param(op, sample, id=f"{op.name}-{sample.id}")
    for family in FAMILIES
    for op in import_module(f"tflgpu.ops.{family}").OPS
    if op.name in _RULES
    for sample in op.samples()
]
_GARBAGE = 77  # what a buffer holds before anything writes it


def _layout(value: Value) -> Layout:
    return Layout(value.shape, LayoutKind.C4, storage_of(value, Precision.F32, DeviceCaps()))


def _packed(array: Array, layout: Layout) -> Array:
    padded = np.zeros((layout.outer, layout.slices * 4), layout.storage.numpy)
    padded[:, : layout.channels] = array.reshape(layout.outer, layout.channels)
    return padded.reshape(-1)


def _run(case: SampleCase, caps: DeviceCaps) -> list[Array] | str:
    """The outputs as they lie in their buffers, padding included."""
    target = Target.plain(caps, Precision.F32)
    refused, rule = target.refusal(case.node), target.rule(case.node)
    if refused is not None:
        return refused.reason
    assert not isinstance(rule, Unsupported)
    low = Lowering(case.node, caps, Precision.F32, _layout)
    rule.build(low)
    memory: dict[int, Array] = {
        v.id: _packed(case.arrays[v.id], _layout(v)) for v in case.graph.inputs
    }
    for value in case.graph.outputs:
        layout = _layout(value)
        memory[value.id] = np.full(layout.elements, _GARBAGE, layout.storage.numpy)
    temps: dict[int, Array] = {}
    for dispatch in low.dispatches:
        assert len(dispatch.bindings) <= caps.max_bindings
        assert all(n <= m for n, m in zip(dispatch.groups, caps.max_groups, strict=True))
        arrays = []
        for binding in dispatch.bindings:
            if isinstance(binding, Temp):
                given = np.full(binding.layout.elements, _GARBAGE, binding.layout.storage.numpy)
                arrays.append(temps.setdefault(binding.id, given))
            else:
                arrays.append(binding.data if isinstance(binding, Constant) else memory[binding.id])
        interpret(dispatch.kernel, dispatch.groups, arrays)
    return [memory[v.id] for v in case.graph.outputs]


def _check(case: SampleCase, caps: DeviceCaps) -> None:
    results = _run(case, caps)
    if isinstance(results, str):
        pytest.skip(f"refused: {results}")
    tolerance: Tolerance = case.tolerance()
    for i, (value, got) in enumerate(zip(case.graph.outputs, results, strict=True)):
        layout = _layout(value)
        rows = got.reshape(layout.outer, layout.slices * 4)
        assert not rows[:, layout.channels :].any(), f"output {i}: padding lanes are not zero"
        tensor = rows[:, : layout.channels].reshape(value.shape).astype(value.dtype.numpy)
        tolerance.check(tensor, case.expected[i], f"output {i}")


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_padded_channels(op: OpDef, sample: Sample) -> None:
    _check(materialize(op, sample), DeviceCaps())


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_small_device(op: OpDef, sample: Sample) -> None:
    """Few workgroups along an axis, so that dispatches spread over two; few bindings."""
    caps = attrs.evolve(DeviceCaps(), max_groups=(2, 65535, 1), max_bindings=5)
    _check(materialize(op, sample), caps)


def test_concat_of_eleven_needs_several_dispatches() -> None:
    for name in ("many_rows", "many_channels"):
        op = builtin_ops()["CONCATENATION"]
        case = materialize(op, next(s for s in op.samples() if s.id == name))
        low = Lowering(case.node, DeviceCaps(max_bindings=8), Precision.F32, _layout)
        rule = Target.plain(low.caps, Precision.F32).rule(case.node)
        assert not isinstance(rule, Unsupported)
        rule.build(low)
        assert len(low.dispatches) == 2
