"""Types of the kernel language: scalars, and vectors of 2 to 4 lanes."""

from __future__ import annotations

import enum
from typing import Any

import attrs
import numpy as np

from tflgpu.language.author import refused
from tflgpu.values import frozen

#: Of workgroups, or of a workgroup's invocations, along each axis.
Size3 = tuple[int, int, int]

#: Rows and columns of a matrix tile, and the bytes that each row in memory begins at a multiple of.
TILE = 16
ROW_ALIGNMENT = 16
#: Invocations that hold a matrix tile together.
SUBGROUP = 32
#: The largest group that shuffles values: most devices have subgroups as wide, or wider.
LARGEST_GROUP = 32


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

    #: Members are themselves: `enum` would look up and hash a name, in Python.
    __hash__ = object.__hash__

    # Plain attributes, not properties: making a kernel asks for them a hundred thousand times.

    #: The NumPy dtype of a lane.
    numpy: np.dtype[Any]
    #: Bytes a lane takes in a buffer.
    itemsize: int
    #: f16 or f32.
    is_float: bool
    #: Whether it is only a buffer's element, never a value's type.
    is_storage_only: bool


for _scalar, _dtype in (
    (Scalar.F16, np.float16),
    (Scalar.F32, np.float32),
    (Scalar.I32, np.int32),
    (Scalar.U32, np.uint32),
    (Scalar.BOOL, np.bool_),
    (Scalar.I8, np.int8),
    (Scalar.U8, np.uint8),
    (Scalar.I16, np.int16),
):
    _scalar.numpy = np.dtype(_dtype)
    _scalar.itemsize = _scalar.numpy.itemsize
    _scalar.is_float = _scalar.numpy.kind == "f"
    _scalar.is_storage_only = _scalar in (Scalar.I8, Scalar.U8, Scalar.I16)


@frozen
class Type:
    """A scalar (width 1) or a vector of ``width`` lanes."""

    scalar: Scalar
    width: int = 1
    #: Whether its lanes are f16 or f32.
    is_float: bool = attrs.field(init=False, eq=False, repr=False)
    #: Its name, as messages and fingerprints have it.
    text: str = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Vectors of 2 to 4 lanes are all that there are."""
        if self.width not in (1, 2, 3, 4):
            raise refused(f"a vector of {self.width} lanes; the language has 2, 3 and 4")

    @is_float.default
    def _is_float(self) -> bool:
        return self.scalar.is_float

    @text.default
    def _text(self) -> str:
        lane = str(self.scalar.value)
        return f"{lane}x{self.width}" if self.width > 1 else lane

    def __str__(self) -> str:
        return self.text

    def with_width(self, width: int) -> Type:
        """The same lanes, another number of them."""
        return self if width == self.width else type_of(self.scalar, width)

    def with_scalar(self, scalar: Scalar) -> Type:
        """The same number of lanes, of another type."""
        return self if scalar is self.scalar else type_of(scalar, self.width)


_types: dict[tuple[Scalar, int], Type] = {}


def type_of(scalar: Scalar, width: int = 1) -> Type:
    """The type with these lanes. It is one object, which is quicker to compare than two equal
    ones."""
    key = (scalar, width)
    return _types.get(key) or _types.setdefault(key, Type(scalar, width))


F16 = type_of(Scalar.F16)
F32 = type_of(Scalar.F32)
I32 = type_of(Scalar.I32)
U32 = type_of(Scalar.U32)
BOOL = type_of(Scalar.BOOL)
F16x4 = type_of(Scalar.F16, 4)
F32x4 = type_of(Scalar.F32, 4)
I32x4 = type_of(Scalar.I32, 4)
U32x2 = type_of(Scalar.U32, 2)
U32x4 = type_of(Scalar.U32, 4)
