"""The suite's special numbers: devices that lose a NaN in one of the usual ways are caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from tflgpu.conformance.node_checks import node_checks
from tflgpu.conformance.special_table import special_cases, special_operands
from tflgpu.conformance.target import Check, DeviceUnderTest
from tflgpu.language import evaluate
from tflgpu.language.functions import FUNCTIONS
from tflgpu.language.tree import COMPARE
from tflgpu.language.types import Scalar
from tflgpu.plugins.registry import registry

CHECKS = {c.id: c for c in node_checks() if c.id.startswith("1/special/")}


@pytest.fixture
def target() -> Iterator[DeviceUnderTest]:
    opened = DeviceUnderTest.open(registry(), "cpu_ref", 1)
    yield opened
    opened.close()


def test_every_float_type_and_width_has_one() -> None:
    assert set(CHECKS) == {f"1/special/{s}x{w}" for s in ("f32", "f16") for w in (1, 2, 3, 4)}


def test_every_function_comparison_and_float_operator_is_in_the_table() -> None:
    names = {case.name for case in special_cases(Scalar.F32, halves=True)}
    functions = {name for name, fn in FUNCTIONS.items() if Scalar.F32 in fn.takes}
    assert names >= functions | COMPARE | {"add", "sub", "mul", "div", "min", "max", "neg"}


def test_vectors_have_different_lanes_and_all_pairs_are_there() -> None:
    a, b, _ = special_operands(Scalar.F32)
    assert len(a) % 12 == 0
    pairs = set(zip(a.view(np.uint32).tolist(), b.view(np.uint32).tolist(), strict=True))
    assert len(pairs) == len(np.unique(a.view(np.uint32))) ** 2
    assert (np.isnan(a.reshape(-1, 4)).sum(1) == 1).sum() > 20


def test_the_interpreter_passes(target: DeviceUnderTest) -> None:
    for check in CHECKS.values():
        assert check.run(target) is None


def _native_pow(x: Any, y: Any) -> Any:
    return np.exp2(y * np.log2(x))


def _ordered(a: Any, b: Any) -> Any:
    return (a != b) & ~np.isnan(a) & ~np.isnan(b)


def _first_if_nan(a: Any, b: Any) -> Any:
    return np.where(b > a, b, a)  # the larger, but of (1, NaN) it makes 1


WRONG: dict[str, tuple[str, Callable[..., Any], str]] = {
    "fmax": ("max", np.fmax, "max gives"),
    "fmin": ("min", np.fmin, "min gives"),
    "max of the first": ("max", _first_if_nan, "max gives"),
    "max of the second": ("max", lambda a, b: _first_if_nan(b, a), "max gives"),
    "ordered ne": ("ne", _ordered, "ne gives"),
    "unordered lt": ("lt", lambda a, b: ~(a >= b), "lt gives"),
    "isnan that says no": ("isnan", lambda a: np.zeros(a.shape, bool), "isnan gives"),
    "isnan of infinities": ("isnan", lambda a: ~np.isfinite(a), "isnan gives"),
    "sign of NaN": ("sign", lambda a: np.nan_to_num(np.sign(a)), "sign gives"),
    "pow by logarithms": ("pow", _native_pow, "pow gives"),
    "pow(1, NaN)": ("pow", lambda a, b: np.power(a, b) * np.where(b == b, 1, b), "pow gives"),
    "tanh by limits": ("tanh", lambda a: np.tanh(np.fmin(a, 10)), "tanh gives"),
    "tanh by a quotient": ("tanh", lambda a: 1 - 2 / (1 + np.exp(-2 * a)) - np.exp(2 * a) * 0,
                           "tanh gives"),
    "exp of infinity": ("exp", lambda a: np.exp(np.clip(a, -9, 9)), "exp gives"),
    "finite log": ("log", lambda a: np.log(np.maximum(a, 1e-4)), "log gives"),
    "finite rsqrt": ("rsqrt", lambda a: 1 / np.sqrt(np.abs(a)), "rsqrt gives"),
    "sin of infinity": ("sin", lambda a: np.sin(np.clip(a, -99, 99)), "sin gives"),
    "wild cos": ("cos", lambda a: np.where(np.abs(a) > 9e3, a, np.cos(a)), r"cos in \[-1, 1\]"),
    "finite quotient": ("div", lambda a, b: a / np.where(b == 0, 1, b), "div gives"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_operation_is_caught(
    mistake: str, target: DeviceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, wrong, message = WRONG[mistake]
    binary, call = evaluate.binary, evaluate.call

    def one_binary(op: str, a: Any, b: Any) -> Any:
        is_float = np.asarray(a).dtype.kind == "f"
        if op != name or not is_float:
            return binary(op, a, b)
        return np.asarray(wrong(a, b)).astype(binary(op, a, b).dtype)

    def one_call(fn: str, args: Any) -> Any:
        if fn != name:
            return call(fn, args)
        return np.asarray(wrong(*args)).astype(call(fn, args).dtype)

    module = import_module("tflgpu.language.expressions")
    monkeypatch.setattr(module, "binary", one_binary)
    monkeypatch.setattr(module, "call", one_call)
    for check in (CHECKS["1/special/f32x1"], CHECKS["1/special/f16x4"]):
        with pytest.raises(AssertionError, match=message), np.errstate(all="ignore"):
            check.run(target)


def test_a_printer_with_fmax_is_caught(
    require_backend: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mistake of 8c6e0f6, in a real compiler."""
    require_backend("opencl")
    from tflgpu_opencl import prelude

    text = "float float_at_least1(float x, float limit) { return fmax(x, limit); }"
    monkeypatch.setitem(prelude._HELPERS, "float_at_least1", text)
    opened = DeviceUnderTest.open(registry(), "opencl", 0)
    check: Check = CHECKS["1/special/f32x1"]
    try:
        with pytest.raises(AssertionError, match=r"max\(a, 0\) gives .* not .*nan"):
            check.run(opened)
    finally:
        opened.close()
