"""Runs printed kernels through pyopencl, with nothing of the OpenCL backend but its dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tflgpu.language.kernel import Kernel
from tflgpu_opencl.dialect import OpenCLDialect

Array = npt.NDArray[Any]
_GUARD = 64  # bytes of a pattern after every buffer, which no kernel may touch
_PATTERN = 0xA5

_HALF = """
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
__kernel void probe(__global half4* x) { x[0] = x[0] * (half)2.0f + x[1]; }
"""


class ClRunner:
    """The first OpenCL device, GPUs before others."""

    def __init__(self) -> None:
        import pyopencl as cl

        self.cl: Any = cl
        devices = [d for p in cl.get_platforms() for d in p.get_devices()]
        devices.sort(key=lambda d: not d.type & cl.device_type.GPU)
        self.device: Any = devices[0]
        self._context = cl.Context([self.device])
        self._queue = cl.CommandQueue(self._context)
        self.f16_arithmetic = self._builds(_HALF)

    def _builds(self, source: str) -> bool:
        try:
            self.cl.Program(self._context, source).build()
        except self.cl.RuntimeError:
            return False
        return True

    def run(
        self,
        kernel: Kernel,
        groups: tuple[int, int, int],
        arrays: Sequence[Array],
        dialect: OpenCLDialect | None = None,
    ) -> list[Array]:
        """The arrays after the kernel ran; the given ones stay as they are."""
        cl = self.cl
        dialect = dialect or OpenCLDialect(f16_arithmetic=self.f16_arithmetic)
        program = cl.Program(self._context, dialect.source(kernel)).build()
        guard = np.full(_GUARD, _PATTERN, np.uint8)
        buffers = []
        for array in arrays:
            data = np.concatenate([np.ascontiguousarray(array).view(np.uint8), guard])
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
            buffers.append((cl.Buffer(self._context, flags, hostbuf=data), data))
        (function,) = program.all_kernels()
        size = [g * w for g, w in zip(groups, kernel.workgroup, strict=True)]
        function(self._queue, size, list(kernel.workgroup), *(b for b, _ in buffers))
        results = []
        for (buffer, data), array in zip(buffers, arrays, strict=True):
            cl.enqueue_copy(self._queue, data, buffer)
            assert (data[-_GUARD:] == _PATTERN).all(), "written beyond the end of a buffer"
            results.append(data[:-_GUARD].view(array.dtype))
        return results
