"""What kernels need of a device, and what they are told where it is lacking."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tflgpu.errors import KernelError
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.kernel import Kernel
from tflgpu.language.needs import Features, check_needs, needs_of
from tflgpu.language.types import F16, Scalar
from tflgpu_opencl.dialect import OpenCLDialect
from tflgpu_vulkan.spirv.target import Target
from tflgpu_wgpu.dialect import WgslDialect

EVERYTHING = Features(f16_arithmetic=True, matrix_tiles=True, subgroup_shuffle=32)


def moved(scalar: Scalar, change: Callable[[Builder], None] | None = None) -> Kernel:
    """A copy of one element."""
    k = Builder("moved", (64, 1, 1))
    src, dst = (k.buffer(name, scalar, 1, way) for name, way in (("src", "read"), ("dst", "write")))
    if change is not None:
        change(k)
    k.store(dst, 0, k.load(src, 0))
    return k.build()


def test_f32_needs_nothing() -> None:
    needs = needs_of(moved(Scalar.F32))
    assert (needs.f16, needs.f16_arithmetic, needs.narrow) == (False, "", ())
    assert (needs.matrices, needs.shuffle) == (False, 0)
    bare = Features(f16_storage=False, int8_storage=False)
    assert check_needs(moved(Scalar.F32), bare) == needs


@pytest.mark.parametrize("scalar", [Scalar.F16, Scalar.I8, Scalar.U8, Scalar.I16])
def test_narrow_buffers(scalar: Scalar) -> None:
    kernel = moved(scalar)
    assert [buffer.name for buffer in needs_of(kernel).narrow] == ["src", "dst"]
    assert needs_of(kernel).f16 == (scalar is Scalar.F16)
    assert needs_of(kernel).problem(Features()) is None
    lacking = [Features(f16_storage=False)] if scalar in (Scalar.F16, Scalar.I16) else []
    lacking += [Features(int8_storage=False)] if scalar is not Scalar.F16 else []
    for features in lacking:
        with pytest.raises(KernelError, match=f"kernel moved: buffer src of {scalar.value}.*caps"):
            check_needs(kernel, features)


def test_f16_is_computed_with_or_only_moved() -> None:
    def half(k: Builder, value: float = 2.0) -> None:
        k.let(k.const(value, F16) * 3.0)

    def shared(k: Builder) -> None:
        k.shared("tile", F16, 4)

    def only_moved(k: Builder) -> None:
        x = k.let(k.select(k.global_id(0) > 1, k.const(1.0, F16), 0.0))
        k.let(k.max(-x, k.cast(x > 0.5, Scalar.F16)))
        k.let(k.is_nan(x))
        k.let(k.call("sign", x))

    def rounded(k: Builder) -> None:
        k.let(k.cast(k.cast(k.global_id(0), Scalar.F32), Scalar.F16))

    for change, what in (
        (half, "mul"),
        (shared, "shared array tile"),
        (rounded, "a cast from f32"),
    ):
        kernel = moved(Scalar.F32, change)
        assert needs_of(kernel).f16
        assert needs_of(kernel).f16_arithmetic == what
        with pytest.raises(KernelError, match=rf"kernel moved: {what} in f16.*precision F32"):
            check_needs(kernel, Features())
        assert needs_of(kernel).problem(EVERYTHING) is None
    assert needs_of(moved(Scalar.F32, only_moved)).f16
    assert needs_of(moved(Scalar.F32, only_moved)).f16_arithmetic == ""


def test_features_follow_from_capabilities() -> None:
    caps = DeviceCaps(
        f16_arithmetic=True,
        matrix_tiles=True,
        subgroup_shuffle=8,
        f16_storage=False,
        vendor="nvidia",
    )
    assert Target.of(caps) == Target(
        f16_storage=False, f16_arithmetic=True, int8_storage=False, matrix_tiles=True,
        subgroup_shuffle=8,
    )  # fmt: skip
    # Whatever a device of another API says: these are the language's.
    wgsl, opencl = WgslDialect.of(caps), OpenCLDialect.of(caps)
    assert (wgsl.matrix_tiles, wgsl.int8_storage) == (False, False)
    assert (opencl.f16_storage, opencl.int8_storage, opencl.shuffle_ptx) == (True, True, True)
