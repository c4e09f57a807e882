"""Operands that kernels of sums read the same way: biases, and pixels along a row."""

from __future__ import annotations

from collections.abc import Callable

from tflgpu.kernels.gemm import pack_bias
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr, Operand
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.tuning import tuning_of


def read_bias(low: Lowering, k: Builder, index: int, channels: int) -> Callable[[Operand], Expr]:
    """A function that gives the f32 bias of a slice of output channels.

    ``index`` is the operand; constants are kept in f32 in every precision, and an absent bias costs
    nothing.
    """
    value = low.node.optional_input(index)
    if value is None:
        return lambda slice_: k.f32(0.0, 4)
    if value.contents is not None:
        packed = low.weights(k, pack_bias(value.data, channels), "bias", scalar=Scalar.F32)
        return lambda slice_: k.load(packed, slice_)
    view = low.read(k, index)
    return lambda slice_: k.cast(view.load(0, slice_), Scalar.F32)


def pixels_per_invocation(caps: DeviceCaps, invocations: int, width: int) -> int:
    """How many neighbours along a row an invocation should compute: as many as leave enough
    invocations (of ``invocations`` at one pixel each) to keep a GPU busy, at most 4."""
    wanted = caps.compute_units * tuning_of(caps).busy_invocations if caps.is_gpu else 1
    for pixels in (4, 2):
        if width >= pixels and invocations // pixels >= wanted:
            return pixels
    return 1
