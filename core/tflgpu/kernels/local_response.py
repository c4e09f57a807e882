"""LOCAL_RESPONSE_NORMALIZATION: one invocation a pixel and four channels."""

from __future__ import annotations

from tflgpu.kernel.grid import launch, spread
from tflgpu.kernel.lowering import Lowering
from tflgpu.kernel.rule import KernelRule
from tflgpu.kernel.types import Scalar
from tflgpu.kernels.accept import FLOATS, takes


def build_local_response(low: Lowering) -> None:
    """Walk the slices that the window of any of the four channels touches."""
    k = low.kernel("local_response", (64, 1, 1))
    src, out = low.read(k, 0), low.write(k)
    count = out.layout.outer * out.slices
    i = spread(low, k, count)
    outer, slice_ = k.let(i // out.slices, "outer"), k.let(i % out.slices, "slice")
    radius = min(low.attrs.radius, 4 * out.slices)  # there is nothing farther away
    reach = -(-radius // 4)
    energies = [k.var(k.f32(0.0), "energy") for _ in range(4)]
    for step in range(-reach, reach + 1):
        at = k.let(slice_ + step, "at")
        inside = (at >= 0) & (at < src.slices)
        near = src.load(outer, k.clamp(at, 0, src.slices - 1))
        # Beyond the last channel lanes are zero, so the tensor's end needs no test.
        near = k.let(k.select(inside, k.cast(near, Scalar.F32), k.f32(0.0, 4)), "near")
        for lane in range(4):
            taken = [
                near.lane(other) for other in range(4) if abs(step * 4 + other - lane) <= radius
            ]
            for value in taken:
                k.fma_to(energies[lane], value, value)
    scale = k.fma(k.vec(energies), low.attrs.alpha, k.f32(low.attrs.bias, 4))
    x = k.cast(src.load(outer, slice_), Scalar.F32)
    out.store(outer, slice_, x * k.call("pow", scale, -low.attrs.beta))
    launch(low, k, count)


RULES = (KernelRule("LOCAL_RESPONSE_NORMALIZATION", "window", build_local_response, takes(FLOATS)),)
