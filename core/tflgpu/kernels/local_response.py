"""LOCAL_RESPONSE_NORMALIZATION: one invocation a pixel and four channels."""

from __future__ import annotations

from tflgpu.language.tree import Expr, Operand
from tflgpu.language.types import Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import FLOATS, KernelRule, takes

# Windows that reach more slices are walked by a loop in the kernel.
_UNROLLED = 4


def build_local_response(low: Lowering) -> None:
    """Walk the slices that the window of any of the four channels touches."""
    k = low.kernel("local_response")
    src, out = low.read(k, 0), low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        # No channel is farther from another than the last from the first.
        radius = min(low.attrs.radius, src.slices * 4)
        reach = -(-radius // 4)
        energies = [k.var(k.f32(0.0), "energy") for _ in range(4)]

        def near(step: Operand) -> Expr:
            at = k.let(slice_ + step, "at")
            inside = (at >= 0) & (at < src.slices)
            value = src.load(outer, k.clamp(at, 0, src.slices - 1))
            # Beyond the last channel lanes are zero, so the tensor's end needs no test.
            return k.let(k.select(inside, k.cast(value, Scalar.F32), k.f32(0.0, 4)), "near")

        inner = (
            radius - 3
        ) // 4  # slices up to so far away lie in the windows of all four channels
        looped = inner > _UNROLLED
        if looped:
            with k.loop(-inner, inner + 1, name="step") as nearby:
                value = near(nearby)
                energy = k.let(k.dot(value, value), "inner")
                for lane in range(4):
                    k.add_to(energies[lane], energy)
        for step in range(-reach, reach + 1):
            if looped and abs(step) <= inner:
                continue
            value = near(step)
            for lane in range(4):
                for other in range(4):
                    if abs(step * 4 + other - lane) <= radius:
                        k.fma_to(energies[lane], value.lane(other), value.lane(other))
        scale = k.fma(k.vec(energies), low.attrs.alpha, k.f32(low.attrs.bias, 4))
        x = k.cast(src.load(outer, slice_), Scalar.F32)
        out.store(outer, slice_, x * k.call("pow", scale, -low.attrs.beta))


RULES = (KernelRule("LOCAL_RESPONSE_NORMALIZATION", "window", build_local_response, takes(FLOATS)),)
