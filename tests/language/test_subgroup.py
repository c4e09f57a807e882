"""Shuffles among neighbours: what the interpreter says they give, what it and the checker refuse,
and how each language writes them."""

from __future__ import annotations

import itertools
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
from tflgpu.language.same import same
from tflgpu.language.subgroup import SubgroupShuffleXor, group_size, largest_group
from tflgpu.language.tree import Const, Name
from tflgpu.language.types import BOOL, F32, I32, Scalar, Type
from tflgpu_cpu_ref.device import CAPS, CpuRefDevice
from tflgpu_opencl.dialect import OpenCLDialect
from tflgpu_vulkan.spirv.module import module_of, text_of
from tflgpu_vulkan.spirv.target import Target
from tflgpu_wgpu.dialect import WgslDialect

from tests.language.cl_runner import ClRunner

Array = npt.NDArray[Any]
SCALARS = [Scalar.F32, Scalar.I32, Scalar.U32, Scalar.F16]
PTX = OpenCLDialect(f16_arithmetic=True, subgroup_shuffle=32, shuffle_ptx=True)
KHR = OpenCLDialect(f16_arithmetic=True, subgroup_shuffle=32)
TARGET = Target(f16_arithmetic=True, subgroup_shuffle=32)
WGSL = WgslDialect(f16_arithmetic=True, subgroup_shuffle=32)


def exchange(
    mask: int, scalar: Scalar = Scalar.F32, width: int = 1, workgroup: Any = (64, 1, 1)
) -> Kernel:
    """``dst[i] = src[i ^ mask]``."""
    k = Builder("exchange", workgroup)
    src, dst = k.buffer("src", scalar, width, "read"), k.buffer("dst", scalar, width, "write")
    place = k.local_id(1) * workgroup[0] + k.local_id(0)
    i = k.let(k.group_id(0) * (workgroup[0] * workgroup[1]) + place, "i")
    k.store(dst, i, k.subgroup_shuffle_xor(k.load(src, i), mask, "theirs"))
    return k.build()


def numbers(count: int, scalar: Scalar) -> Array:
    return np.random.default_rng(2).permutation(count).astype(scalar.numpy)


@pytest.mark.parametrize("workgroup", [(64, 1, 1), (32, 3, 1)])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("scalar", SCALARS, ids=lambda s: s.value)
def test_the_interpreter_exchanges(scalar: Scalar, width: int, workgroup: Any) -> None:
    count = 2 * int(np.prod(workgroup))
    data = numbers(count * width, scalar)
    for mask in range(1, 32):
        arrays = [data, np.zeros_like(data)]
        interpret(exchange(mask, scalar, width, workgroup), (2, 1, 1), arrays)
        want = data.reshape(count, width)[np.arange(count) ^ mask]
        np.testing.assert_array_equal(arrays[1].reshape(count, width), want)


@pytest.mark.parametrize("size", [1, 2, 8, 32])
@pytest.mark.parametrize("op", ["add", "min", "max"])
def test_a_reduction_has_one_order_and_every_neighbour_its_result(op: str, size: int) -> None:
    k = Builder("reduction", (32, 1, 1))
    src, dst = (k.buffer(n, Scalar.F32, 1, a) for n, a in (("src", "read"), ("dst", "write")))
    i = k.let(k.global_id(0), "i")
    k.store(dst, i, k.subgroup_reduce(op, k.load(src, i), size))
    data = np.random.default_rng(0).normal(0, 1e4, 64).astype(np.float32)
    arrays = [data, np.zeros_like(data)]
    interpret(k.build(), (2, 1, 1), arrays)
    merge = {"add": np.add, "min": np.minimum, "max": np.maximum}[op]
    want = data.reshape(-1, size)
    while want.shape[1] > 1:
        want = merge(*np.split(want, 2, axis=1))
    np.testing.assert_array_equal(arrays[1], np.repeat(want, size))


def test_a_value_that_all_have_stays_so() -> None:
    k = Builder("same", (8, 1, 1))
    dst = k.buffer("dst", Scalar.I32, 1, "write")
    k.store(dst, k.global_id(0), k.subgroup_shuffle_xor(k.group_id(0) + 5, 3))
    found = np.zeros(24, np.int32)
    interpret(k.build(), (3, 1, 1), [found])
    np.testing.assert_array_equal(found, np.repeat([5, 6, 7], 8))


def test_a_variable_is_read_when_it_is_shuffled() -> None:
    k = Builder("variable", (4, 1, 1))
    dst = k.buffer("dst", Scalar.I32, 1, "write")
    value = k.var(k.local_id(0))
    with k.loop(0, 3):
        k.set(value, k.subgroup_shuffle_xor(value, 1) * 10)
    k.store(dst, k.local_id(0), value)
    found = np.zeros(4, np.int32)
    interpret(k.build(), (1, 1, 1), [found])
    np.testing.assert_array_equal(found, [1000, 0, 3000, 2000])


# What is refused


def start(workgroup: tuple[int, int, int] = (64, 1, 1)) -> Builder:
    k = Builder("broken", workgroup)
    k.buffer("dst", Scalar.F32, 1, "write")
    return k


@pytest.mark.parametrize("mask", [0, -1, 32, 1.0])
def test_a_mask_out_of_range(mask: Any) -> None:
    k = start()
    with pytest.raises(KernelError, match=r"broken: a shuffle by the mask .* from 1 to 31"):
        k.subgroup_shuffle_xor(k.f32(1), mask)
    k.emit(SubgroupShuffleXor("x", Const(F32, 1.0), mask))
    with pytest.raises(KernelError, match="kernel broken: a shuffle by the mask"):
        k.build()


def test_a_boolean() -> None:
    k = start()
    with pytest.raises(KernelError, match="a shuffle of bool"):
        k.subgroup_shuffle_xor(k.local_id(0) > 1, 1)
    k.emit(SubgroupShuffleXor("x", Const(BOOL, True), 1))
    with pytest.raises(KernelError, match="a shuffle of bool"):
        k.build()


@pytest.mark.parametrize(("op", "size", "message"), [
    ("mul", 4, "a reduction by 'mul', not add, min, max"),
    ("add", 3, "over 3 neighbours, not a power of two"),
    ("add", 64, "over 64 neighbours"), ("add", 0, "over 0 neighbours"),
])  # fmt: skip
def test_a_reduction_that_there_is_not(op: str, size: int, message: str) -> None:
    k = start()
    with pytest.raises(KernelError, match=message):
        k.subgroup_reduce(op, k.f32(1), size)


def test_a_workgroup_that_is_not_whole_groups() -> None:
    for workgroup, mask in (((8, 8, 1), 8), ((12, 1, 1), 5), ((1, 64, 1), 1)):
        k = start(workgroup)
        k.subgroup_shuffle_xor(k.f32(1), mask)
        with pytest.raises(KernelError, match=f"multiple of {group_size(mask)}"):
            k.build()
    k = start((12, 1, 1))
    k.subgroup_shuffle_xor(k.f32(1), 3)
    k.build()


def _under_a_condition(k: Builder) -> None:
    with k.if_(k.local_id(0) < 32):
        k.subgroup_shuffle_xor(k.f32(1), 1)


def _after_a_return(k: Builder) -> None:
    with k.if_(k.local_id(0) < 32):
        k.return_()
    k.subgroup_shuffle_xor(k.f32(1), 1)


def _in_a_loop_of_its_own_length(k: Builder) -> None:
    with k.loop(0, k.local_id(0)):
        k.subgroup_shuffle_xor(k.f32(1), 1)


def _after_a_break(k: Builder) -> None:
    with k.loop(0, 4) as i:
        k.subgroup_shuffle_xor(k.f32(1), 1)
        with k.if_(k.local_id(0) < i):
            k.break_()


def _under_what_was_shuffled(k: Builder) -> None:
    other = k.subgroup_shuffle_xor(k.group_id(0), 1)
    with k.if_(other > 2):
        k.subgroup_shuffle_xor(k.f32(1), 1)


@pytest.mark.parametrize("write", [
    _under_a_condition, _after_a_return, _in_a_loop_of_its_own_length, _after_a_break,
    _under_what_was_shuffled,
])  # fmt: skip
def test_a_place_that_a_part_of_a_workgroup_may_not_reach(write: Callable[[Builder], None]) -> None:
    k = start()
    write(k)
    with pytest.raises(KernelError, match=r"a shuffle (under a condition|that invocations)"):
        k.build()


def test_a_uniform_condition_is_fine() -> None:
    k = start()
    with k.if_(k.group_id(0) > 2), k.loop(0, k.group_id(0)):
        k.subgroup_shuffle_xor(k.f32(1), 16)
    assert largest_group(k.build()) == 32


def test_names_are_immutable_and_of_their_block() -> None:
    k = start()
    other = k.subgroup_shuffle_xor(k.f32(1), 1)
    assert isinstance(other, Name)
    with pytest.raises(KernelError, match="is not a variable"):
        k.set(other, 2.0)
    k.emit(SubgroupShuffleXor(other.ident, Const(F32, 1.0), 2))
    with pytest.raises(KernelError, match="other is defined twice"):
        k.build()


def test_the_interpreter_itself_refuses_a_part_of_the_neighbours() -> None:
    """Kernels that were not checked, or whose conditions looked uniform."""
    k = Builder("partial", (8, 1, 1))
    dst = k.buffer("dst", Scalar.I32, 1, "write")
    with k.if_(k.local_id(0) < 6):
        k.emit(SubgroupShuffleXor("x", k.local_id(0), 2))
        k.store(dst, k.local_id(0), Name(I32, "x"))
    body = tuple(k._blocks[0])
    kernel = Kernel("partial", k.workgroup, (dst,), (), body)
    with pytest.raises(KernelError, match="a shuffle was reached by a part of 4 neighbours"):
        interpret(kernel, (1, 1, 1), [np.zeros(8, np.int32)])


# Printed code


def test_shuffles_are_told_apart() -> None:
    kernels = [exchange(1), exchange(2), exchange(1, Scalar.I32), exchange(1, width=2)]
    assert not [pair for pair in itertools.combinations(kernels, 2) if same(*pair)]
    assert exchange(2) is kernels[1]
    assert largest_group(exchange(3)) == 4
    assert largest_group(exchange(4)) == 8


@pytest.mark.parametrize("has", [0, 8])
def test_devices_with_less_refuse(has: int) -> None:
    kernel = exchange(8)
    reason = "a shuffle among 16 neighbours.*at most 8" if has else "a shuffle, which this device"
    for source in (
        OpenCLDialect(subgroup_shuffle=has).source,
        WgslDialect(subgroup_shuffle=has).source,
        lambda k: module_of(k, Target(subgroup_shuffle=has)),
    ):
        with pytest.raises(KernelError, match=rf"kernel exchange: {reason}.*caps.subgroup_shuffle"):
            source(kernel)
        if has:
            source(exchange(7))
    assert not DeviceCaps().subgroup_shuffle


def test_the_interpreter_s_device_has_them_and_shows_them() -> None:
    assert CAPS.subgroup_shuffle == 32
    assert "subgroupshufflexor(theirs, src[i], 5)" in CpuRefDevice().source(exchange(5))


def test_ptx_text() -> None:
    source = PTX.source(exchange(5, width=4))
    assert "const float4 theirs = subgroup_xor_float4(src[i], 5u);" in source
    assert 'asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"' in source
    assert "sub_group_shuffle_xor" not in source
    assert "shfl" not in PTX.source(nothing_shuffled())


def test_opencl_text() -> None:
    source = KHR.source(exchange(5, Scalar.I32, 2))
    assert "const int2 theirs = subgroup_xor_int2(src[i], 5u);" in source
    assert "#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable" in source
    assert "sub_group_shuffle_xor(x, mask)" in source
    assert "asm" not in source
    assert "subgroup" not in KHR.source(nothing_shuffled())


def test_wgsl_text() -> None:
    source = WGSL.source(exchange(5, width=4))
    assert "let theirs: vec4<f32> = subgroupShuffleXor(src[i], 5u);" in source
    assert "enable" not in source  # which the naga of wgpu 0.32 refuses
    half = WGSL.source(exchange(5, Scalar.F16))
    assert "let theirs: f16 = f16(subgroupShuffleXor(f32(src[i]), 5u));" in half


def test_spirv_text() -> None:
    text = text_of(exchange(5), TARGET)
    assert "OpCapability GroupNonUniform\n" in text
    assert "OpCapability GroupNonUniformShuffle\n" in text
    line = next(x for x in text.splitlines() if "OpGroupNonUniformShuffleXor" in x)
    kind, scope, _, mask = line.split("OpGroupNonUniformShuffleXor")[1].split()
    assert line.split()[0] == "%theirs"
    for name, declaration in ((scope, "3"), (mask, "5"), (kind, "32")):
        found = next(x for x in text.splitlines() if x.strip().startswith(f"{name} = "))
        assert found.split()[-1] == declaration
    assert "GroupNonUniform" not in text_of(nothing_shuffled(), TARGET)


def nothing_shuffled() -> Kernel:
    k = start()
    return k.build()


def test_spirv_val_accepts_it() -> None:
    tool = shutil.which("spirv-val")
    if tool is None:
        pytest.skip("spirv-val (package spirv-tools) is not installed")
    targets = [TARGET, Target(subgroup_shuffle=32)]
    kernels = [exchange(m, s, w) for s in SCALARS for w in (1, 2, 4) for m in (1, 16)]
    for target in targets:
        for kernel in kernels:
            done = subprocess.run(
                [tool, "--target-env", "vulkan1.1", "-"],
                input=module_of(kernel, target), capture_output=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, (done.stdout + done.stderr).decode()


class Stub:
    """A dialect whose exchange of one word is something that any device can do."""

    def __init__(self, dialect: OpenCLDialect) -> None:
        self._dialect = dialect

    def source(self, kernel: Kernel) -> str:
        text = self._dialect.source(kernel)
        head = text.index("uint subgroup_xor_uint")
        end = text.index("}", head) + 1
        kept = "\n".join(x for x in text[:head].splitlines() if "subgroup" not in x)
        stub = "uint subgroup_xor_uint(uint x, uint mask) { return x ^ mask; }"
        return f"{kept}\n{stub}{text[end:]}"


@pytest.mark.parametrize("ptx", [False, True], ids=["khr", "ptx"])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("scalar", SCALARS, ids=lambda s: s.value)
def test_opencl_vectors_go_lane_by_lane(
    opencl: ClRunner, scalar: Scalar, width: int, ptx: bool
) -> None:
    """With each word's exchange replaced by an XOR with the mask, which shows every lane."""
    half = opencl.f16_arithmetic
    dialect = OpenCLDialect(f16_arithmetic=half, subgroup_shuffle=32, shuffle_ptx=ptx)
    data = numbers(64 * width, scalar)
    stub: Any = Stub(dialect)
    got = opencl.run(exchange(21, scalar, width), (1, 1, 1), [data, np.zeros_like(data)], stub)
    wide = data.astype(np.float32) if scalar is Scalar.F16 else data
    want = (wide.view(np.uint32) ^ 21).view(wide.dtype).astype(data.dtype)
    np.testing.assert_array_equal(got[1], want)


def test_a_width_of_three() -> None:
    k = Builder("three", (8, 1, 1))
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    value = k.vec([k.cast(k.local_id(0) + lane, Scalar.F32) for lane in range(3)])
    other = k.subgroup_shuffle_xor(value, 1)
    assert other.type == Type(Scalar.F32, 3)
    for lane in range(3):
        k.store(dst, k.local_id(0) * 3 + lane, other.lane(lane))
    assert "subgroup_xor_float3" in PTX.source(k.build())
    found = np.zeros(24, np.float32)
    interpret(k.build(), (1, 1, 1), [found])
    np.testing.assert_array_equal(found[:6], [1, 2, 3, 0, 1, 2])
