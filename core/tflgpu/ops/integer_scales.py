"""The scales of an operator that computes on stored numbers by all of its tensors', those among them
that a file only gives to say a scale of what is computed on the way (its intermediates)."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np

from tflgpu.errors import UnsupportedError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.quant import Quantization
from tflgpu.ops.base import Fields


@attrs.frozen
class Scales:
    """Types and scales of a node's tensors. Asking for a scale that the file does not give raises
    `UnsupportedError`."""

    op: str
    operands: tuple[tuple[DType, Quantization | None] | None, ...]
    intermediates: tuple[Quantization | None, ...]
    output: Quantization | None

    @classmethod
    def of_fields(cls, fields: Fields, op: str = "") -> Scales:
        """What a node's tensors told (`tflgpu.tflite.told`)."""
        return cls(
            op or fields.op,
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

    def of(self, index: int) -> np.float32:
        """The scale of an operand."""
        return self._scale(self._operand(index), f"operand {index}")

    def zero(self, index: int) -> int:
        """Its zero point."""
        return self._one(self._operand(index), f"operand {index}").zero_point[0]

    def told(self, index: int) -> np.float32:
        """The scale of an intermediate."""
        return self._scale(self._told(index), f"intermediate {index}")

    def told_zero(self, index: int) -> int:
        """Its zero point."""
        return self._one(self._told(index), f"intermediate {index}").zero_point[0]

    @property
    def result(self) -> np.float32:
        """The scale of the result."""
        return self._scale(self.output, "the result")

    @property
    def result_zero(self) -> int:
        """Its zero point."""
        return self._one(self.output, "the result").zero_point[0]

    @property
    def _source(self) -> str:
        dtype = self.dtype(0)
        return "nothing" if dtype is None else dtype.value

    def _operand(self, index: int) -> Quantization | None:
        found = self.operands[index] if self.has(index) else None
        return None if found is None else found[1]

    def _told(self, index: int) -> Quantization | None:
        return self.intermediates[index] if index < len(self.intermediates) else None

    def _one(self, quant: Quantization | None, what: str) -> Quantization:
        if quant is None or quant.per_axis:
            raise UnsupportedError(
                f"{self.op} of {self._source}: {what} has "
                f"{'no scale' if quant is None else 'several scales'}"
            )
        if not quant.scale[0] > 0:
            raise UnsupportedError(f"{self.op} of {self._source}: {what} has scale 0")
        return quant

    def _scale(self, quant: Quantization | None, what: str) -> np.float32:
        found: np.float32 = np.float32(self._one(quant, what).scale[0])
        return found
