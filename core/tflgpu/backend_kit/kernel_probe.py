"""Runs a small kernel to find out whether a device does something that its driver does not promise,
and compares the result with the interpreter's."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from tflgpu.backend_kit.subgroup_probe import results_of
from tflgpu.compiler.plan import InputRef, OutputRef, Plan, PlannedDispatch, PlannedIO
from tflgpu.contract.device import Device
from tflgpu.errors import TflgpuError
from tflgpu.errors.blame import LOG
from tflgpu.ir.dtypes import Array, DType
from tflgpu.language.builder import Builder
from tflgpu.language.interpreter import interpret
from tflgpu.language.matrix import MatrixRole
from tflgpu.language.types import SUBGROUP, TILE, F16x4, Scalar, U32x4

if TYPE_CHECKING:
    from tflgpu.language.buffers import KernelBuffer
from tflgpu.language.kernel import Kernel

_DTYPES = {Scalar.F16: DType.F16, Scalar.F32: DType.F32}
_VECTORS = TILE * TILE // 4  # of a tile
_PITCH = 6  # vectors, so that a wrong stride shows


def computes_in_half(device: Device) -> bool:
    """Whether arithmetic of f16 is in f16. The device's printer must write it already."""
    # 2049 is no f16, so a sum of 2048 and 1 tells whether arithmetic really is in 16 bits.
    return _runs_right(device, _half_kernel(), np.array([2048, 0.5, -3, 6], np.float16), 4)


def runs_matrix_tiles(device: Device) -> bool:
    """Whether every matrix statement gives what it should. The device's printer must write them
    already."""
    # Small whole numbers: every sum is exact, whatever its order.
    operands = np.random.default_rng(1).integers(-8, 8, 2 * 4 * _VECTORS).astype(np.float16)
    return _runs_right(device, _matrix_kernel(), operands, 4 * _VECTORS)


def _runs_right(device: Device, kernel: Kernel, operands: Array, count: int) -> bool:
    """Run a kernel of one workgroup on ``operands``; it gives ``count`` lanes."""
    source, target = kernel.buffers
    expected = np.zeros(count, target.scalar.numpy)
    interpret(kernel, (1, 1, 1), [operands, expected])
    step = PlannedDispatch(kernel, (1, 1, 1), (InputRef(0), OutputRef(0)), kernel.name)
    ios = _io(source, operands.size), _io(target, count)
    try:
        (found,) = results_of(
            device, Plan(0, device.alignment, (), ios[:1], ios[1:], (step,)), operands
        )
        return bool((found == expected).all())
    except TflgpuError as error:
        LOG.info("tflgpu: %s: %s failed: %s", device.info.name, kernel.name, str(error))
        return False


def _io(buffer: KernelBuffer, count: int) -> PlannedIO:
    nbytes = count * buffer.scalar.itemsize
    return PlannedIO(buffer.name, (count,), _DTYPES[buffer.scalar], nbytes)


@cache
def _half_kernel() -> Kernel:
    k = Builder("half_probe", (1, 1, 1))
    src = k.buffer("src", Scalar.F16, 4, "read")
    dst = k.buffer("dst", Scalar.F16, 4, "write")
    x = k.let(k.load(src, 0))
    one = k.const(1, src.value_type)
    k.store(dst, 0, k.select(x > 1000.0, x + one, x * x + one))
    return k.build()


@cache
def _matrix_kernel() -> Kernel:
    """``c + c / 2``, of which c is ``7 + a @ b`` and the product of both transposed."""
    k = Builder("matrix_probe", (SUBGROUP, 1, 1))
    src = k.buffer("src", Scalar.F16, 4, "read")
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    operands = k.shared("operands", F16x4, 2 * TILE * _PITCH)
    words = k.shared("words", U32x4, TILE * _PITCH)  # the same, as the bits of u32
    result = k.shared("result", U32x4, TILE * _PITCH)
    lane = k.let(k.local_id(0), "lane")
    with k.loop(lane, 2 * _VECTORS, SUBGROUP) as i:
        k.store_shared(operands, i // 4 * _PITCH + i % 4, k.load(src, i))
    with k.loop(lane, _VECTORS, SUBGROUP) as i:
        bits = [k.let(k.bitcast(k.load(src, i * 2 + j), Scalar.U32), "bits") for j in range(2)]
        at = i // 2 * (_PITCH // 2) + i % 2
        k.store_shared(words, at, k.vec([*bits[0].lanes, *bits[1].lanes]))
    k.barrier()
    a = k.matrix_load(words, 0, _PITCH // 2, MatrixRole.A)
    b = k.matrix_load(words, TILE * _PITCH // 2, _PITCH // 2, MatrixRole.B)
    turned_a = k.matrix_load(operands, 0, _PITCH, MatrixRole.A, transposed=True)
    turned_b = k.matrix_load(operands, TILE * _PITCH, _PITCH, MatrixRole.B, transposed=True)
    total = k.matrix_fill(7.0)
    k.matrix_multiply(total, a, b)
    k.matrix_multiply(total, turned_a, turned_b)
    k.matrix_add(total, total, 0.5)
    k.matrix_store(result, 0, _PITCH, total)
    k.barrier()
    with k.loop(lane, _VECTORS, SUBGROUP) as i:
        found = k.load_shared(result, i // 4 * _PITCH + i % 4)
        k.store(dst, i, k.bitcast(found, Scalar.F32))
    return k.build()
