"""Small plans made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tflgpu.compiler.plan import (
    ArenaRef,
    ConstRef,
    InputRef,
    OutputRef,
    Plan,
    PlannedDispatch,
    PlannedIO,
    Ref,
)
from tflgpu.ir.dtypes import Array, DType
from tflgpu.language.builder import Builder
from tflgpu.language.kernel import Kernel
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar

_GROUP = 32


def elementwise(
    name: str,
    count: int,
    result: Callable[..., Expr],
    *,
    sources: Sequence[str] = ("src",),
    scalar: Scalar = Scalar.F32,
    width: int = 1,
) -> Kernel:
    """``dst[i] = result(k, i, *sources)`` for ``count`` elements of ``width`` lanes."""
    k = Builder(name, (_GROUP, 1, 1))
    given = [k.buffer(source, scalar, width, "read") for source in sources]
    dst = k.buffer("dst", scalar, width, "write")
    i = k.let(k.global_id(0))
    with k.if_(i < count):
        k.store(dst, i, result(k, i, *given))
    return k.build()


def affine(count: int, a: float = 2.0, b: float = 1.0, *, name: str = "affine") -> Kernel:
    """``dst[i] = src[i] * a + b`` for ``count`` floats."""
    return elementwise(name, count, lambda k, i, src: k.load(src, i) * a + b)


def add(count: int, scalar: Scalar = Scalar.F32) -> Kernel:
    """``dst[i] = x[i] + y[i]``."""
    return elementwise(
        "add",
        count,
        lambda k, i, x, y: k.load(x, i) + k.load(y, i),
        sources=("x", "y"),
        scalar=scalar,
    )


def halves(count: int, width: int = 1) -> Kernel:
    """``dst[i] = src[i] / 2`` for ``count`` vectors of 16-bit floats, computed in f32."""
    return elementwise(
        "halves",
        count,
        lambda k, i, src: k.load(src, i, Scalar.F32) * 0.5,
        scalar=Scalar.F16,
        width=width,
    )


def stray(count: int, at: int) -> Kernel:
    """Writes 1 to ``count`` floats, as it should, and to element ``at``, which it should not."""
    k = Builder("stray", (_GROUP, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    i = k.global_id(0)
    with k.if_(i < count):
        k.store(dst, i, k.f32(1))
    with k.if_(i.eq(0)):
        k.store(dst, at, k.f32(1))
    return k.build()


def io(name: str, shape: tuple[int, ...], dtype: DType = DType.F32) -> PlannedIO:
    """An input or output."""
    return PlannedIO(name, shape, dtype, int(np.prod(shape)) * dtype.numpy.itemsize)


def dispatch(kernel: Kernel, count: int, refs: Sequence[Ref], label: str = "") -> PlannedDispatch:
    """Enough groups for ``count`` invocations."""
    groups = (-(-count // _GROUP), 1, 1)
    return PlannedDispatch(kernel, groups, tuple(refs), label or kernel.name)


def plan(
    dispatches: Sequence[PlannedDispatch],
    inputs: Sequence[PlannedIO] = (),
    outputs: Sequence[PlannedIO] = (),
    *,
    constants: Sequence[Array] = (),
    arena: int = 0,
    alignment: int = 64,
) -> Plan:
    """A plan."""
    return Plan(
        arena, alignment, tuple(constants), tuple(inputs), tuple(outputs), tuple(dispatches)
    )


def chain(count: int, alignment: int, steps: int = 3) -> Plan:
    """``steps`` times ``x * 2 + 1``, through two regions of the arena in turn."""
    return _steps(affine(count), count, alignment, steps)


def chain_expected(x: Array, steps: int = 3) -> Array:
    """What `chain` gives for whole numbers, exactly."""
    return (x * 2.0**steps + (2.0**steps - 1)).astype(np.float32)


def backwards(count: int, alignment: int, steps: int) -> Plan:
    """``steps`` times ``x + 1``, each step turning the order of the elements around."""
    turned = elementwise("backwards", count, lambda k, i, src: k.load(src, count - 1 - i) + 1.0)
    return _steps(turned, count, alignment, steps)


def _steps(kernel: Kernel, count: int, alignment: int, steps: int) -> Plan:
    stride = -(-count * 4 // alignment) * alignment
    arena = [ArenaRef(i * stride, count * 4) for i in range(2)]
    refs: list[Ref] = [InputRef(0), *(arena[i % 2] for i in range(steps - 1)), OutputRef(0)]
    return plan(
        [dispatch(kernel, count, refs[i : i + 2], f"step {i}") for i in range(steps)],
        [io("x", (count,))],
        [io("y", (count,))],
        arena=2 * stride,
        alignment=alignment,
    )


def biased(count: int) -> Plan:
    """``y = x + bias`` with a constant bias of 0, 1, 2, ..."""
    bias = np.arange(count, dtype=np.float32)
    return plan(
        [dispatch(add(count), count, [InputRef(0), ConstRef(0), OutputRef(0)], "bias")],
        [io("x", (count,))],
        [io("y", (count,))],
        constants=[bias],
    )
