"""How far one output is from another."""

from __future__ import annotations

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array


@attrs.frozen
class Difference:
    """How far an output is from another.

    Attributes:
        max_abs: Largest absolute difference of an element.
        relative_l2: Length of the difference over the length of the other; infinite where the
            other is all zeros and this is not.
    """

    max_abs: float
    relative_l2: float


def difference(output: Array, reference: Array) -> Difference:
    """Compare two outputs of one shape; a NaN that only one of them has is infinitely far, and so
    is another text."""
    if output.shape != reference.shape:
        return Difference(float("inf"), float("inf"))
    if not output.size:
        return Difference(0.0, 0.0)
    if output.dtype.kind in "OSU":  # texts, which are equal or are not
        texts = np.array_equal(output.astype(object), reference.astype(object))
        return Difference(0.0, 0.0) if texts else Difference(float("inf"), float("inf"))
    # f64 holds every f32 and every int up to 2^53, so that nothing is lost by comparing.
    kind = np.complex128 if "c" in (output.dtype.kind, reference.dtype.kind) else np.float64
    a, b = output.astype(kind).ravel(), reference.astype(kind).ravel()
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    gap = np.where(same, 0.0, np.abs(np.subtract(a, b, where=~same, out=np.zeros_like(a))))
    gap[np.isnan(gap)] = np.inf
    length = float(np.linalg.norm(np.where(np.isfinite(b), b, 0.0)))
    apart = float(np.linalg.norm(gap))
    relative = apart / length if length else (float("inf") if apart else 0.0)
    return Difference(float(gap.max()), relative)
