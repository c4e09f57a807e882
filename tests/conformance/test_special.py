"""The suite notices kernels that lose a NaN or make one, and plants what it says it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tflgpu.conformance.op_checks import op_checks
from tflgpu.conformance.samples import materialize
from tflgpu.conformance.special import SpecialKind, special_samples
from tflgpu.conformance.target import DeviceUnderTest
from tflgpu.errors import TflgpuError
from tflgpu.kernels.accept import FLOATS, takes
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.rule import ElementwiseRule
from tflgpu.ops.registry import builtin_ops
from tflgpu.plugins.hookspecs import hookimpl
from tflgpu.plugins.registry import Registry
from tflgpu_cpu_ref import plugin

OPS = builtin_ops()


def _fmax(k: Builder, attributes: Any, operands: Any) -> Expr:
    """C's fmax, which prefers a number to a NaN."""
    a, b = k.let(operands[0], "a"), k.let(operands[1], "b")
    return k.select(a.ne(a) | (b > a), b, a)


def _relu(k: Builder, attributes: Any, operands: Any) -> Expr:
    x = k.let(operands[0], "x")
    return k.select(x > 0.0, x, 0.0)


def _prelu(k: Builder, attributes: Any, operands: Any) -> Expr:
    """A choice written as a sum: 0 * inf is NaN."""
    x = k.let(operands[0], "x")
    zero, one = k.const(0.0, x.type), k.const(1.0, x.type)
    positive = k.let(k.select(x >= 0.0, one, zero), "positive")
    return x * positive + x * operands[1] * (1.0 - positive)


def _logistic(k: Builder, attributes: Any, operands: Any) -> Expr:
    """Overflows to inf / inf."""
    power = k.let(k.call("exp", operands[0]), "power")
    return power / (power + 1.0)


WRONG: dict[str, Callable[..., Expr]] = {
    "MAXIMUM": _fmax, "RELU": _relu, "PRELU": _prelu, "LOGISTIC": _logistic,
}  # fmt: skip


@pytest.fixture
def open_wrong() -> Iterator[Callable[[str], DeviceUnderTest]]:
    opened: list[DeviceUnderTest] = []

    class Wrong:
        def __init__(self, rule: ElementwiseRule) -> None:
            self.tflgpu_register_kernels = hookimpl(lambda backend: [rule])

    def make(op: str) -> DeviceUnderTest:
        rule = ElementwiseRule(op, WRONG[op], takes(FLOATS))
        plugins = {"cpu_ref": plugin, "wrong": Wrong(rule)}
        opened.append(DeviceUnderTest.open(Registry.of(plugins), "cpu_ref", 1))
        return opened[-1]

    yield make
    for target in opened:
        target.close()


@pytest.mark.parametrize("op", WRONG)
def test_a_kernel_wrong_only_for_special_numbers_is_noticed(open_wrong: Any, op: str) -> None:
    target = open_wrong(op)
    failed = {"special": 0, "usual": 0}
    for check in op_checks([OPS[op]]):
        if "/f32/" not in check.id:
            continue
        try:
            check.run(target)
        except (AssertionError, TflgpuError):
            failed["special" if SpecialKind.EVERYWHERE.value in check.id else "usual"] += 1
    assert failed["special"]
    assert not failed["usual"], "the usual samples should not see it"


@pytest.mark.parametrize(
    "op", [o for o in OPS.values() if special_samples(o)], ids=lambda o: o.name
)
def test_every_kind_is_planted(op: Any) -> None:
    kinds = set()
    for sample, planted in special_samples(op):
        kinds.add(planted.kind)
        case = materialize(op, sample, planted=planted)
        found = [*case.arrays.values(), *(v.data for v in case.graph.values.values())]
        floats = [a.reshape(-1) for a in found if a is not None and a.dtype.kind == "f"]
        flat = np.concatenate(floats).astype(np.float64)
        if planted.kind in (SpecialKind.NAN, SpecialKind.ALL_NAN):
            assert np.isnan(flat).any()
        elif planted.kind in (SpecialKind.INF, SpecialKind.MINUS_INF):
            assert np.isinf(flat).any()
    assert kinds == (
        {SpecialKind.EVERYWHERE} if op.elementwise else set(SpecialKind) - {SpecialKind.EVERYWHERE}
    )
