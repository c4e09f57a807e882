"""Types of the kernel language: scalars, and vectors of 2 to 4 lanes."""

from __future__ import annotations

import enum
from typing import Any

import attrs
import numpy as np


class Scalar(enum.Enum):
    """A lane's type. I8, U8 and I16 exist in buffers only: a load widens them to I32."""

    F16 = "f16"
    F32 = "f32"
    I32 = "i32"
    U32 = "u32"
    BOOL = "bool"
    I8 = "i8"
    U8 = "u8"
    I16 = "i16"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype of a lane."""
        return _NUMPY[self]

    @property
    def itemsize(self) -> int:
        """Bytes a lane takes in a buffer."""
        return _NUMPY[self].itemsize

    @property
    def is_float(self) -> bool:
        """f16 or f32."""
        return self in (Scalar.F16, Scalar.F32)

    @property
    def is_storage_only(self) -> bool:
        """Whether it is only a buffer's element, never a value's type."""
        return self in (Scalar.I8, Scalar.U8, Scalar.I16)


_NUMPY: dict[Scalar, np.dtype[Any]] = {
    Scalar.F16: np.dtype(np.float16),
    Scalar.F32: np.dtype(np.float32),
    Scalar.I32: np.dtype(np.int32),
    Scalar.U32: np.dtype(np.uint32),
    Scalar.BOOL: np.dtype(np.bool_),
    Scalar.I8: np.dtype(np.int8),
    Scalar.U8: np.dtype(np.uint8),
    Scalar.I16: np.dtype(np.int16),
}


@attrs.frozen
class Type:
    """A scalar (width 1) or a vector of ``width`` lanes."""

    scalar: Scalar
    width: int = 1

    def __str__(self) -> str:
        return self.scalar.value + (f"x{self.width}" if self.width > 1 else "")

    def with_width(self, width: int) -> Type:
        """The same lanes, another number of them."""
        return Type(self.scalar, width)

    def with_scalar(self, scalar: Scalar) -> Type:
        """The same number of lanes, of another type."""
        return Type(scalar, self.width)

    @property
    def is_float(self) -> bool:
        """Whether its lanes are f16 or f32."""
        return self.scalar.is_float


F16 = Type(Scalar.F16)
F32 = Type(Scalar.F32)
I32 = Type(Scalar.I32)
U32 = Type(Scalar.U32)
BOOL = Type(Scalar.BOOL)
F16x4 = Type(Scalar.F16, 4)
F32x4 = Type(Scalar.F32, 4)
I32x4 = Type(Scalar.I32, 4)
