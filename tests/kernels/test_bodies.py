"""Bodies of kernels that are written once: what is the same to them, and that nothing is taken for
the same that is not."""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.compiler.target import Target
from tflgpu.conformance.samples import materialize
from tflgpu.errors import KernelError
from tflgpu.ir.graph import Value
from tflgpu.language.buffers import KernelBuffer
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.kernel import Kernel
from tflgpu.language.same import same
from tflgpu.language.types import Scalar
from tflgpu.lowering.bodies import KernelBodies, key_of
from tflgpu.lowering.layout import Layout, LayoutKind
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.rule import KernelRule
from tflgpu.lowering.stored_types import storage_of
from tflgpu.ops import conv, depthwise, fully_connected, normalize
from tflgpu.ops.base import OpDef, Sample


@attrs.frozen
class _Point:
    x: float
    y: object = None


class _Further(_Point):
    """Has the fields of a class, and whatever else."""


class _Number(enum.IntEnum):
    ONE = 1


def _closure(value: object) -> Callable[[], object]:
    return lambda: value


def _with_default(value: object) -> Callable[..., object]:
    return lambda given=value: given


def _key(value: object) -> object:
    return key_of(Builder("k", (1, 1, 1)), value)


EQUAL = [
    (1, 1), ("a", "a"), (None, None), (float("nan"), float("nan")), ((1, (2.5,)), (1, (2.5,))),
    (_Point(1.0), _Point(1.0)), (_closure((1, "a")), _closure((1, "a"))),
    (_with_default(2), _with_default(2)), (partial(max, 1), partial(max, 1)),
    (np.float32(1), np.float32(1)), (len, len), (Scalar.F32, Scalar.F32),
    (_closure(_closure(1)), _closure(_closure(1))),
]  # fmt: skip
DIFFERENT = [
    (1, True), (1, 1.0), (0.0, -0.0), (1, _Number.ONE), ("1", 1), ((1,), 1), (_Point(1.0), (1.0,)),
    (_Point(0.0), _Point(-0.0)), (_Point(1.0), _Point(1.0, 1)), (_closure(1), _closure(True)),
    (_closure(_closure(1)), _closure(_closure(2))), (_with_default(1), _with_default(2)),
    (partial(max, 1), partial(max, 2)), (partial(max, 1), partial(min, 1)), (len, max),
    (np.float32(1), np.float64(1)), (np.float32(0), np.float32(-0.0)),
    (Scalar.F32, Scalar.F16), (_closure(1), _with_default(1)),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_what_is_the_same(one: object, other: object) -> None:
    assert _key(one) is not None
    assert _key(one) == _key(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_is_not_the_same(one: object, other: object) -> None:
    assert _key(one) is not None
    assert _key(other) is not None
    assert _key(one) != _key(other)


def _endless() -> Callable[[], object]:
    def itself() -> object:
        return itself

    return itself


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(3), [1], {1: 2}, object(), _Further(1.0), _closure(np.zeros(3)), _endless(),
        _Point(1.0, [1]), partial(max, [1]), Builder("k", (1, 1, 1)).f32, Builder("k", (1, 1, 1)),
    ],
)  # fmt: skip
def test_of_what_nobody_knows_whether_it_is_the_same(value: object) -> None:
    assert _key(value) is None


def _begun(bodies: KernelBodies, width: int = 4) -> tuple[Builder, KernelBuffer]:
    k = Builder("k", (64, 1, 1))
    return k, k.buffer("dst", Scalar.F32, width, "write")


def _fill(k: Builder, dst: KernelBuffer, value: float) -> None:
    k.store(dst, k.global_id(0), k.f32(value, dst.width))


def test_a_body_is_written_once() -> None:
    bodies, calls = KernelBodies(), []

    def write(k: Builder, dst: KernelBuffer, value: float) -> None:
        _fill(k, dst, value)

    def counted(k: Builder, dst: KernelBuffer, value: float) -> None:
        calls.append(value)  # a list of which nobody knows who else changes it
        _fill(k, dst, value)

    k, dst = _begun(bodies)
    first = bodies.kernel(k, write, (dst, 1.0))
    again, dst = _begun(bodies)
    assert bodies.kernel(again, write, (dst, 1.0)) is first
    assert again.size == 0
    k, dst = _begun(bodies)
    assert bodies.kernel(k, write, (dst, 2.0)) is not first
    k, dst = _begun(bodies, width=1)
    assert bodies.kernel(k, write, (dst, 1.0)) is not first
    for _ in range(2):
        k, dst = _begun(bodies)
        bodies.kernel(k, counted, (dst, 1.0))
    assert calls == [1.0, 1.0]


def test_what_was_written_before_the_body_counts() -> None:
    bodies, kernels = KernelBodies(), []
    for before in (1.0, 2.0):
        k, dst = _begun(bodies)
        _fill(k, dst, before)
        kernels.append(bodies.kernel(k, _fill, (dst, 3.0)))
    assert not same(*kernels)


def test_a_function_that_changes_what_it_was_given_writes_again() -> None:
    @attrs.define
    class Counter:
        count: int = 0

    def write(k: Builder, dst: KernelBuffer, counter: Counter) -> None:
        counter.count += 1
        _fill(k, dst, float(counter.count))

    bodies = KernelBodies()
    kernels = []
    for _ in range(2):
        k, dst = _begun(bodies)
        kernels.append(bodies.kernel(k, write, (dst, Counter())))
    assert same(*kernels)
    assert k.size == 1  # written, though what it was given is equal


def _cases() -> list[Any]:
    return [
        pytest.param(op, id=op.name)
        for family in (conv, depthwise, fully_connected, normalize)
        for op in family.OPS
        if op.name in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", normalize.NAME)
    ]


def _lowered(
    op: OpDef, sample: Sample, caps: DeviceCaps, bodies: KernelBodies | None
) -> Lowering | None:
    case = materialize(op, sample)
    rule = Target.plain(caps, Precision.F32).rule(case.node)
    if not isinstance(rule, KernelRule):
        return None

    def layout(value: Value) -> Layout:
        return Layout(value.shape, LayoutKind.C4, storage_of(value, Precision.F32, caps))

    low = Lowering(case.node, caps, Precision.F32, layout, bodies=bodies)
    rule.build(low)
    return low


@pytest.mark.parametrize("op", _cases())
@pytest.mark.parametrize("is_gpu", [False, True], ids=["cpu", "gpu"])
def test_kernels_are_those_that_would_be_written(op: OpDef, is_gpu: bool) -> None:
    """All samples of an op in one plan, twice."""
    caps = DeviceCaps(is_gpu=is_gpu, compute_units=4, max_bindings=32)
    bodies = KernelBodies()
    first: list[list[Kernel]] = []
    for round_ in range(2):
        for at, sample in enumerate(op.samples()):
            shared = _lowered(op, sample, caps, bodies)
            if shared is None:
                first.append([])
                continue
            kernels = [item.kernel for item in shared.dispatches]
            if round_ == 0:
                alone = _lowered(op, sample, caps, None)
                assert alone is not None
                assert all(
                    same(a.kernel, b) for a, b in zip(alone.dispatches, kernels, strict=True)
                )
                first.append(kernels)
            else:
                assert all(a is b for a, b in zip(first[at], kernels, strict=True))
    assert any(first)


def _low() -> Lowering:
    op = next(op for op in depthwise.OPS if op.name == "DEPTHWISE_CONV_2D")
    low = _lowered(op, next(iter(op.samples())), DeviceCaps(), None)
    assert low is not None
    return low


def test_a_kernel_ends_with_its_body() -> None:
    low = _low()
    for bodies in range(2):  # written, and found
        k = low.kernel("k", (64, 1, 1))
        out = low.write(k)
        low.body(k, _one, out.buffer)
        assert (k.size == 0) == (bodies == 1)
        k.barrier()
        with pytest.raises(KernelError, match="goes on behind its body"):
            low.dispatch(k, (1, 1, 1))
    k = low.kernel("k", (64, 1, 1))
    low.body(k, _one, low.write(k).buffer)
    low.read(k, 0)
    with pytest.raises(KernelError, match="goes on behind its body"):
        low.dispatch(k, (1, 1, 1))


def _one(k: Builder, dst: KernelBuffer) -> None:
    _fill(k, dst, 1.0)
