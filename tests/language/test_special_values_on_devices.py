"""NaN, infinities and negative bases on each API, where 8c6e0f6 lost them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.conformance.node_checks import run_kernel
from tflgpu.conformance.target import DeviceUnderTest
from tflgpu.contract.device import Device
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.plugins.registry import registry

from tests.running import first_results
from tests.small_models import small_model

NAN, INF, PI = math.nan, math.inf, math.pi
DEVICES = [("cpu_ref", 1), ("opencl", 0), ("vulkan", 0), ("wgpu", 0)]
#: Of two operands, four lanes each: what is computed, the operands, and what it should give.
CASES: dict[str, tuple[Callable[..., Expr], list[float], list[float], list[float]]] = {
    "relu": (lambda k, x, y: k.max(x, 0.0), [NAN, -1, 2, -INF], [0] * 4, [NAN, 0, 2, 0]),
    "relu6": (lambda k, x, y: k.clamp(x, 0.0, 6.0), [NAN, -1, 7, INF], [0] * 4, [NAN, 0, 6, 6]),
    "maximum": (lambda k, x, y: k.max(x, y), [NAN, 1, 2, NAN], [1, NAN, 3, NAN],
                [NAN, NAN, 3, NAN]),
    "minimum": (lambda k, x, y: k.min(x, y), [NAN, 1, 2, INF], [1, NAN, 3, NAN],
                [NAN, NAN, 2, NAN]),
    "tanh": (lambda k, x, y: k.call("tanh", x), [NAN, INF, -INF, 0], [0] * 4, [NAN, 1, -1, 0]),
    "erf": (lambda k, x, y: k.call("erf", x), [NAN, INF, -INF, 0], [0] * 4, [NAN, 1, -1, 0]),
    "sign": (lambda k, x, y: k.call("sign", x), [NAN, INF, -3, 0], [0] * 4, [NAN, 1, -1, 0]),
    "whole powers": (lambda k, x, y: k.call("pow", x, y), [-2, -2, -8, 0], [3, 2, -1, -1],
                     [-8, 4, -0.125, INF]),
    "powers": (lambda k, x, y: k.call("pow", x, y), [-2, NAN, -INF, 0], [0.5, 0, 0.5, 0],
               [NAN, 1, INF, 1]),
    "a constant power": (lambda k, x, y: k.call("pow", x, 2.0), [-3, NAN, -INF, 0], [0] * 4,
                         [9, NAN, INF, 0]),
    "angles of zeros": (lambda k, x, y: k.call("atan2", x, y), [-0.0, 0, 0, -0.0],
                        [-1, -0.0, -2, 0.0], [-PI, PI, PI, 0]),
    "angles of tiny numbers": (lambda k, x, y: k.call("atan2", x, y), [-1e-40, 1e-40, -1e-40, -1],
                               [-1, -3, 3, -1e-40], [-PI, PI, 0, -PI / 2]),
    "inequality": (lambda k, x, y: k.cast(x.ne(y), Scalar.F32), [NAN, 1, 1, 1],
                   [NAN, NAN, 2, 1], [1, 1, 1, 0]),
    "is it itself": (lambda k, x, y: k.cast(x.ne(x), Scalar.F32), [NAN, INF, 1, -NAN], [0] * 4,
                     [1, 0, 0, 1]),
}  # fmt: skip


@pytest.fixture(scope="module", params=DEVICES, ids=lambda d: f"{d[0]}:{d[1]}")
def device(request: pytest.FixtureRequest, require_backend: Any) -> Iterator[Device]:
    backend, index = request.param
    require_backend(backend)
    opened = DeviceUnderTest.open(registry(), backend, index)
    assert isinstance(opened.device, Device)
    yield opened.device
    opened.close()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [1, 4])
def test_special_values(name: str, width: int, device: Device) -> None:
    write, left, right, want = CASES[name]
    k = Builder("special", (4, 1, 1))
    a, b = (k.buffer(n, Scalar.F32, width, "read") for n in "ab")
    out = k.buffer("out", Scalar.F32, width, "write")
    i = k.let(k.global_id(0))
    with k.if_(i < 4 // width):
        k.store(out, i, write(k, k.let(k.load(a, i)), k.let(k.load(b, i))))
    arrays = [np.array(left, np.float32), np.array(right, np.float32), np.zeros(4, np.float32)]
    found = run_kernel(device, k.build(), (1, 1, 1), arrays)[2]
    np.testing.assert_allclose(found, np.array(want, np.float32), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("backend", ["opencl", "vulkan", "wgpu"])
def test_a_number_minus_itself(backend: str) -> None:
    """x - x in the loads of a kernel that reads it, from one buffer: llvmpipe made 0 of it."""
    x = np.float32([[NAN, INF, 3, -INF, 2]])
    model = small_model(
        {"x": (1, 5), "zero": (1, 5), "first": np.int32([0, 1]), "size": np.int32([1, 4]),
         "y": (1, 4)}, "zero = SUB(x, x)", "y = SLICE(zero, first, size)",
    )  # fmt: skip
    with (
        tflgpu.GpuDelegate(backend=backend, allow_fallback=False) as delegate,
        tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate]) as interpreter,
    ):
        (y,) = first_results(interpreter, [x])
    np.testing.assert_array_equal(y, [[NAN, 0, NAN, 0]])


def test_a_lane_is_its_own_business(device: Device) -> None:
    """PoCL's sin of a vector with a NaN and a huge number is wrong in the other lanes."""
    k = Builder("lanes", (1, 1, 1))
    src, out = k.buffer("src", Scalar.F32, 4, "read"), k.buffer("out", Scalar.F32, 4, "write")
    k.store(out, 0, k.call("sin", k.load(src, 0)))
    arrays = [np.float32([NAN, 1e-30, 1, 3e38]), np.zeros(4, np.float32)]
    found = run_kernel(device, k.build(), (1, 1, 1), arrays)[1]
    assert math.isnan(found[0])
    np.testing.assert_allclose(found[1:3], np.sin(arrays[0][1:3]), atol=1e-6)
    assert abs(found[3]) <= 1
