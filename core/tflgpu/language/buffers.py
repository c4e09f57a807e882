"""Memory of a kernel: its buffer parameters, and arrays that a workgroup shares."""

from __future__ import annotations

from tflgpu.language.types import Scalar, Type, type_of
from tflgpu.values import frozen


@frozen
class KernelBuffer:
    """A kernel's buffer parameter: elements of ``width`` lanes of ``scalar``."""

    name: str
    scalar: Scalar
    width: int
    access: str  # "read", "write" or "read_write"

    @property
    def value_type(self) -> Type:
        """The type that a load gives: storage-only integers widen to i32."""
        scalar = Scalar.I32 if self.scalar.is_storage_only else self.scalar
        return type_of(scalar, self.width)


@frozen
class SharedArray:
    """An array of ``count`` elements shared by a workgroup; contents start undefined."""

    name: str
    type: Type
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes it takes; a 3-lane element takes the room of 4."""
        lanes = 4 if self.type.width == 3 else self.type.width
        return self.count * lanes * self.type.scalar.itemsize
