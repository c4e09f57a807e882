"""NON_MAX_SUPPRESSION_V4 and _V5 (TFLite version 1): the best boxes that do not overlap too much.

As in TFLite's kernel (reference/non_max_suppression.h) boxes are taken by falling score; one that
overlaps an earlier one by the threshold or more is left out, and with a sigma (V5) overlaps lower
scores. Of equal scores the earlier box comes first, where TFLite's order is accidental. Results are
as long as the count says, filled up with zeros.

A box that was taken is looked at once more, against itself. It overlaps itself and is left out, but
one without an area overlaps nothing and is taken again, as often as there is room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from tflgpu.errors import InputError, ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import const_integer, need_rank, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Contents,
    NoAttrs,
    OnDevice,
    OpDef,
    Operands,
    Sample,
    no_attrs,
)
from tflgpu.ops.facets import always

_V4, _V5 = "NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5"
_SCALARS = ("count", "overlap threshold", "score threshold", "sigma")


def _infer(op: str, attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    given = take_operands(op, operands, 5 if op == _V4 else 6)
    boxes, scores, count = given[:3]
    if boxes.rank != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1]:
        raise ModelError(
            f"{op}: boxes (operand 0) of shape {list(boxes.shape)} and scores (operand 1) of "
            f"{list(scores.shape)}; [n, 4] and [n] needed"
        )
    for i, operand in enumerate(given):
        wanted = DType.I32 if i == 2 else DType.F32
        if operand.dtype is not wanted:
            raise ModelError(f"{op}: operand {i} is {operand.dtype.value}; {wanted.value} needed")
    for i, (operand, name) in enumerate(zip(given[2:], _SCALARS, strict=False), 2):
        need_rank(op, operand, f"{name} (operand {i})", 0)
    size = const_integer(op, count, "count (operand 2)")
    if size < 0:
        raise ModelError(f"{op}: count (operand 2) is {size}")
    indices, scalar = TensorSpec((size,), DType.I32), TensorSpec((), DType.I32)
    return [indices, scalar] if op == _V4 else [indices, TensorSpec((size,), DType.F32), scalar]


def _overlaps(boxes: Array, one: int, others: Sequence[int]) -> Array:
    """The intersection of a box with others, by their union; 0 where a box has no area."""
    a, b = boxes[one], boxes[list(others)]
    top, left = np.minimum(b[:, 0], b[:, 2]), np.minimum(b[:, 1], b[:, 3])
    bottom, right = np.maximum(b[:, 0], b[:, 2]), np.maximum(b[:, 1], b[:, 3])
    (y0, x0), (y1, x1) = np.minimum(a[:2], a[2:]), np.maximum(a[:2], a[2:])
    own, areas = (y1 - y0) * (x1 - x0), (bottom - top) * (right - left)
    zero = np.float32(0)
    height = np.maximum(np.minimum(y1, bottom) - np.maximum(y0, top), zero)
    width = np.maximum(np.minimum(x1, right) - np.maximum(x0, left), zero)
    both = height * width
    with np.errstate(all="ignore"):
        found = both / (own + areas - both)
    return np.asarray(np.where((own <= 0) | (areas <= 0), zero, found))


def _select(op: str, arrays: Sequence[Array]) -> tuple[list[int], list[np.float32]]:
    """The boxes taken, and their scores."""
    boxes, scores, count, overlap, least = arrays[:5]
    sigma = np.float32(arrays[5]) if op == _V5 else np.float32(0)
    if sigma < 0:
        raise InputError(f"{op}: sigma (operand 5) is {sigma}")
    threshold = np.float32(least)
    scale = np.float32(-0.5) / sigma if sigma > 0 else np.float32(0)
    # By index: the score now, and how many of those taken have been looked at.
    waiting = {i: (s, 0) for i, s in enumerate(scores) if s > threshold}
    limit = min(int(count), len(waiting))
    taken: list[int] = []
    found: list[np.float32] = []
    while waiting and len(taken) < limit:
        best = max(waiting, key=lambda i: (waiting[i][0], -i))
        before, looked = waiting.pop(best)
        score, dropped = before, False
        # From the last one back, as TFLite goes.
        near = _overlaps(boxes, best, taken[looked:])[::-1] if looked < len(taken) else ()
        for shared in near:
            if shared >= np.float32(overlap):
                dropped = True
                break
            if sigma > 0:
                score = np.float32(score * np.float32(math.exp(scale * shared * shared)))
            if score <= threshold:
                break
        if dropped:
            continue
        seen = len(taken)
        if score == before:
            taken.append(best)
            found.append(np.float32(score))
        if score > threshold:
            waiting[best] = (score, seen)
    return taken, found


def _reference(op: str, attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    given = [present(a) for a in arrays]
    taken, found = _select(op, given)
    size = int(given[2])
    indices, scores = np.zeros(size, np.int32), np.zeros(size, np.float32)
    indices[: len(taken)], scores[: len(taken)] = taken, found
    number = np.array(len(taken), np.int32)
    return [indices, number] if op == _V4 else [indices, scores, number]


def _boxes(count: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    corner, size = rng.uniform(0, 1, (count, 2)), rng.uniform(0.1, 0.6, (count, 2))
    return np.concatenate([corner, corner + size], 1).astype(np.float32)


def _samples(op: str) -> list[Sample]:
    def sample(
        id: str,
        boxes: int,
        count: int,
        overlap: float = 0.4,
        least: float = 0.1,
        sigma: float = 0.0,
        flipped: bool = False,
    ) -> Sample:
        places = _boxes(boxes, 7)
        args = [
            Arg.of(places[:, [2, 3, 0, 1]] if flipped else places),
            Arg((boxes,), low=0, high=1),
            Arg.of(count, DType.I32),
            Arg.of(overlap),
            Arg.of(least),
        ]
        return Sample(id, {}, (*args, Arg.of(sigma)) if op == _V5 else tuple(args))

    found = [
        sample("few", 7, 3),
        sample("more_than_there_are", 5, 11),
        sample("many", 29, 13, overlap=0.2),
        sample("flipped", 9, 5, flipped=True),
        sample("none_is_good_enough", 5, 3, least=2.0),
        sample("no_room", 5, 0),
    ]
    # No area, as many models fill up their boxes.
    flat = np.concatenate([_boxes(3, 7), np.zeros((3, 4), np.float32)])
    args = [
        Arg.of(flat),
        Arg.of(np.array([0.9, 0.8, 0.7, 0.75, 0.3, 0.2], np.float32)),
        Arg.of(5, DType.I32),
        Arg.of(0.4),
        Arg.of(0.1),
    ]
    found.append(Sample("no_area", {}, (*args, Arg.of(0.0)) if op == _V5 else tuple(args)))
    if op == _V5:
        found += [
            sample("soft", 13, 9, sigma=0.5, overlap=1.0),
            sample("soft_and_hard", 13, 9, sigma=0.3, overlap=0.6),
        ]
    return found


OPS = tuple(
    OpDef(
        op,
        no_attrs,
        partial(_infer, op),
        partial(_reference, op),
        partial(_samples, op),
        accuracy=Accuracy.TRANSCENDENTAL,
        device=OnDevice(limits=always("{op} takes one box after the other; it stays on the CPU")),
        contents=Contents(settings=(3, 4) if op == _V4 else (3, 4, 5)),
    )
    for op in (_V4, _V5)
)
