"""An operand as shape inference sees it."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.errors import DynamicError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.values import frozen


@frozen
class Operand:
    """An operand as shape inference sees it: its spec, and its contents where constant."""

    spec: TensorSpec
    data: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """Its element type."""
        return self.spec.dtype

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.spec.shape)

    def const(self, op: str, what: str) -> Array:
        """Its contents.

        Raises:
            DynamicError: they are not known before the model runs.
        """
        if self.data is None:
            raise DynamicError(f"{op}: {what} must be a constant")
        return self.data


#: What shape inference and references get, by position: None where an optional one is absent.
Operands = Sequence[Operand | None]
Arrays = Sequence[Array | None]
