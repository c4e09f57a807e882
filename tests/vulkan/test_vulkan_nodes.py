"""Functions in SPIR-V, to the accuracy that Vulkan promises. Level 1 of the conformance suite runs
every node of the kernel language, by bounds that hold for all APIs.

Tolerances are those of the Vulkan specification ("Precision and Operation of SPIR-V
Instructions"), plus what NumPy's own function may be off where it is not exact. For what the
backend writes out itself, because Vulkan's own would be too far off, they are those of the
shared table: a few units in the last place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tflgpu.conformance.node_table import (
    NodeCase,
    operands,
    table,
)
from tflgpu.language.builder import Builder
from tflgpu.language.kernel import Kernel
from tflgpu.language.types import Scalar

from tests.language.node_tables import LOOSE, NUMPY_ULP, wrong_functions


def _turned(eps: float, x: Any) -> Any:
    """Of the argument's own rounding, a number of quarter turns away from 0."""
    return np.abs(x) * 2.0**-26 + 2.0**-24


_LOOSE = LOOSE | {"sin": _turned, "cos": _turned}


def needs_f16(runner: Any, scalar: Scalar) -> None:
    if scalar is Scalar.F16 and not runner.f16:
        pytest.skip(f"{runner.name} has no shaderFloat16")


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "scalar", [Scalar.F32, Scalar.F16, Scalar.I32, Scalar.U32], ids=lambda s: s.value
)
def test_every_operation(runner: Any, scalar: Scalar, width: int) -> None:
    needs_f16(runner, scalar)
    assert not wrong_functions(runner, scalar, width, _LOOSE, _allowed)


def _allowed(case: NodeCase, scalar: Scalar) -> float:
    if scalar is Scalar.F16:
        return 1 if case.ulp else 0  # computed in f32 and rounded, or rounded once
    return case.ulp + (NUMPY_ULP if case.ulp else 0)


def unary(fn: str, count: int, arity: int = 1) -> Kernel:
    """``fn`` of floats."""
    k = Builder(fn, (32, 1, 1))
    sources = [k.buffer(f"x{i}", Scalar.F32, 1, "read") for i in range(arity)]
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    i = k.let(k.global_id(0))
    with k.if_(i < count):
        k.store(dst, i, k.call(fn, *[k.load(source, i) for source in sources]))
    return k.build()


@pytest.mark.parametrize(
    ("fn", "low", "high", "rtol", "atol"),
    [
        ("sin", -100, 100, 0, 4e-7), ("cos", -100, 100, 0, 4e-7), ("sin", -1e-3, 1e-3, 5e-7, 0),
        ("sin", -5000, 5000, 0, 2e-6), ("tanh", -12, 12, 1e-6, 0), ("tanh", -1e-4, 1e-4, 3e-7, 0),
        ("erf", -6, 6, 1e-6, 0), ("erf", -1e-4, 1e-4, 3e-7, 0),
    ],
)  # fmt: skip
def test_what_is_written_out_is_close(
    runner: Any, fn: str, low: float, high: float, rtol: float, atol: float
) -> None:
    x = np.linspace(low, high, 4001).astype(np.float32)
    got = runner.run(unary(fn, x.size), (-(-x.size // 32), 1, 1), [x, np.zeros_like(x)])[1]
    wide = x.astype(np.float64)
    if fn == "erf":
        from math import erf

        want = np.array([erf(v) for v in wide])
    else:
        want = getattr(np, fn)(wide)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


def test_powers_of_every_kind(runner: Any) -> None:
    bases = [2.0, -2.0, 0.0, 1.0, -1.5, 0.5, 10.0]
    exponents = [0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.5, 5.0]
    x, y = (np.array(a, np.float32).ravel() for a in np.meshgrid(bases, exponents))
    with np.errstate(all="ignore"):
        want = np.power(x, y)
    kernel = unary("pow", x.size, 2)
    got = runner.run(kernel, (-(-x.size // 32), 1, 1), [x, y, np.zeros_like(x)])[2]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_angles_of_every_quadrant(runner: Any) -> None:
    x, y = (a.astype(np.float32).ravel() for a in np.meshgrid(*[np.linspace(-3, 3, 41)] * 2))
    x[:4], y[:4] = [0, 0, 2, -2], [0, 3, 0, 0]
    got = runner.run(unary("atan2", x.size, 2), (-(-x.size // 32), 1, 1), [y, x, np.zeros_like(x)])
    np.testing.assert_allclose(got[2], np.arctan2(y, x), rtol=1e-6)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_f32_to_f16_and_back_is_ieee_rounding(runner: Any, width: int) -> None:
    """Subnormals, zeros' signs and NaNs too."""
    needs_f16(runner, Scalar.F16)
    k = Builder("there_and_back", (64, 1, 1))
    src = k.buffer("src", Scalar.F32, width, "read")
    dst = k.buffer("dst", Scalar.F32, width, "write")
    half = k.let(k.cast(k.load(src, k.global_id(0)), Scalar.F16), "half")
    k.store(dst, k.global_id(0), k.cast(half, Scalar.F32))
    rng = np.random.default_rng(0)
    data = np.concatenate([
        rng.integers(0, 2**32, 2048, dtype=np.uint64).astype(np.uint32).view(np.float32),
        np.ldexp(rng.uniform(-2, 2, 2048), rng.integers(-28, 17, 2048)).astype(np.float32),
        rng.integers(-4096, 4096, 2048).astype(np.float32) * np.float32(2.0**-25),
    ])  # fmt: skip
    with np.errstate(all="ignore"):
        want = data.astype(np.float16).astype(np.float32)
    got = runner.run(k.build(), (data.size // 64 // width, 1, 1), [data, np.zeros_like(data)])[1]
    numbers = ~np.isnan(want)
    assert got[numbers].tobytes() == want[numbers].tobytes()
    assert np.isnan(got[~numbers]).all()


def test_operands_are_those_of_the_table() -> None:
    """`_LOOSE` is written for the operands that the table draws."""
    names = {case.name for case in table(Scalar.F32)}
    assert set(_LOOSE) <= names
    pow_case = next(case for case in table(Scalar.F32) if case.name == "pow")
    assert (operands(pow_case, Scalar.F32, 97, 1)[0] > 0).all()
