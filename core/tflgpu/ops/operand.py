"""An operand as shape inference sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import numpy as np

from tflgpu.errors import DynamicError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec, Value
from tflgpu.ir.stored_reals import ConstantData, StoredReals
from tflgpu.values import frozen


@frozen
class Operand:
    """An operand as shape inference sees it: its spec, and its contents where constant."""

    spec: TensorSpec
    contents: ConstantData | None = attrs.field(default=None, alias="data")

    @property
    def data(self) -> Array | None:
        """Its contents as an array, where constant."""
        found = self.contents
        return found.whole() if isinstance(found, StoredReals) else found

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
        found = self.data
        if found is None:
            raise DynamicError(f"{op}: {what} must be a constant")
        return found


#: What shape inference and references get, by position: None where an optional one is absent.
Operands = Sequence[Operand | None]
Arrays = Sequence[Array | None]


def known_operands(values: Iterable[Value | None]) -> list[Operand | None]:
    """What shape inference gets of a node's inputs."""
    return [None if v is None else Operand(v.spec, v.contents) for v in values]


def constant_or_shape(value: Value | None) -> Array | None:
    """What a reference gets of a node's input before the model runs: a constant, or where only the
    shape counts (`Contents.shape_only`) one element that is broadcast, which takes no memory."""
    if value is None:
        return None
    if value.is_const:
        return value.data
    return np.broadcast_to(np.zeros((), value.dtype.numpy), value.shape)
