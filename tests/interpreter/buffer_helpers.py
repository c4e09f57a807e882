"""What the tests of buffers share: a model, what it gives, and arrays that know one protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tflgpu

from tests.interpreter import interpreter_models as models

DEVICES = {"cpu_ref": 1, "opencl": 0, "vulkan": 0, "wgpu": 0}
SHAPE = (171, 3)
X = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
Y = (X + models.C) * models.C
Open = Callable[..., tflgpu.Interpreter]


def paged(shape: tuple[int, ...]) -> Any:
    """An array that begins where drivers want it, of whole pages."""
    nbytes = 4 * int(np.prod(shape))
    block = np.zeros(nbytes + 8192, np.uint8)
    start = -block.ctypes.data % 4096
    return block[start : start + nbytes].view(np.float32).reshape(shape)


def copies(interpreter: tflgpu.Interpreter) -> tuple[int, int]:
    return interpreter.copied.to_device, interpreter.copied.to_host


class Packed:
    """Memory that is known by DLPack alone."""

    def __init__(self, array: Any, device: tuple[int, int] = (1, 0)) -> None:
        self._array, self._device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device
