"""WebGPU buffers that recordings can be bound to."""

from __future__ import annotations

from typing import Any

import numpy as np
import wgpu
from tflgpu.backend_kit.base_buffer import BaseBuffer
from tflgpu.contract.buffers import Bytes, Span
from tflgpu.lowering.reason import Unsupported

from tflgpu_wgpu.failure import device_errors
from tflgpu_wgpu.memory import STEP, USAGE, Region, padded

_NEEDED = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST


class WgpuBuffer(BaseBuffer):
    """A `Buffer`: a ``GPUBuffer``."""

    region: Region

    def __init__(
        self, lock: Any, token: object, region: Region, device: Any, *, owned: bool
    ) -> None:
        super().__init__(lock, token, region.nbytes, region)
        self._device = device
        self._owned = owned

    @property
    def span(self) -> Span:
        """The whole of a ``GPUBuffer``."""
        return ("WebGPU", id(self.region.buffer)), 0, self.nbytes

    def _write(self, data: Bytes) -> None:
        queue, buffer = self._device.queue, self.region.buffer
        whole = len(data) // 4 * 4  # WebGPU copies words
        with device_errors("writing a buffer"):
            if whole:
                queue.write_buffer(buffer, 0, data[:whole])
            if whole < len(data):
                word = np.frombuffer(queue.read_buffer(buffer, whole, 4), np.uint8).copy()
                word[: len(data) - whole] = data[whole:]
                queue.write_buffer(buffer, whole, word)

    def _read(self, nbytes: int) -> Bytes:
        with device_errors("reading a buffer"):
            found = self._device.queue.read_buffer(self.region.buffer, 0, -(-nbytes // 4) * 4)
        return np.frombuffer(found, np.uint8)[:nbytes]

    def _export(self) -> object:
        return self.region.buffer

    def _release(self) -> None:
        buffer, self.region = self.region.buffer, Region("a closed buffer", 0, None)
        self._device = None
        if self._owned:
            buffer.destroy()


def allocated(device: Any, nbytes: int) -> Region:
    """A new buffer; WebGPU sees to it that it is all zeros.

    Raises:
        DeviceError: memory ran out.
    """
    with device_errors(f"allocating {nbytes} bytes for a buffer"):
        made = device.create_buffer(size=padded(nbytes), usage=USAGE)
    return Region("a buffer", nbytes, made)


def imported(device: Any, source: object) -> Region | Unsupported:
    """A ``GPUBuffer`` of the device as it is."""
    if not isinstance(source, wgpu.GPUBuffer):
        return Unsupported(
            f"WebGPU uses no memory in place but its own buffers, and this is a "
            f"{type(source).__name__}; allocate a buffer and write to it"
        )
    if source._device is not device:
        return Unsupported(
            "the buffer is of another GPUDevice; make it on the one of an exported buffer"
        )
    if source.usage & _NEEDED != _NEEDED:
        return Unsupported(f"the buffer lacks a usage; {USAGE} are needed")
    if source.size % STEP:
        return Unsupported(f"the buffer has {source.size} bytes; a multiple of {STEP} is needed")
    return Region("an imported buffer", source.size, source)
