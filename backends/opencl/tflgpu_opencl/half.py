"""Whether a device computes with `half` values."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyopencl as cl
from tflgpu.errors import DeviceError
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Kernel
from tflgpu.language.types import Scalar

from tflgpu_opencl.devices import lists_f16
from tflgpu_opencl.dialect import OpenCLDialect
from tflgpu_opencl.program import Compiler, make_kernel

#: 2049 is no f16, so a sum of 2048 and 1 tells whether arithmetic really is in 16 bits.
_INPUT = np.array([2048, 0.5, -3, 6], np.float16)
_EXPECTED = np.array([2048, 1.25, 10, 37], np.float16)


def computes_in_half(context: Any, handle: Any, compiler: Compiler) -> bool:
    """True where the driver promises it, or where a kernel that does it works.

    NVIDIA's driver does not list cl_khr_fp16 and computes with `half` all the same. Others that
    do not list it are believed: some of their compilers crash rather than refuse.
    """
    if lists_f16(handle):
        return True
    if "nvidia" not in str(handle.vendor).lower():
        return False
    kernel = _kernel()
    source = OpenCLDialect(f16_arithmetic=True).source(kernel)
    try:
        program = compiler.compile([(kernel.name, source)])[source]
        return bool((_run(context, program) == _EXPECTED).all())
    except (cl.Error, DeviceError):
        return False


@cache
def _kernel() -> Kernel:
    k = Builder("half_probe", (1, 1, 1))
    src = k.buffer("src", Scalar.F16, 4, "read")
    dst = k.buffer("dst", Scalar.F16, 4, "write")
    x = k.let(k.load(src, 0))
    one = k.const(1, src.value_type)
    k.store(dst, 0, k.select(x > 1000.0, x + one, x * x + one))
    return k.build()


def _run(context: Any, program: Any) -> np.ndarray[Any, Any]:
    queue = cl.CommandQueue(context)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    result = np.zeros(4, np.float16)
    src, dst = (cl.Buffer(context, flags, hostbuf=a) for a in (_INPUT, result))
    kernel = make_kernel(program)
    kernel.set_args(src, dst)
    cl.enqueue_nd_range_kernel(queue, kernel, (1, 1, 1), (1, 1, 1))
    cl.enqueue_copy(queue, result, dst)
    return result
