"""What passes ask of constants."""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import Array


def f32(data: Array) -> Array:
    """A constant's contents as f32."""
    return np.asarray(data, np.float32, order="C")
