"""Printed OpenCL C of whatever a device can be asked, and of dialects that no device here asks for:
without f16 arithmetic, without a fast fma. The conformance suite runs the rest."""

from __future__ import annotations

import numpy as np
import pytest
from tflgpu.conformance.memory_nodes import move, move_data
from tflgpu.conformance.node_table import GROUPS, build_table, result_of, table, table_arrays
from tflgpu.language.builder import Builder
from tflgpu.language.interpreter import interpret
from tflgpu.language.types import Scalar
from tflgpu_opencl.dialect import OpenCLDialect

from tests.language.cl_runner import ClRunner


def needs_half_arithmetic(opencl: ClRunner) -> None:
    if not opencl.f16_arithmetic:
        pytest.skip(f"{opencl.device.name} does not compute in f16")


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_fma_in_f16(opencl: ClRunner, width: int) -> None:
    needs_half_arithmetic(opencl)
    cases = [c for c in table(Scalar.F16) if c.name == "fma"]
    kernel = build_table(cases, Scalar.F16, width)
    arrays, _ = table_arrays(cases, Scalar.F16, width, seed=1)
    got = opencl.run(kernel, GROUPS, arrays)
    interpret(kernel, GROUPS, arrays)
    found, want = (result_of(cases, 0, a, width) for a in (got, arrays))
    # A product and a sum of f16 round twice; where they cancel, the error is in units of the
    # product, which is below 1024 for these operands: half a unit of it is 0.25.
    assert np.abs(found.astype(np.float64) - want).max() <= 0.25 + np.spacing(np.float16(1024)) / 2


def test_fma_without_fast_hardware(opencl: ClRunner) -> None:
    k = Builder("mad", (1, 1, 1))
    a = k.buffer("a", Scalar.F32, 4, "read")
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    x = k.let(k.load(a, k.global_id(0)))
    k.store(dst, k.global_id(0), k.fma(x, x, 1.0))
    data = np.arange(16, dtype=np.float32)
    dialect = OpenCLDialect(fast_fma=False)
    assert "mad(" in dialect.source(k.build())
    got = opencl.run(k.build(), (4, 1, 1), [data, np.zeros_like(data)], dialect)
    assert np.array_equal(got[1], data * data + 1)


@pytest.mark.parametrize("lanes", [False, True], ids=["vectors", "lanes"])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize(
    "scalar", [Scalar.I8, Scalar.U8, Scalar.I16, Scalar.F16], ids=lambda s: s.value
)
def test_small_elements_move(opencl: ClRunner, scalar: Scalar, width: int, lanes: bool) -> None:
    data = move_data(scalar, 12 * width)
    kernel = move(scalar, width, lanes, None)
    got = opencl.run(kernel, (3, 1, 1), [data, np.zeros_like(data)])
    assert got[1].tobytes() == data.tobytes()


@pytest.mark.parametrize("half_values", [False, True], ids=["no_f16", "f16"])
@pytest.mark.parametrize("lanes", [False, True], ids=["vectors", "lanes"])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_f16_through_f32(opencl: ClRunner, width: int, lanes: bool, half_values: bool) -> None:
    if half_values:
        needs_half_arithmetic(opencl)
    data = move_data(Scalar.F16, 12 * width)
    kernel = move(Scalar.F16, width, lanes, Scalar.F32)
    dialect = OpenCLDialect(f16_arithmetic=half_values)
    got = opencl.run(kernel, (3, 1, 1), [data, np.zeros_like(data)], dialect)
    assert got[1].tobytes() == data.tobytes()


def test_f16_values_are_moved_chosen_and_compared_without_f16_arithmetic(opencl: ClRunner) -> None:
    k = Builder("choose", (4, 1, 1))
    src, dst = (k.buffer(n, Scalar.F16, 4, a) for n, a in (("src", "read"), ("dst", "write")))
    x = k.let(k.load(src, k.global_id(0)))
    low = k.min(x, 0.25)
    picked = k.select(x > 0.5, x, k.vec([low.lane(i) for i in (1, 0, 3, 2)]))
    k.store(dst, k.global_id(0), k.select(picked.lane(0) < -1, -picked, picked))
    data = move_data(Scalar.F16, 32)
    arrays = [data, np.zeros_like(data)]
    got = opencl.run(k.build(), (2, 1, 1), arrays, OpenCLDialect(f16_arithmetic=False))
    interpret(k.build(), (2, 1, 1), arrays)
    assert np.array_equal(got[1], arrays[1], equal_nan=True)


def test_not_a_number_as_a_literal(opencl: ClRunner) -> None:
    k = Builder("nan", (1, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    k.store(dst, 0, k.f32(float("nan")))
    got = opencl.run(k.build(), (1, 1, 1), [np.zeros(1, np.float32)])
    assert np.isnan(got[0]).all()
