"""Element types of tensors, with their NumPy and TFLite counterparts; and affine quantization, by
which whole numbers stand for real ones: ``real = scale * (stored - zero_point)``."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tflgpu.errors import GraphError
from tflgpu.values import frozen

Array = npt.NDArray[Any]


class DType(enum.Enum):
    """A tensor's element type. The value is the short name used in dumps and tables."""

    F32 = "f32"
    F16 = "f16"
    F64 = "f64"
    BF16 = "bf16"
    I2 = "i2"
    I4 = "i4"
    U4 = "u4"
    I8 = "i8"
    U8 = "u8"
    I16 = "i16"
    U16 = "u16"
    I32 = "i32"
    U32 = "u32"
    I64 = "i64"
    U64 = "u64"
    BOOL = "bool"
    C64 = "c64"
    C128 = "c128"
    STRING = "string"
    RESOURCE = "resource"
    VARIANT = "variant"

    def __repr__(self) -> str:
        return self.value

    @property
    def has_numpy(self) -> bool:
        """Whether a NumPy dtype stands for it (not for i2, i4, u4, bf16, strings and handles)."""
        return self in _NUMPY

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype.

        Raises:
            TypeError: there is none for this type; ask `has_numpy` first.
        """
        try:
            return _NUMPY[self]
        except KeyError:
            raise TypeError(f"{self.value} has no NumPy dtype") from None

    @property
    def held_as(self) -> np.dtype[Any]:
        """The type of the arrays that hold it on the host: `numpy`, and for texts that of Python's
        objects, which are ``bytes``.

        Raises:
            TypeError: as `numpy`.
        """
        return np.dtype(np.object_) if self is DType.STRING else self.numpy

    def blank(self, shape: Sequence[int]) -> Array:
        """An array on the host of zeros, or of empty texts.

        Raises:
            TypeError: as `numpy`.
        """
        if self is DType.STRING:
            return np.full(tuple(shape), b"", np.object_)
        return np.zeros(tuple(shape), self.numpy)

    @property
    def itemsize(self) -> int:
        """Bytes an element; 0 where elements are not whole bytes or have no fixed size."""
        if self is DType.BF16:
            return 2
        return _NUMPY[self].itemsize if self in _NUMPY else 0

    @property
    def packed(self) -> int:
        """Bits of a number of which several lie in one byte of a file; 0 for all other types."""
        return {DType.I2: 2, DType.I4: 4, DType.U4: 4}.get(self, 0)

    @property
    def unpacked(self) -> DType:
        """The type of a whole byte that such a number is unpacked to; any other type itself."""
        if not self.packed:
            return self
        return DType.U8 if self is DType.U4 else DType.I8

    @property
    def is_float(self) -> bool:
        """f16, bf16, f32 or f64."""
        return self in (DType.F16, DType.BF16, DType.F32, DType.F64)

    @property
    def is_int(self) -> bool:
        """A signed or unsigned whole number (bool is not one)."""
        return self.value[0] in "iu" and self.value[1:].isdigit()

    @classmethod
    def from_numpy(cls, dtype: npt.DTypeLike) -> DType:
        """The DType of a NumPy dtype.

        Raises:
            TypeError: no tensor type stands for it.
        """
        wanted = np.dtype(dtype)
        for ours, theirs in _NUMPY.items():
            if theirs == wanted:
                return ours
        raise TypeError(f"no tensor type stands for NumPy dtype {wanted}")

    @classmethod
    def from_tflite(cls, code: int) -> DType:
        """The DType of a TFLite `TensorType` code.

        Raises:
            KeyError: the schema defines no such code.
        """
        return _TFLITE[code]

    @property
    def tflite(self) -> int:
        """The TFLite `TensorType` code.

        Raises:
            KeyError: the format has no such type.
        """
        return {v: k for k, v in _TFLITE.items()}[self]


_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.F32: np.dtype(np.float32),
    DType.F16: np.dtype(np.float16),
    DType.F64: np.dtype(np.float64),
    DType.I8: np.dtype(np.int8),
    DType.U8: np.dtype(np.uint8),
    DType.I16: np.dtype(np.int16),
    DType.U16: np.dtype(np.uint16),
    DType.I32: np.dtype(np.int32),
    DType.U32: np.dtype(np.uint32),
    DType.I64: np.dtype(np.int64),
    DType.U64: np.dtype(np.uint64),
    DType.BOOL: np.dtype(np.bool_),
    DType.C64: np.dtype(np.complex64),
    DType.C128: np.dtype(np.complex128),
}

# TensorType in the TFLite schema (schema.fbs, version 3).
_TFLITE: dict[int, DType] = {
    0: DType.F32,
    1: DType.F16,
    2: DType.I32,
    3: DType.U8,
    4: DType.I64,
    5: DType.STRING,
    6: DType.BOOL,
    7: DType.I16,
    8: DType.C64,
    9: DType.I8,
    10: DType.F64,
    11: DType.C128,
    12: DType.U64,
    13: DType.RESOURCE,
    14: DType.VARIANT,
    15: DType.U32,
    16: DType.U16,
    17: DType.I4,
    18: DType.BF16,
    19: DType.I2,
    20: DType.U4,
}


@frozen
class Quantization:
    """Scales and zero points of one tensor, per tensor or per slice along one axis.

    Source of the rule: the TFLite 8-bit quantization specification.

    Attributes:
        scale: one scale for the whole tensor, or one a slice along ``axis``. Finite, not negative.
        zero_point: the stored value that stands for 0.0; as many as there are scales.
        axis: the axis that several scales run along; 0 and without meaning for a single scale.
        min: smallest real values seen when the model was calibrated; often empty, never needed.
        max: largest real values seen when the model was calibrated; often empty, never needed.

    Raises:
        GraphError: no scale, unequal counts, a scale that is negative, infinite or NaN, or a
            negative axis.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int = 0
    min: tuple[float, ...] = ()
    max: tuple[float, ...] = ()

    def __attrs_post_init__(self) -> None:
        if not self.scale or len(self.scale) != len(self.zero_point):
            raise GraphError(
                f"quantization needs as many zero points as scales and at least one, "
                f"not {len(self.zero_point)} for {len(self.scale)}"
            )
        # There may be thousands, and each start makes them.
        if min(self.scale) < 0 or not all(map(math.isfinite, self.scale)):
            wrong = next(s for s in self.scale if not math.isfinite(s) or s < 0)
            raise GraphError(f"quantization scale {wrong} is not a finite number >= 0")
        if self.axis < 0:
            raise GraphError(f"quantization axis {self.axis} is negative")

    @property
    def per_axis(self) -> bool:
        """Whether there is more than one scale."""
        return len(self.scale) > 1

    def broadcast(self, rank: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Scales and zero points, shaped to broadcast against a tensor of ``rank`` dimensions.

        Returns:
            Two arrays of shape ``()`` for a single scale, else of shape ``(1, .., n, .., 1)`` with
            ``n`` at ``axis``.

        Raises:
            GraphError: there are several scales and ``axis`` is not below ``rank``.
        """
        shape: tuple[int, ...] = ()
        if self.per_axis:
            if self.axis >= rank:
                raise GraphError(f"quantization axis {self.axis} of a tensor of rank {rank}")
            shape = (1,) * self.axis + (-1,) + (1,) * (rank - self.axis - 1)
        scale = np.array(self.scale, np.float32).reshape(shape)
        zero_point = np.array(self.zero_point, np.int64).reshape(shape)
        return scale, zero_point

    def dequantize(self, stored: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The real values of stored whole numbers, as f32 of the same shape.

        Raises:
            GraphError: ``axis`` is not an axis of ``stored``.
        """
        scale, zero_point = self.broadcast(stored.ndim)
        narrow = stored.dtype.itemsize <= 2 and abs(zero_point).max() < 1 << 30
        wide = np.int32 if narrow else np.int64
        centred = stored.astype(wide) - zero_point.astype(wide)
        return np.asarray(centred.astype(np.float32) * scale, np.float32)
