"""A kernel may unroll its slices in Python: at a part's edge, too, where rows have no padding."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.target import Target
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.lowering import Lowering, Precision, guard
from tflgpu.lowering.rule import KernelRule
from tflgpu.ops.base import Fields
from tflgpu.ops.registry import builtin_ops
from tflgpu_cpu_ref.device import CpuRefDevice


def _twice(low: Lowering) -> None:
    """The example of docs/design.md."""
    k = low.kernel("scale", (64, 1, 1))
    src, dst = low.read(k, 0), low.write(k)
    i = k.let(k.global_id(0), "i")
    guard(k, i < dst.layout.outer)
    for s in range(dst.slices):
        dst.store(i, s, src.load(i, s) * 2.0)
    low.dispatch(k, (dst.layout.outer, 1, 1))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("channels", [1, 3, 4, 5, 9])
def test_every_channel_is_written_once(channels: int, inside: bool) -> None:
    """The interpreter refuses two writes of one element, and any beyond the buffer."""
    rng = np.random.default_rng(channels)
    graph = Graph()
    values = [graph.add_value((3, channels), DType.F32) for _ in range(3 if inside else 2)]
    no_attributes = builtin_ops()["NEG"].parse(Fields("NEG", {}))
    for source, result in pairwise(values):
        graph.add_node("NEG", no_attributes, [source], [result])
    rule = KernelRule("NEG", "twice", _twice, rank=9, fuses=False)
    target = Target.plain(DeviceCaps(), Precision.F32, rules=(rule,))
    device = CpuRefDevice()
    recording = device.load(plan_of(graph.nodes, values[:1], values[-1:], target))
    x = rng.uniform(-1, 1, (3, channels)).astype(np.float32)
    recording.inputs[0][...] = x.reshape(recording.inputs[0].shape)
    recording.run()
    got = np.array(recording.outputs[0]).reshape(x.shape)
    np.testing.assert_array_equal(got, x * (4 if inside else 2))
    recording.close()
    device.close()
