"""Whether a device runs matrix tiles: a kernel that uses every matrix statement is compiled, run,
and compared with the language's definition."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyopencl as cl
from tflgpu.errors import DeviceError
from tflgpu.language.builder import Builder
from tflgpu.language.interpret import interpret
from tflgpu.language.matrix import SUBGROUP, TILE, MatrixRole
from tflgpu.language.tree import Kernel
from tflgpu.language.types import F16x4, F32x4, Scalar

from tflgpu_opencl.dialect import OpenCLDialect
from tflgpu_opencl.program import Compiler, make_kernel

_VECTORS = TILE * TILE // 4  # of a tile
_PITCH = 6  # vectors, so that a wrong stride shows


def runs_matrix_tiles(context: Any, handle: Any, compiler: Compiler) -> bool:
    """True on an NVIDIA device (no other compiler knows PTX) whose results are right."""
    if "nvidia" not in str(handle.vendor).lower():
        return False
    kernel = _kernel()
    source = OpenCLDialect(f16_arithmetic=True, matrix_tiles=True).source(kernel)
    # Small whole numbers: every sum is exact, whatever its order.
    rng = np.random.default_rng(1)
    operands = rng.integers(-8, 8, 2 * 4 * _VECTORS).astype(np.float16)
    expected = np.zeros(4 * _VECTORS, np.float32)
    interpret(kernel, (1, 1, 1), [operands, expected])
    try:
        program = compiler.compile([(kernel.name, source)])[source]
        return bool((_run(context, program, operands) == expected).all())
    except (cl.Error, DeviceError):
        return False


@cache
def _kernel() -> Kernel:
    """``7 + a @ b + (7 + a @ b) / 2``."""
    k = Builder("matrix_probe", (SUBGROUP, 1, 1))
    src = k.buffer("src", Scalar.F16, 4, "read")
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    operands = k.shared("operands", F16x4, 2 * TILE * _PITCH)
    result = k.shared("result", F32x4, TILE * _PITCH)
    lane = k.let(k.local_id(0), "lane")
    with k.loop(lane, 2 * _VECTORS, SUBGROUP) as i:
        k.store_shared(operands, i // 4 * _PITCH + i % 4, k.load(src, i))
    k.barrier()
    a = k.matrix_load(operands, 0, _PITCH, MatrixRole.A)
    b = k.matrix_load(operands, TILE * _PITCH, _PITCH, MatrixRole.B)
    total = k.matrix_fill(7.0)
    k.matrix_multiply(total, a, b)
    k.matrix_add(total, total, 0.5)
    k.matrix_store(result, 0, _PITCH, total)
    k.barrier()
    with k.loop(lane, _VECTORS, SUBGROUP) as i:
        k.store(dst, i, k.load_shared(result, i // 4 * _PITCH + i % 4))
    return k.build()


def _run(context: Any, program: Any, operands: Any) -> np.ndarray[Any, Any]:
    queue = cl.CommandQueue(context)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    result = np.zeros(4 * _VECTORS, np.float32)
    src, dst = (cl.Buffer(context, flags, hostbuf=array) for array in (operands, result))
    kernel = make_kernel(program)
    kernel.set_args(src, dst)
    cl.enqueue_nd_range_kernel(queue, kernel, (SUBGROUP, 1, 1), (SUBGROUP, 1, 1))
    cl.enqueue_copy(queue, result, dst)
    return result
