"""Layouts: how the elements of a tensor lie in a buffer.

C4 (channel-sliced): the last dimension ("channels") is padded to a multiple of 4, and four
neighbours make one vector element; element ``outer * slices + slice`` holds channels
``4*slice .. 4*slice+3`` of row-major position ``outer`` in the other dimensions. The padding
lanes are always zero; every store keeps them so, and kernels rely on it.

LINEAR: packed row-major scalars, as NumPy has them; what graph inputs and outputs use. Where
the channels are a multiple of 4 the two are the same bytes.
"""

from __future__ import annotations

import enum

from tflgpu.language.types import Scalar
from tflgpu.values import frozen

Shape = tuple[int, ...]


class LayoutKind(enum.Enum):
    """The ways a tensor can lie."""

    C4 = "c4"
    LINEAR = "linear"


@frozen
class Layout:
    """Shape, kind and storage type of one tensor on a device."""

    shape: Shape
    kind: LayoutKind
    storage: Scalar

    @property
    def channels(self) -> int:
        """The last dimension, 1 for a scalar."""
        return self.shape[-1] if self.shape else 1

    @property
    def outer(self) -> int:
        """The product of all dimensions but the last."""
        count = 1
        for dim in self.shape[:-1]:
            count *= dim
        return count

    @property
    def slices(self) -> int:
        """Vectors of four that hold the channels."""
        return (self.channels + 3) // 4

    @property
    def is_vector(self) -> bool:
        """Whether the buffer can be read four lanes at a time."""
        return self.kind is LayoutKind.C4 or self.channels % 4 == 0

    @property
    def elements(self) -> int:
        """Scalars in the buffer, padding included."""
        return self.outer * (self.slices * 4 if self.is_vector else self.channels)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return self.elements * self.storage.itemsize

    def same_bytes(self, other: Layout) -> bool:
        """Whether a row-major reinterpretation between the two moves no bytes."""
        if self.storage is not other.storage or self.elements != other.elements:
            return False
        packed = self.elements == self.outer * self.channels
        other_packed = other.elements == other.outer * other.channels
        same_rows = self.channels == other.channels and self.is_vector == other.is_vector
        return (packed and other_packed) or same_rows
