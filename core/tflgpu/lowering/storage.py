"""How a device stores whole numbers and booleans.

Kernels compute on them as i32 in any case: a load widens what is stored in 8 bits. So what a tensor
is stored as is a policy, and no generator has to know it.
"""

from __future__ import annotations

import enum

from tflgpu.ir.dtypes import DType
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.types import Scalar

#: What a tensor that crosses a partition's edge may be, and what it is stored as there where 8 bits
#: do not matter.
_EDGE = {
    DType.F32: Scalar.F32,
    DType.F16: Scalar.F16,
    DType.I32: Scalar.I32,
    DType.BOOL: Scalar.I32,
    DType.I8: Scalar.I32,
    DType.U8: Scalar.I32,
    DType.I16: Scalar.I32,
}
_BYTES = {DType.I8: Scalar.I8, DType.U8: Scalar.U8, DType.BOOL: Scalar.U8}


class IntegerStorage(enum.Enum):
    """A policy.

    WORDS: 32 bits each inside a part. 8-bit tensors cross its edges in 8 bits, and in 32 where a
    device does not store 8 bits: the host widens them, so that no device refuses them.

    OWN_WIDTH: As WORDS, but 8-bit tensors and booleans take a byte an element wherever a device
    stores bytes (OpenCL; WebGPU, in words; Vulkan with ``storageBuffer8BitAccess``).
    """

    WORDS = "words"
    OWN_WIDTH = "own width"

    def inside(self, dtype: DType, caps: DeviceCaps) -> Scalar:
        """The type in which whole numbers or booleans are stored between two kernels."""
        if self is IntegerStorage.OWN_WIDTH and caps.int8_storage:
            return _BYTES.get(dtype, Scalar.I32)
        return Scalar.I32

    def edge(self, dtype: DType, caps: DeviceCaps) -> Scalar | None:
        """The type in which a tensor is stored where the host reads or writes it; None where it
        cannot cross."""
        own_width = dtype is not DType.BOOL or self is IntegerStorage.OWN_WIDTH
        if dtype in _BYTES and caps.int8_storage and own_width:
            return _BYTES[dtype]
        return _EDGE.get(dtype)
