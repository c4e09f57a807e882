"""Runs a small plan on a device, to measure its speed and to check that its results are right.

The plan is the work of a small network at batch 1: a row of dependent pointwise convolutions
with an input and an output on the host, so that launching, waiting and copying count as they do
in real models.
"""

from __future__ import annotations

import time
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING

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
from tflgpu.contract.device import Device, Recording
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.language.builder import Builder
from tflgpu.language.types import Scalar

if TYPE_CHECKING:
    from tflgpu.language.kernel import Kernel

_PIXELS, _CHANNELS, _LAYERS = 1024, 64, 8
_SLICES = _CHANNELS // 4
_MOST_GROUP = 64
_SHAPE = (_PIXELS, _CHANNELS)
_NBYTES = _PIXELS * _CHANNELS * 4
_BUDGET = 0.15  # seconds of running, after the first run
_RUNS = 3, 50  # least and most
#: f32 sums of 64 products, eight times over, differ by some 1e-6 in their order of summation.
_TOLERANCE = 1e-4


def measure(device: Device) -> float:
    """Median seconds of the test plan on a device, from host arrays to host arrays.

    Takes some 0.2 s after the kernel is compiled.

    Raises:
        DeviceError: the device failed, or gave a wrong result; says by how much.
    """
    x, _, expected = _numbers()
    with closing(small_recording(device)) as recording:
        recording.inputs[0][...] = x
        recording.run()
        error = float(np.max(np.abs(recording.outputs[0] - expected)) / np.max(expected))
        if not error <= _TOLERANCE:  # a NaN too
            raise DeviceError(f"its result is wrong: off by {error:.2g} of the largest value")
        least, most = _RUNS
        times: list[float] = []
        while len(times) < least or (sum(times) < _BUDGET and len(times) < most):
            start = time.perf_counter()
            recording.inputs[0][...] = x
            recording.run()
            times.append(time.perf_counter() - start)
            if sum(times) > 2 * _BUDGET:
                break
        return float(np.median(times))


def small_recording(device: Device) -> Recording:
    """The test plan, loaded.

    Raises:
        DeviceError: the device could not load it.
    """
    return device.load(_plan(device, _numbers()[1]))


def _plan(device: Device, weights: Array) -> Plan:
    alignment = device.alignment
    stride = -(-_NBYTES // alignment) * alignment
    # A power of two, so that it divides the number of invocations.
    group = 1 << (min(_MOST_GROUP, device.caps.max_workgroup).bit_length() - 1)
    kernel = _pointwise(group)
    arena = [ArenaRef(i * stride, _NBYTES) for i in range(2)]
    refs: list[Ref] = [InputRef(0), *(arena[i % 2] for i in range(_LAYERS - 1)), OutputRef(0)]
    groups = (_PIXELS * _SLICES // group, 1, 1)
    dispatches = tuple(
        PlannedDispatch(kernel, groups, (refs[i], ConstRef(0), refs[i + 1]), f"layer {i}")
        for i in range(_LAYERS)
    )
    edges = [PlannedIO(name, _SHAPE, DType.F32, _NBYTES) for name in ("x", "y")]
    return Plan(2 * stride, alignment, (weights.reshape(-1),), (edges[0],), (edges[1],), dispatches)


@cache
def _pointwise(group: int) -> Kernel:
    """One pixel and four output channels an invocation, then RELU."""
    k = Builder("pointwise", (group, 1, 1))
    src = k.buffer("src", Scalar.F32, 4, "read")
    weights = k.buffer("weights", Scalar.F32, 4, "read")
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    at = k.let(k.global_id(0), "at")
    pixel = k.let(at // _SLICES, "pixel")
    column = k.let(at % _SLICES, "column")
    total = k.var(k.f32(0, 4), "total")
    with k.loop(0, _SLICES) as row:
        x = k.let(k.load(src, pixel * _SLICES + row), "x")
        for lane in range(4):
            k.fma_to(total, x.lane(lane), k.load(weights, (row * 4 + lane) * _SLICES + column))
    k.store(dst, at, k.max(total, 0.0))
    return k.build()


@cache
def _numbers() -> tuple[Array, Array, Array]:
    """Input, weights (input channel, output channel), and the result in double precision."""
    random = np.random.default_rng(7)
    x = random.uniform(0, 1, _SHAPE).astype(np.float32)
    # Variance 2 / channels keeps values of the same size through every RELU.
    spread = (2 / _CHANNELS) ** 0.5
    weights = random.normal(0, spread, (_CHANNELS, _CHANNELS)).astype(np.float32)
    expected = x.astype(np.float64)
    for _ in range(_LAYERS):
        expected = np.maximum(expected @ weights, 0)
    return x, weights, expected
