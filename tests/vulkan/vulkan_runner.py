"""Runs single kernels between guard bands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tflgpu.compiler.plan import InputRef, Plan, PlannedDispatch, PlannedIO
from tflgpu.ir.dtypes import DType
from tflgpu.language.kernel import Kernel
from tflgpu_vulkan.device import VulkanDevice

Array = npt.NDArray[Any]


class VulkanRunner:
    """The first Vulkan device."""

    def __init__(self) -> None:
        self.device = VulkanDevice(0)
        self.name = self.device.info.name
        self.f16 = self.device.caps.f16_arithmetic

    def run(
        self, kernel: Kernel, groups: tuple[int, int, int], arrays: Sequence[Array]
    ) -> list[Array]:
        """The arrays after the kernel ran; the given ones stay as they are."""
        ios = [PlannedIO(f"a{i}", (a.nbytes,), DType.U8, a.nbytes) for i, a in enumerate(arrays)]
        refs = tuple(InputRef(i) for i in range(len(arrays)))
        dispatch = PlannedDispatch(kernel, groups, refs, kernel.name)
        plan = Plan(0, self.device.alignment, (), tuple(ios), (), (dispatch,))
        # With guard bands the host's arrays are what the kernel reads and writes.
        recording = self.device.load(plan, guard_bands=True)
        try:
            for mapped, array in zip(recording.inputs, arrays, strict=True):
                mapped[...] = np.ascontiguousarray(array).view(np.uint8)
            recording.run()
            return [
                np.array(mapped).view(array.dtype)
                for mapped, array in zip(recording.inputs, arrays, strict=True)
            ]
        finally:
            recording.close()

    def close(self) -> None:
        """Release the device."""
        self.device.close()
