"""Matrix tiles: what the interpreter says they compute, what it and the checker refuse, and that
the printed code does the same on devices that have them."""

from __future__ import annotations

import itertools
import math
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tflgpu.errors import KernelError
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.interpreter import interpret
from tflgpu.language.kernel import Kernel
from tflgpu.language.matrix import (
    Matrix,
    MatrixLoad,
    MatrixRole,
    MatrixStore,
    has_matrices,
)
from tflgpu.language.same import same
from tflgpu.language.tree import Stmt
from tflgpu.language.types import F16x4, F32x4, Scalar, Type, U32x4
from tflgpu_opencl.dialect import OpenCLDialect
from tflgpu_vulkan.spirv.module import module_of, text_of
from tflgpu_vulkan.spirv.target import Target

from tests.language.cl_runner import ClRunner

Array = npt.NDArray[Any]
PTX = OpenCLDialect(f16_arithmetic=True, matrix_tiles=True)
COOPERATIVE = Target(f16_arithmetic=True, matrix_tiles=True)


def product(
    depth: int = 3, subgroups: int = 2, width: int = 4, spare: int = 2, *, turned: bool = False
) -> Kernel:
    """``5 + A @ B + (A @ B) * 0.5``, 16 rows a subgroup: A is [rows, depth * 16], B is
    [depth * 16, 16], the result is [rows, 16]; ``turned``: A and B lie transposed in memory."""
    half, full = Type(Scalar.F16, width), Type(Scalar.F32, width)
    threads = 32 * subgroups
    rows, deep = 16 * subgroups, 16 * depth
    # Rows are further apart than they are long, so that a wrong stride shows.
    (a_lines, a_line), (b_lines, b_line) = (rows, deep), (deep, 16)
    if turned:
        (a_lines, a_line), (b_lines, b_line) = (deep, rows), (16, deep)
    a_pitch, b_pitch, pitch = ((n + 8 * spare) // width for n in (a_line, b_line, 16))
    k = Builder("product", (threads, 1, 1))
    a = k.buffer("a", Scalar.F16, width, "read")
    b = k.buffer("b", Scalar.F16, width, "read")
    dst = k.buffer("dst", Scalar.F32, width, "write")
    left = k.shared("left", half, a_lines * a_pitch)
    right = k.shared("right", half, b_lines * b_pitch)
    result = k.shared("result", full, rows * pitch)
    lane, first = k.local_id(0), k.let(k.group_id(0) * (rows * deep // width), "first")
    with k.loop(lane, rows * deep // width, threads) as i:
        row = i // (a_line // width)
        k.store_shared(left, row * a_pitch + i % (a_line // width), k.load(a, first + i))
    with k.loop(lane, deep * 16 // width, threads) as i:
        at = i // (b_line // width) * b_pitch + i % (b_line // width)
        k.store_shared(right, at, k.load(b, i))
    k.barrier()
    total, half_total = k.matrix_fill(5.0), k.matrix_fill()
    top = k.let(k.subgroup_id() * 16, "top")
    with k.loop(0, depth, name="step") as step:
        x_at, y_at = top * a_pitch + step * (16 // width), step * (16 * b_pitch)
        if turned:
            x_at = step * (16 * a_pitch) + k.subgroup_id() * (16 // width)
            y_at = step * (16 // width)
        x = k.matrix_load(left, x_at, a_pitch, MatrixRole.A, transposed=turned)
        y = k.matrix_load(right, y_at, b_pitch, MatrixRole.B, transposed=turned)
        k.matrix_multiply(total, x, y)
        k.matrix_multiply(half_total, x, y)
    k.matrix_add(total, half_total, 0.5)
    k.matrix_store(result, top * pitch, pitch, total)
    k.barrier()
    out = k.let(k.group_id(0) * (rows * 16 // width), "out")
    with k.loop(lane, rows * 16 // width, threads) as i:
        at = i // (16 // width) * pitch + i % (16 // width)
        k.store(dst, out + i, k.load_shared(result, at))
    return k.build()


def product_in_words(depth: int = 3, barriers: int = 3) -> Kernel:
    """`product`'s ``5 + A @ B`` of a subgroup, for which both operands, and then the result, lie
    in one array of u32x4."""
    k = Builder("product_in_words", (32, 1, 1))
    a, b = (k.buffer(name, Scalar.U32, 4, "read") for name in "ab")
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    a_pitch, lane = depth * 2 + 1, k.local_id(0)
    words = k.shared("words", U32x4, 16 * a_pitch + depth * 48)
    with k.loop(lane, 32 * depth, 32) as i:
        at = k.let(i // (depth * 2) * a_pitch + i % (depth * 2), "at")
        k.store_shared(words, at, k.load(a, k.group_id(0) * (32 * depth) + i))
        k.store_shared(words, 16 * a_pitch + i // 2 * 3 + i % 2, k.load(b, i))
    k.barrier()
    total = k.matrix_fill(5.0)
    for step in range(depth):
        x = k.matrix_load(words, step * 2, a_pitch, MatrixRole.A)
        y = k.matrix_load(words, 16 * a_pitch + step * 48, 3, MatrixRole.B)
        k.matrix_multiply(total, x, y)
    if barriers == 3:
        k.barrier()
    k.matrix_store(words, 0, 5, total)
    k.barrier()
    with k.loop(lane, 64, 32) as i:
        found = k.bitcast(k.load_shared(words, i // 4 * 5 + i % 4), Scalar.F32)
        k.store(dst, k.group_id(0) * 64 + i, found)
    return k.build()


def operands(depth: int, subgroups: int, groups: int) -> list[Array]:
    """Whole numbers, whose sums are exact in any order."""
    rng = np.random.default_rng(5)
    a = rng.integers(-9, 9, groups * subgroups * 16 * depth * 16).astype(np.float16)
    b = rng.integers(-9, 9, depth * 16 * 16).astype(np.float16)
    return [a, b, np.full(groups * subgroups * 256, np.nan, np.float32)]


def expected(arrays: list[Array], depth: int) -> Array:
    a = arrays[0].astype(np.float64).reshape(-1, depth * 16)
    b = arrays[1].astype(np.float64).reshape(depth * 16, 16)
    return np.asarray((5 + 1.5 * (a @ b)).astype(np.float32).ravel())


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize(("depth", "subgroups", "groups"), [(1, 1, 1), (3, 2, 3), (2, 8, 2)])
def test_the_interpreter_multiplies(depth: int, subgroups: int, groups: int, width: int) -> None:
    arrays = operands(depth, subgroups, groups)
    interpret(product(depth, subgroups, width), (groups, 1, 1), arrays)
    np.testing.assert_array_equal(arrays[2], expected(arrays, depth))


def words_of(arrays: list[Array]) -> list[Array]:
    """Operands as `product_in_words` reads them."""
    return [arrays[0].view(np.uint32), arrays[1].view(np.uint32), arrays[2].copy()]


def test_tiles_in_the_bits_of_u32() -> None:
    arrays = operands(3, 1, 2)
    found = words_of(arrays)
    interpret(product_in_words(), (2, 1, 1), found)
    exact = arrays[0].reshape(-1, 48).astype(np.float64) @ arrays[1].reshape(48, 16)
    np.testing.assert_array_equal(found[2], (5 + exact).astype(np.float32).ravel())


def test_a_result_stored_over_operands_before_the_barrier() -> None:
    with pytest.raises(KernelError, match="words is overwritten without a barrier"):
        interpret(product_in_words(barriers=2), (2, 1, 1), words_of(operands(3, 1, 2)))


def transposed(arrays: list[Array], depth: int, subgroups: int) -> list[Array]:
    """Operands that lie transposed in memory, each workgroup's A by itself."""
    a = arrays[0].reshape(-1, subgroups * 16, depth * 16).swapaxes(1, 2)
    b = arrays[1].reshape(depth * 16, 16).T
    return [np.ascontiguousarray(a).ravel(), np.ascontiguousarray(b).ravel(), arrays[2].copy()]


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize(("depth", "subgroups", "groups"), [(1, 1, 1), (3, 2, 3), (2, 8, 2)])
def test_the_interpreter_loads_transposed(
    depth: int, subgroups: int, groups: int, width: int
) -> None:
    arrays = operands(depth, subgroups, groups)
    turned = transposed(arrays, depth, subgroups)
    interpret(product(depth, subgroups, width, turned=True), (groups, 1, 1), turned)
    np.testing.assert_array_equal(turned[2], expected(arrays, depth))


def test_products_are_f32_of_f16_operands() -> None:
    arrays = operands(1, 1, 1)
    arrays[0][:], arrays[1][:] = 60000, 2.0**-24
    arrays[0][1] = -60000
    interpret(product(1, 1), (1, 1, 1), arrays)
    # Products beyond f16, subnormal operands, and 1.5 * 14 products in the row with a minus.
    unit = 60000 * 2.0**-24
    np.testing.assert_allclose(arrays[2][:16], 5 + 1.5 * 14 * unit, rtol=1e-7)
    np.testing.assert_allclose(arrays[2][16:], 5 + 1.5 * 16 * unit, rtol=1e-7)


def with_special_numbers(arrays: list[Array], depth: int) -> list[Array]:
    """The operands, with NaN and infinities in some of A's rows and B's columns."""
    a, b = arrays[0].reshape(-1, depth * 16), arrays[1].reshape(depth * 16, 16)
    a[1, 2], a[3, 5], a[3, 6], a[6, 1], b[4, 9], b[7, 11] = (
        np.nan, np.inf, -np.inf, np.inf, np.nan, -np.inf,
    )  # fmt: skip
    return arrays


def test_what_goes_into_tiles_as_nan_comes_out_as_nan() -> None:
    arrays = with_special_numbers(operands(2, 1, 1), 2)
    interpret(product(2, 1), (1, 1, 1), arrays)
    with np.errstate(invalid="ignore"):
        want = expected(arrays, 2)
    assert np.isnan(want).sum() >= 32
    assert np.isinf(want).sum() > 5
    np.testing.assert_array_equal(arrays[2], want)


# What is refused


def start(threads: int = 64, type: Type = F16x4) -> tuple[Builder, Any, Any]:
    k = Builder("broken", (threads, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    half, full = k.shared("half", type, 1024), k.shared("full", F32x4, 1024)
    k.store(dst, k.global_id(0), k.f32(0.0))
    return k, half, full


def run(k: Builder) -> None:
    kernel = k.build()
    interpret(kernel, (1, 1, 1), [np.zeros(kernel.workgroup[0], np.float32)])


def fill(k: Builder, array: Any, count: int = 1024) -> None:
    with k.loop(k.local_id(0), count, k.workgroup[0]) as i:
        k.store_shared(array, i, k.const(1.0, array.type))


def test_a_matrix_read_before_the_barrier() -> None:
    k, half, _ = start()
    fill(k, half)
    k.matrix_load(half, 0, 4, MatrixRole.A)
    with pytest.raises(KernelError, match="half is read without a barrier after its write"):
        run(k)


def test_a_result_read_before_the_barrier() -> None:
    k, _, full = start(32)
    k.matrix_store(full, 0, 4, k.matrix_fill())
    k.let(k.load_shared(full, k.local_id(0)), "early")
    with pytest.raises(KernelError, match="full is read without a barrier after its write"):
        run(k)


def test_operands_overwritten_before_the_barrier() -> None:
    k, half, _ = start()
    fill(k, half)
    k.barrier()
    k.matrix_load(half, 0, 4, MatrixRole.A)
    fill(k, half, 1)
    with pytest.raises(KernelError, match="half is overwritten without a barrier"):
        run(k)


def test_two_subgroups_store_one_tile() -> None:
    k, _, full = start()
    k.matrix_store(full, 0, 4, k.matrix_fill())
    with pytest.raises(KernelError, match="two subgroups write one element of full"):
        run(k)


def test_a_result_stored_twice() -> None:
    k, _, full = start(32)
    total = k.matrix_fill()
    k.matrix_store(full, 0, 4, total)
    k.matrix_store(full, 60, 4, total)  # the last row of the first
    with pytest.raises(KernelError, match="full is overwritten without a barrier"):
        run(k)


@pytest.mark.parametrize(("index", "message"), [
    (1024 - 60, r"half\[1024\] of 1024 elements"),
    (1, "begins at an element of half that is not at a multiple of 16 bytes"),
])  # fmt: skip
def test_a_matrix_in_the_wrong_place(index: int, message: str) -> None:
    k, half, _ = start()
    fill(k, half)
    k.barrier()
    k.matrix_load(half, index, 4, MatrixRole.B)
    with pytest.raises(KernelError, match=message):
        run(k)


def test_a_subgroup_that_disagrees() -> None:
    k, half, _ = start()
    fill(k, half)
    k.barrier()
    k.matrix_load(half, k.local_id(0) % 2 * 4, 4, MatrixRole.A)
    with pytest.raises(KernelError, match="disagree on where a matrix lies"):
        run(k)


def test_a_matrix_under_a_condition_that_differs() -> None:
    k, _, full = start()
    with k.if_(k.local_id(0) < 32):
        k.matrix_store(full, 0, 4, k.matrix_fill())
    with pytest.raises(KernelError, match="a matrix statement under a condition that may differ"):
        k.build()


def test_a_matrix_after_some_have_returned() -> None:
    k, _, _ = start()
    with k.if_(k.local_id(0) < 32):
        k.return_()
    k.matrix_fill()
    with pytest.raises(KernelError, match="a matrix statement that invocations which returned"):
        k.build()


def test_a_workgroup_that_is_not_whole_subgroups() -> None:
    k = Builder("broken", (16, 4, 1))
    k.buffer("dst", Scalar.F32, 1, "write")
    k.matrix_fill()
    with pytest.raises(KernelError, match="first size must be a multiple of 32"):
        k.build()


def test_a_matrix_outside_its_block() -> None:
    k, _, full = start()
    with k.loop(0, 2):
        total = k.matrix_fill()
    k.matrix_store(full, 0, 4, total)
    with pytest.raises(KernelError, match="matrix sum is used outside the block that defines it"):
        k.build()


@pytest.mark.parametrize(("stmt", "message"), [
    (lambda half, full: MatrixLoad(Matrix("m", MatrixRole.A), full, _zero(), 4), "array full"),
    (lambda half, full: MatrixStore(half, _zero(), 4, Matrix("m", MatrixRole.ACCUMULATOR)),
     "array half"),
    (lambda half, full: MatrixStore(full, _zero(), 3, Matrix("m", MatrixRole.ACCUMULATOR)),
     "overlap"),
    (lambda half, full: MatrixLoad(Matrix("m", MatrixRole.B), half, _zero(), 5), "multiple of 16"),
    (lambda half, full: MatrixLoad(Matrix("m", MatrixRole.ACCUMULATOR), full, _zero(), 4),
     "m is accumulator where a is needed"),
])  # fmt: skip
def test_a_statement_that_is_wrong_by_itself(
    stmt: Callable[[Any, Any], Stmt], message: str
) -> None:
    k, half, full = start()
    made = stmt(half, full)
    if isinstance(made, MatrixStore):
        k.matrix_fill(name="m")
    k.emit(made)
    with pytest.raises(KernelError, match=message):
        k.build()


def _words() -> Any:
    return Builder("", (1, 1, 1)).shared("words", U32x4, 64)


def _zero() -> Any:
    return Builder("", (1, 1, 1)).i32(0)


def test_operands_in_the_wrong_order() -> None:
    k, half, _ = start()
    a, b = (k.matrix_load(half, 0, 4, role) for role in (MatrixRole.A, MatrixRole.B))
    with pytest.raises(KernelError, match="matrix m_1 is b where a is needed"):
        k.matrix_multiply(k.matrix_fill(), b, a)


# Printed code


def test_matrix_kernels_are_told_apart() -> None:
    kernels = [product(1), product(2), product(1, spare=3), product(1, subgroups=1)]
    kernels += [product(1, subgroups=1, turned=True)]
    assert not [pair for pair in itertools.combinations(kernels, 2) if same(*pair)]
    assert product(2) is kernels[1]
    assert has_matrices(product(1))


def test_devices_without_matrices_refuse() -> None:
    with pytest.raises(KernelError, match="matrix tiles, which this device does not have"):
        OpenCLDialect(f16_arithmetic=True).source(product())
    with pytest.raises(KernelError, match="matrix tiles, which this device does not have"):
        module_of(product(), Target(f16_arithmetic=True))
    assert not DeviceCaps().matrix_tiles


def test_ptx_text() -> None:
    source = PTX.source(product(width=4))
    # Rows of 16 bytes and more are what ldmatrix reads, and arrays begin where they may.
    assert source.count("__attribute__((aligned(16)));") == 3
    assert "matrix_load_a((__local const half*)left + (top * 16 + k_step * 4) * 4, 64)" in source
    assert "matrix_store((__local float*)result + top * 8 * 4, 32, sum);" in source
    source = PTX.source(product(turned=True))
    assert "= matrix_load_a_transposed((__local const half*)left + " in source
    assert "= matrix_load_b_transposed((__local const half*)right + k_step * 4 * 4, 64);" in source


def test_text_of_tiles_in_words() -> None:
    source = PTX.source(product_in_words())
    assert "matrix_load_a((__local const half*)words + 2 * 8, 56)" in source
    assert "matrix_store((__local float*)words + 0 * 4, 20, sum);" in source
    text = text_of(product_in_words(), COOPERATIVE)
    assert text.count("OpCooperativeMatrixLoadKHR") == 6


def test_spirv_text() -> None:
    text = text_of(product(width=4), COOPERATIVE)
    assert "OpMemoryModel Logical Vulkan" in text
    for line in text.splitlines():
        if "OpControlBarrier" in line:
            # AcquireRelease | WorkgroupMemory | MakeAvailable | MakeVisible
            semantics = line.split()[-1]
            assert f"{semantics} = OpConstant" in text
            constant = next(x for x in text.splitlines() if f"{semantics} = OpConstant" in x)
            assert constant.split()[-1] == str(0x8 | 0x100 | 0x2000 | 0x4000)
    shared = [x for x in text.splitlines() if "OpCooperativeMatrix" in x and "MulAdd" not in x]
    assert len(shared) == 3
    assert all(x.endswith("NonPrivatePointer") for x in shared)


def test_spirv_text_of_transposed_operands() -> None:
    layouts = []
    for turned in (False, True):
        lines = text_of(product(turned=turned), COOPERATIVE).splitlines()
        numbers = {line.split()[0]: line.split()[-1] for line in lines if "OpConstant " in line}
        moves = ("OpCooperativeMatrixLoad", "OpCooperativeMatrixStore")
        moved = [line.split()[-3] for line in lines if any(move in line for move in moves)]
        layouts += [numbers[layout] for layout in moved]
    # Row by row, and column by column; a result is stored row by row in any case.
    assert layouts == ["0", "0", "0", "1", "1", "0"]


def test_spirv_rounds_what_is_converted_there_and_back() -> None:
    """NVIDIA's compiler leaves out two conversions in a row."""
    k = Builder("rounding", (1, 1, 1))
    src, dst = k.buffer("src", Scalar.F32, 4, "read"), k.buffer("dst", Scalar.F32, 4, "write")
    value = k.load(src, 0)
    k.store(dst, 0, value + k.cast(k.cast(value, Scalar.F16), Scalar.F32))
    text = text_of(k.build(), COOPERATIVE)
    made = {line.split()[0]: line.split()[2:] for line in text.splitlines() if " = " in line}
    total = [words for words in made.values() if words[0] == "OpFAdd"][-1]
    back, _, bits = made[total[-1]]
    assert (back, made[bits][0]) == ("OpBitcast", "OpBitwiseOr")


def test_spirv_val_accepts_it() -> None:
    tool = shutil.which("spirv-val")
    if tool is None:
        pytest.skip("spirv-val (package spirv-tools) is not installed")
    for width in (1, 4):
        done = subprocess.run(
            [tool, "--target-env", "vulkan1.3", "-"],
            input=module_of(product(width=width), COOPERATIVE), capture_output=True, check=False,
        )  # fmt: skip
        if b"Invalid capability operand: 6022" in done.stderr:
            pytest.skip("this spirv-val is older than SPV_KHR_cooperative_matrix (June 2023)")
        assert done.returncode == 0, (done.stdout + done.stderr).decode()


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize(("depth", "subgroups", "groups"), [(1, 1, 1), (3, 2, 3), (2, 8, 2)])
def test_an_opencl_device_multiplies(
    opencl: ClRunner, depth: int, subgroups: int, groups: int, width: int
) -> None:
    from tflgpu_opencl.device import OpenCLDevice

    device = OpenCLDevice(0)
    has_tiles, name = device.caps.matrix_tiles, device.info.name
    device.close()
    if not has_tiles:
        pytest.skip(f"{name} has no matrix tiles")
    arrays, run = operands(depth, subgroups, groups), opencl.run
    for given in (arrays, with_special_numbers([a.copy() for a in arrays], depth)):
        turned = transposed(given, depth, subgroups)
        kernels = [product(depth, subgroups, width, turned=each) for each in (False, True)]
        for kernel, memory in zip(kernels, (given, turned), strict=True):
            results = run(kernel, (groups, 1, 1), memory, PTX)
            with np.errstate(invalid="ignore"):
                np.testing.assert_array_equal(results[2], expected(given, depth))
        if subgroups == 1:
            results = run(product_in_words(depth), (groups, 1, 1), words_of(given), PTX)
            exact = given[0].reshape(-1, 16 * depth).astype(np.float64) @ given[1].reshape(-1, 16)
            with np.errstate(invalid="ignore"):
                want = (5 + exact).astype(np.float32).ravel()
            np.testing.assert_array_equal(results[2], want)


def test_an_accumulator_of_special_numbers_is_printed_as_opencl_spells_them() -> None:
    for value, text in ((math.nan, "NAN"), (-math.inf, "-INFINITY"), (1e39, "INFINITY")):
        k = Builder("fill", (32, 1, 1))
        dst = k.buffer("dst", Scalar.F32, 1, "write")
        shared = k.shared("shared", Type(Scalar.F32), 256)
        k.matrix_store(shared, 0, 16, k.matrix_fill(value))
        k.barrier()
        k.store(dst, 0, k.load_shared(shared, 0))
        assert f" = matrix_fill({text});\n" in PTX.source(k.build())
