"""How an output of a device differs from a reference, judged by what the output is: values, scores
of classes, a mask, boxes, or whole numbers."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array

#: Limits of a histogram's bins: differences as shares of an output's largest value.
BINS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)

#: Classes from which on the last axis of a single row is one of scores.
_CLASSES = 10
_TOP = 5
#: Height and width from which on an output is a picture.
_PIXELS = 16
#: Share of the pixels of a mask that may have another class.
MASK_LIMIT = 0.01
#: Least overlap (intersection over union) of a box with the reference's, and the score from which
#: on a detection counts.
_OVERLAP, _SCORE = 0.9, 0.3


class OutputKind(enum.Enum):
    """What an output is, by its shape and type."""

    VALUES = "values"
    SCORES = "top-k"
    MASK = "mask"
    BOXES = "boxes"
    WHOLE = "whole numbers"


def kind_of(array: Array) -> OutputKind:
    """The kind of an output, by its shape and type."""
    shape, is_byte = array.shape, array.dtype in (np.dtype(np.int8), np.dtype(np.uint8))
    if array.dtype.kind not in "fc" and not is_byte:
        return OutputKind.WHOLE
    is_row = len(shape) == 2 or (len(shape) > 2 and not is_byte)
    if is_row and array.size == shape[-1] >= _CLASSES:
        return OutputKind.SCORES
    is_picture = len(shape) == 4 and not is_byte and min(shape[1:3]) >= _PIXELS
    return OutputKind.MASK if is_picture and shape[3] <= 2 * _CLASSES + 2 else OutputKind.VALUES


@attrs.frozen
class Gap:
    """A difference of two outputs of one shape.

    Attributes:
        max_abs: The largest, of an element, in the output's own unit; in real numbers where it is
            quantized.
        share: That over the largest magnitude of the reference; of whole numbers the share of
            elements that differ.
        rms: The root of the mean square of the differences, over that of the reference.
        lost: Elements that are NaN or infinite and are finite in the reference.
        not_finite: Elements that are NaN or infinite in the reference.
        equal: Whether all bits are the same.
        histogram: Elements by the size of their difference, in `BINS`.
    """

    max_abs: float = 0.0
    share: float = 0.0
    rms: float = 0.0
    lost: int = 0
    not_finite: int = 0
    equal: bool = True
    histogram: tuple[int, ...] = (0,) * (len(BINS) + 1)

    def merged(self, other: Gap) -> Gap:
        """The worse of the two in each field; counts are added."""
        return Gap(
            max(self.max_abs, other.max_abs),
            max(self.share, other.share),
            max(self.rms, other.rms),
            self.lost + other.lost,
            self.not_finite + other.not_finite,
            self.equal and other.equal,
            tuple(a + b for a, b in zip(self.histogram, other.histogram, strict=True)),
        )


def gap_of(output: Array, reference: Array, quantization: tuple[float, int] = (0.0, 0)) -> Gap:
    """The difference of two outputs; ``quantization`` is a scale and a zero point, or 0 and 0."""
    if output.shape != reference.shape:
        return Gap(np.inf, np.inf, np.inf, lost=reference.size, equal=False)
    if not output.size:
        return Gap()
    equal = output.tobytes() == reference.tobytes() if output.dtype.kind != "O" else False
    if output.dtype.kind not in "fc" and not quantization[0]:
        differing = float(np.mean(output != reference))
        equal = differing == 0
        return Gap(differing, differing, differing, equal=equal)
    x, y = real(output, quantization), real(reference, quantization)
    judged = np.isfinite(y)
    finite = judged & np.isfinite(x)
    apart = np.abs(x[finite] - y[finite])
    scale = reach_of(y) or 1.0
    norm = float(np.sqrt(np.mean(np.square(np.abs(y[judged]))))) if judged.any() else 0.0
    rms = float(np.sqrt(np.mean(np.square(apart)))) if apart.size else 0.0
    bins = np.bincount(np.digitize(apart / scale, BINS), minlength=len(BINS) + 1)
    most = float(apart.max(initial=0.0))
    return Gap(
        most,
        most / scale,
        rms / (norm or 1.0),
        int(judged.sum() - finite.sum()),
        int((~judged).sum()),
        equal,
        tuple(int(n) for n in bins),
    )


def real(array: Array, quantization: tuple[float, int]) -> Array:
    """An output as real numbers in double precision."""
    scale, zero = quantization
    wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return (wide - zero) * scale if scale else wide


def reach_of(array: Array) -> float:
    """The largest magnitude of the finite elements of an array; 0 where there are none."""
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def other_classes(output: Array, reference: Array) -> float:
    """The share of the pixels of a mask [N,H,W,C] that have another class: the greatest of several
    channels; of a single one, whether it is over the middle of the reference's range."""
    if reference.shape[-1] > 1:
        return float(np.mean(output.argmax(-1) != reference.argmax(-1)))
    finite = reference[np.isfinite(reference)]
    if not finite.size:
        return 0.0
    middle = (float(finite.min()) + float(finite.max())) / 2
    return float(np.mean((output > middle) != (reference > middle)))


def ranking(output: Array, reference: Array, tie: float) -> str:
    """What is wrong with the order of scores, "" where the best is the same and the top five are
    the same set. Scores that lie within ``tie`` of each other may change places."""
    ours, theirs = output.ravel(), reference.ravel()
    best = int(theirs.argmax())
    if theirs[best] - theirs[int(ours.argmax())] > tie:
        return f"the best is {int(ours.argmax())}, not {best}"
    least = np.sort(theirs)[-_TOP]
    strangers = [int(i) for i in np.argsort(-ours, kind="stable")[:_TOP] if theirs[i] < least - tie]
    return f"{strangers} are among the first {_TOP}" if strangers else ""


def boxes_apart(output: Sequence[Array], reference: Sequence[Array]) -> str:
    """What is wrong with detections (boxes [1,N,4], classes [1,N], scores [1,N]); "" where each of
    the reference's has one of its class in its place."""
    ours, theirs = (
        [np.asarray(a, np.float64).reshape(a.shape[1:]) for a in each[:3]]
        for each in (output, reference)
    )
    for at in np.flatnonzero(theirs[2] >= _SCORE):
        same = np.flatnonzero(ours[1] == theirs[1][at])
        overlap = max((_overlap(ours[0][i], theirs[0][at]) for i in same), default=0.0)
        if overlap < _OVERLAP:
            return (
                f"detection {at} (class {int(theirs[1][at])}, score {theirs[2][at]:.2f}) overlaps "
                f"none of its class by more than {overlap:.0%}"
            )
    return ""


def _overlap(one: Array, other: Array) -> float:
    top, left = np.maximum(one[:2], other[:2])
    bottom, right = np.minimum(one[2:], other[2:])
    both = max(bottom - top, 0.0) * max(right - left, 0.0)
    areas = sum(max(b[2] - b[0], 0.0) * max(b[3] - b[1], 0.0) for b in (one, other))
    return float(both / (areas - both)) if areas > both else float(np.array_equal(one, other))
