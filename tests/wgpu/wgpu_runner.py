"""Runs printed kernels through wgpu, with nothing of the backend but its dialect and compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tflgpu.language.kernel import Kernel
from tflgpu_wgpu.adapters import find_adapters, open_adapter
from tflgpu_wgpu.dialect import WgslDialect
from tflgpu_wgpu.pipelines import Compiler, Way

Array = npt.NDArray[Any]
_BAND = 64  # bytes of a pattern around every buffer, which no kernel may touch
_PATTERN = 0xA5


class WgpuRunner:
    """The first WebGPU device."""

    def __init__(self) -> None:
        found = find_adapters().at(0)
        self.name = found.info.name
        self.device: Any = open_adapter(found.handle)
        self.f16 = "shader-f16" in self.device.features
        self._compiler = Compiler(self.device)

    def run(
        self,
        kernel: Kernel,
        groups: tuple[int, int, int],
        arrays: Sequence[Array],
        *,
        writable: bool = False,
    ) -> list[Array]:
        """The arrays after the kernel ran; the given ones stay as they are."""
        job = kernel, Way(WgslDialect(f16_arithmetic=self.f16, band=_BAND), writable)
        pipeline = self._compiler.get([job])[job]
        band = np.full(_BAND, _PATTERN, np.uint8)
        buffers, entries = [], []
        for i, array in enumerate(arrays):
            data = np.ascontiguousarray(array).view(np.uint8)
            padding = np.full(-data.nbytes % 16, _PATTERN, np.uint8)
            image = np.concatenate([band, data, padding, band])
            buffer = self.device.create_buffer_with_data(data=image, usage="STORAGE|COPY_SRC")
            buffers.append(buffer)
            entries.append({"binding": i, "resource": {"buffer": buffer}})
        encoder = self.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline.handle)
        compute.set_bind_group(
            0, self.device.create_bind_group(layout=pipeline.layout, entries=entries)
        )
        compute.dispatch_workgroups(*groups)
        compute.end()
        self.device.queue.submit([encoder.finish()])
        results = []
        for buffer, array in zip(buffers, arrays, strict=True):
            found = np.frombuffer(self.device.queue.read_buffer(buffer), np.uint8)
            end = _BAND + array.nbytes
            outside = np.concatenate([found[:_BAND], found[end:]])
            assert (outside == _PATTERN).all(), "written outside a buffer"
            results.append(found[_BAND:end].view(array.dtype))
        return results
