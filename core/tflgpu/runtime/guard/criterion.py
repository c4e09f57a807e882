"""The distance of a tensor from its reference, as one number that fits any op."""

from __future__ import annotations

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Value
from tflgpu.passes.scales import is_quantized


@attrs.frozen
class Off:
    """A difference.

    Attributes:
        share: The largest difference between elements that are finite in both tensors, over the
            largest magnitude among the expected ones (its scale); without a unit. Of an expected
            tensor of zeros the scale is 1. Relative to the tensor and not to each element, since a
            sum of large numbers that is nearly zero is not expected to have as many right digits.
            Of whole numbers and booleans, which have no scale (indices, classes), the share of
            elements that differ.
        lost: How many elements are NaN or infinite and should be finite.
        elements: How many there are.
    """

    share: float
    lost: int
    elements: int

    def beyond(self, limit: float) -> bool:
        """Whether it is more than may be. What was lost always is."""
        return self.lost > 0 or self.share > limit

    @property
    def error(self) -> float | None:
        """``share``; None where elements were lost."""
        return None if self.lost else self.share

    def __str__(self) -> str:
        if self.lost:
            return f"{self.lost} of {self.elements} values are NaN or infinite"
        return f"off by {self.share:.2g} of its largest value"


#: Of no elements.
NOTHING = Off(0.0, 0, 0)


def worst(found: list[Off]) -> Off:
    """The one with most lost elements, then with the largest share."""
    return max(found, key=lambda off: (off.lost, off.share), default=NOTHING)


def off_by(got: Array, expected: Array, like: Value) -> Off:
    """How far ``got`` is from ``expected``, two arrays of the type of ``like``.

    Where an expected element is not finite itself there is nothing to compare with. Quantized
    tensors are compared as the real numbers that they stand for, and one step is no difference:
    an exact result may lie between two.
    """
    if expected.size == 0:
        return NOTHING
    step = 0.0
    if is_quantized(like):
        assert like.quant is not None
        got, expected = like.quant.dequantize(got), like.quant.dequantize(expected)
        step = float(max(like.quant.scale)) * (1 + 1e-6)
    elif not like.dtype.is_float:
        return Off(float(np.mean(got != expected)), 0, expected.size)
    x, y = got.astype(np.float64), expected.astype(np.float64)
    judged = np.isfinite(y)
    finite = judged & np.isfinite(x)
    lost = int(judged.sum() - finite.sum())
    scale = float(np.abs(y[judged]).max(initial=0.0)) or 1.0
    largest = float(np.abs(x[finite] - y[finite]).max(initial=0.0))
    return Off(max(0.0, largest - step) / scale, lost, expected.size)
