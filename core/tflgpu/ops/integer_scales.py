"""The scales of an operator that computes on stored numbers, from all of its tensors and from
intermediates, which a file has only to give the scale of a value in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tflgpu.errors import UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.quant import Quantization
from tflgpu.ops.base import Fields
from tflgpu.values import frozen

#: The least and the largest number of 8 and of 16 bits.
I8, I16 = (-(1 << 7), (1 << 7) - 1), (-(1 << 15), (1 << 15) - 1)


class TensorScale(NamedTuple):
    """A stored number q stands for ``step * (q - zero)``."""

    step: np.float32
    zero: int


@frozen
class Scales:
    """Types and scales of a node's tensors. Asking for a scale that the file does not give raises
    `UnsupportedError`."""

    op: str
    operands: tuple[tuple[DType, Quantization | None] | None, ...]
    intermediates: tuple[Quantization | None, ...]
    output: Quantization | None

    @classmethod
    def of_fields(cls, fields: Fields) -> Scales:
        """What a node's tensors told (`tflgpu.tflite.tensor_fields`)."""
        return cls(
            fields.op,
            tuple(fields.get("operand_types") or ()),
            tuple(fields.get("intermediate_quantization") or ()),
            fields.get("output_quantization"),
        )

    @property
    def real(self) -> bool:
        """Whether operand 0 holds real numbers, or its type is not known."""
        dtype = self.dtype(0)
        return dtype is None or dtype.is_float

    def has(self, index: int) -> bool:
        """Whether there is such an operand."""
        return index < len(self.operands) and self.operands[index] is not None

    def dtype(self, index: int) -> DType | None:
        """The type of an operand; None where there is none."""
        found = self.operands[index] if self.has(index) else None
        return None if found is None else found[0]

    def check_types(self, wanted: Mapping[int, DType]) -> None:
        """That operands have such types, where they are there.

        Raises:
            UnsupportedError: one has not.
        """
        for index, dtype in wanted.items():
            found = self.dtype(index)
            if found not in (None, dtype):
                assert found is not None
                raise UnsupportedError(
                    f"{self.op} of {self._source}: operand {index} is {found.value}, and TFLite's "
                    f"kernel takes {dtype.value}"
                )

    def of(self, index: int) -> TensorScale:
        """That of an operand."""
        found = self.operands[index] if self.has(index) else None
        return self._one(None if found is None else found[1], f"operand {index}")

    def intermediate(self, index: int) -> TensorScale:
        """That of an intermediate."""
        known = index < len(self.intermediates)
        return self._one(self.intermediates[index] if known else None, f"intermediate {index}")

    @property
    def result(self) -> TensorScale:
        """That of the result."""
        return self._one(self.output, "the result")

    @property
    def _source(self) -> str:
        dtype = self.dtype(0)
        return "nothing" if dtype is None else dtype.value

    def _one(self, quant: Quantization | None, what: str) -> TensorScale:
        if quant is None or quant.per_axis:
            raise UnsupportedError(
                f"{self.op} of {self._source}: {what} has "
                f"{'no scale' if quant is None else 'several scales'}"
            )
        if not quant.scale[0] > 0:
            raise UnsupportedError(f"{self.op} of {self._source}: {what} has scale 0")
        return TensorScale(np.float32(quant.scale[0]), quant.zero_point[0])


def clamped(x: Array, bounds: tuple[int, int]) -> Array:
    """``x``, limited to the smallest and largest number that ``bounds`` gives."""
    return np.asarray(np.clip(x, *bounds))
