"""Kernels of windows and products between tensors as they lie inside a partition, where
channels are padded to a multiple of four, and for devices that make them choose differently."""

from __future__ import annotations

import numpy as np
import pytest
from tflgpu.compiler.target import Target
from tflgpu.conformance.samples import SampleCase, materialize
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Value
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.interpreter import interpret
from tflgpu.lowering.layout import Layout, LayoutKind
from tflgpu.lowering.lowering import Constant, Lowering, NewState, Precision, Temp, storage_of
from tflgpu.lowering.rule import KernelRule
from tflgpu.ops import batch_matmul, depthwise, lstm, pool, transpose_conv
from tflgpu.ops.base import OpDef, Sample

#: A CPU, a GPU so small that invocations take several pixels each, and one so large that they
#: take one each.
DEVICES = {
    "cpu": DeviceCaps(),
    "small_gpu": DeviceCaps(
        is_gpu=True, compute_units=1, max_workgroup=64, max_groups=(8, 65535, 65535)
    ),
    "large_gpu": DeviceCaps(is_gpu=True, compute_units=132),
}
_RULES = Target.plain(DeviceCaps(), Precision.F32).kernels.ops
CASES = [
    pytest.param(op, sample, id=f"{op.name}-{sample.id}")
    for family in (batch_matmul, depthwise, lstm, pool, transpose_conv)
    for op in family.OPS
    if op.name in _RULES
    for sample in op.samples()
]
_GARBAGE = 77.0  # what a buffer holds before anything writes it


def lowered(case: SampleCase, caps: DeviceCaps, precision: Precision) -> Lowering | None:
    """The node's kernels for tensors in C4, None where no rule takes it."""
    rule = Target.plain(caps, precision).rule(case.node)
    if not isinstance(rule, KernelRule):
        return None

    def layout(value: Value) -> Layout:
        return Layout(value.shape, LayoutKind.C4, storage_of(value, precision, caps))

    low = Lowering(case.node, caps, precision, layout)
    rule.build(low)
    return low


def run(case: SampleCase, low: Lowering) -> list[Array]:
    """Outputs and new states as they lie in their buffers: [outer, padded channels]."""
    memory: dict[object, Array] = {}
    for value in case.given:
        layout = low.layout(value)
        padded = np.zeros((layout.outer, layout.slices * 4), layout.storage.numpy)
        padded[:, : layout.channels] = case.arrays[value.id].reshape(layout.outer, -1)
        memory[value.id] = padded.reshape(-1)
    made = [(v.id, v) for v in case.graph.outputs] + [(("state", v.id), v) for v in case.variables]
    for key, value in made:
        layout = low.layout(value)
        memory[key] = np.full(layout.elements, _GARBAGE, layout.storage.numpy)
    for dispatch in low.dispatches:
        arrays = []
        for binding in dispatch.bindings:
            if isinstance(binding, Constant):
                arrays.append(binding.data)
            elif isinstance(binding, Temp):
                empty = np.full(binding.layout.elements, _GARBAGE, binding.layout.storage.numpy)
                arrays.append(memory.setdefault(("temp", binding.id), empty))
            elif isinstance(binding, NewState):
                arrays.append(memory["state", binding.variable.id])
            else:
                arrays.append(memory[binding.id])
        interpret(dispatch.kernel, dispatch.groups, arrays)
    return [memory[key].reshape(low.layout(v).outer, low.layout(v).slices * 4) for key, v in made]


@pytest.mark.parametrize("precision", [Precision.F32, Precision.F16], ids=lambda p: str(p.value))
@pytest.mark.parametrize("caps", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize(("op", "sample"), CASES)
def test_kernel_in_c4_agrees_with_the_reference(
    op: OpDef, sample: Sample, caps: DeviceCaps, precision: Precision
) -> None:
    half = precision is Precision.F16
    case = materialize(op, sample, half=half)
    low = lowered(case, caps, precision)
    assert low is not None
    for got, want in zip(run(case, low), [*case.expected, *case.states], strict=True):
        channels = want.shape[-1]
        result = got[:, :channels].astype(np.float32).reshape(want.shape)
        case.tolerance(half=half).check(result, want)
        assert not got[:, channels:].any(), "padding lanes must be zero"


def kernels(op: OpDef, sample_id: str, device: str) -> list[str]:
    sample = next(s for s in op.samples() if s.id == sample_id)
    low = lowered(materialize(op, sample), DEVICES[device], Precision.F32)
    assert low is not None
    return [d.kernel.name for d in low.dispatches]


def test_the_device_and_the_sizes_choose_the_kernel() -> None:
    (matmul,) = batch_matmul.OPS
    assert kernels(matmul, "larger", "cpu") == ["batch_matmul"]
    assert kernels(matmul, "larger", "large_gpu") == ["batch_matmul_tiled"]
    assert kernels(matmul, "row", "large_gpu") == ["batch_matmul"]
    average = pool.OPS[0]
    assert kernels(average, "global", "large_gpu") == ["average_pool_2d_team"]
    assert kernels(average, "halves", "large_gpu") == ["average_pool_2d"]


def test_a_small_device_makes_fewer_invocations_do_more() -> None:
    (op,) = depthwise.OPS
    sample = next(s for s in op.samples() if s.id == "wide")
    groups = {}
    for device in ("cpu", "large_gpu"):
        low = lowered(materialize(op, sample), DEVICES[device], Precision.F32)
        assert low is not None
        groups[device] = low.dispatches[0].groups[0]
    assert groups["cpu"] < groups["large_gpu"]
