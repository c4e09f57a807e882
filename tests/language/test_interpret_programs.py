"""The interpreter's control flow and memory, on whole programs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kernel_programs import PROGRAMS, ProgramCase
from tflgpu.errors import KernelError
from tflgpu.language.builder import Builder
from tflgpu.language.interpreter import interpret
from tflgpu.language.types import Scalar


@pytest.mark.parametrize("races", [True, False])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_program_gives_what_numpy_gives(make: Callable[[], ProgramCase], races: bool) -> None:
    program = make()
    arrays = [array.copy() for array in program.arrays]
    interpret(program.kernel, program.groups, arrays, races=races)
    for index, want in program.want.items():
        assert np.array_equal(arrays[index], want)


def test_a_grid_larger_than_a_batch() -> None:
    count = 100_003
    k = Builder("scale", (64, 1, 1))
    src, dst = k.buffer("src", Scalar.F32, 1, "read"), k.buffer("dst", Scalar.F32, 1, "write")
    i = k.let(k.global_id(0))
    with k.if_(i < count):
        k.store(dst, i, k.load(src, i) * 3.0)
    x = np.arange(count, dtype=np.float32)
    out = np.zeros(count, np.float32)
    interpret(k.build(), (-(-count // 64), 1, 1), [x, out])
    assert np.array_equal(out, x * 3)


def test_an_empty_dispatch_does_nothing() -> None:
    k = Builder("fill", (64, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    k.store(dst, k.global_id(0), k.f32(1))
    out = np.zeros(64, np.float32)
    interpret(k.build(), (0, 1, 1), [out])
    assert not out.any()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([], "kernel fill: 0 arrays for 1 buffers"),
        ([np.zeros(4, np.float64)], "wants flat f32 in multiples of 4, got float64"),
        ([np.zeros(6, np.float32)], r"multiples of 4, got float32\[6\]"),
        ([np.zeros((2, 4), np.float32)], r"flat f32 in multiples of 4, got float32\[2, 4\]"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays: list[np.ndarray], message: str) -> None:
    k = Builder("fill", (1, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    k.store(dst, k.global_id(0), k.f32(1, 4))
    with pytest.raises(KernelError, match=message):
        interpret(k.build(), (1, 1, 1), arrays)
