"""Affine quantization of a tensor: ``real = scale * (stored - zero_point)``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tflgpu.errors import GraphError
from tflgpu.values import frozen


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
