"""How whole numbers and booleans lie on a device.

Kernels compute on them as i32 in any case: a load widens what is stored in 8 bits. So what a tensor
is stored as is a policy, and no generator has to know it.
"""

from __future__ import annotations

import enum

from tflgpu.ir.dtypes import DType
from tflgpu.language.types import Scalar
from tflgpu.lowering.caps import DeviceCaps

#: What a tensor that crosses a partition's edge may be, and what it is stored as there where 8 bits
#: do not matter.
_EDGE = {
    DType.F32: Scalar.F32,
    DType.F16: Scalar.F16,
    DType.I32: Scalar.I32,
    DType.BOOL: Scalar.I32,
    DType.I8: Scalar.I32,
    DType.U8: Scalar.I32,
}
_BYTES = {DType.I8: Scalar.I8, DType.U8: Scalar.U8, DType.BOOL: Scalar.U8}


class IntegerStorage(enum.Enum):
    """A policy.

    WORDS: 32 bits each inside a part. 8-bit tensors cross its edges in 8 bits, and stay on the CPU
    where a device does not store those.

    WORDS_AT_EDGES: The same, but where a device does not store 8 bits (WGSL), tensors of such cross
    in 32 bits, so that no device refuses them.

    OWN_WIDTH: As WORDS_AT_EDGES, but 8-bit tensors and booleans take a byte an element wherever a
    device stores bytes (OpenCL; Vulkan with ``storageBuffer8BitAccess``).
    """

    WORDS = "words"
    WORDS_AT_EDGES = "words at edges"
    OWN_WIDTH = "own width"

    def inside(self, dtype: DType, caps: DeviceCaps) -> Scalar:
        """What a tensor of whole numbers or booleans is stored as between two kernels."""
        if self is IntegerStorage.OWN_WIDTH and caps.int8_storage:
            return _BYTES.get(dtype, Scalar.I32)
        return Scalar.I32

    def edge(self, dtype: DType, caps: DeviceCaps) -> Scalar | None:
        """What a tensor of any type is stored as where the host reads or writes it; None where it
        cannot cross."""
        stored = _EDGE.get(dtype)
        if dtype not in _BYTES:
            return stored
        if caps.int8_storage:
            is_byte = dtype is not DType.BOOL or self is IntegerStorage.OWN_WIDTH
            return _BYTES[dtype] if is_byte else stored
        return None if dtype is not DType.BOOL and self is IntegerStorage.WORDS else stored
