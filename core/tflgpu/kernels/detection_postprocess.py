"""TFLite_Detection_PostProcess: four dispatches, five with regular suppression, and no intermediate
result leaves the device.

Boxes are decoded and scores become keys; a workgroup a list chooses (`kernels/suppression.py`);
what was chosen is written out. "Fast" suppression has one list, of every box's best class;
"regular" one a class, which are merged. It is computed in f32 in every precision: a small error
could change which boxes and classes are chosen.
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.graph import Node
from tflgpu.kernels.suppression import (
    NOTHING,
    BoxLists,
    better_of,
    choose,
    merge,
    ordered,
    ordered_limit,
)
from tflgpu.kernels.team import Teams
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import I32x4, Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering, Temp, guard
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.rule import FLOATS, KernelRule, Site, takes
from tflgpu.lowering.view import ReadView
from tflgpu.ops.detection_postprocess import OP, DetectionPostprocess
from tflgpu.values import frozen

_WORKGROUP = 64
_MEMBERS = 16  # that look for the best class of four boxes
_BOXES, _SCORES, _ANCHORS = range(3)
_CORNERS, _LABELS, _VALUES, _COUNT = range(4)
_EXACT_IN_F16 = 2048  # whole numbers up to it


@frozen
class _Scores:
    """The scores of the classes that count: those of a background may lie before them."""

    k: Builder
    view: ReadView
    boxes: int
    classes: int

    @classmethod
    def of(cls, low: Lowering, k: Builder) -> _Scores:
        return cls(k, low.read(k, _SCORES), low.node.input(_SCORES).shape[1], low.attrs.num_classes)

    def load(self, box: Expr, class_: Expr) -> Expr:
        """One score, f32."""
        column = class_ + (self.view.channels - self.classes)
        return self.k.cast(self.view.load_lane(box, column), Scalar.F32)

    def keys(self, slice_: Expr, class_: Expr) -> Expr:
        """Keys of four boxes; what they are past the last box does not matter."""
        k = self.k
        rows = [k.min(slice_ * 4 + lane, self.boxes - 1) for lane in range(4)]
        return k.let(ordered(k, k.vec([self.load(row, class_) for row in rows])), "key")


def _build(low: Lowering) -> None:
    attributes: DetectionPostprocess = low.attrs
    count = low.node.input(_SCORES).shape[1]
    boxes = _decode(low)
    most = min(attributes.max_detections, count)
    if attributes.use_regular_nms:
        classes = attributes.num_classes
        each = min(attributes.detections_per_class, most)
        choice = BoxLists(boxes, _rank_all(low), None, each, attributes.nms_iou_threshold)
        most = min(attributes.max_detections, each * classes)
        chosen = merge(low, choose(low, choice), classes, most)
    else:
        keys, numbers = _rank_best(low)
        choice = BoxLists(boxes, keys, numbers, most, attributes.nms_iou_threshold)
        chosen = choose(low, choice)
    _report(low, boxes, chosen)


def _candidates(low: Lowering, k: Builder, keys: Expr) -> Expr:
    """The keys, but of boxes that are below the threshold."""
    limit = ordered_limit(low.attrs.nms_score_threshold)
    return k.select(keys >= limit, keys, NOTHING)


def _decode(low: Lowering) -> Temp:
    """Corners of all boxes, [boxes, 4]."""
    attributes: DetectionPostprocess = low.attrs
    count = low.node.input(_BOXES).shape[1]
    boxes = low.temp((count, 4), Scalar.F32)
    k = low.kernel("decode_boxes")
    encoded, out = low.read(k, _BOXES), low.write_temp(k, boxes, "boxes")
    anchors = low.node.input(_ANCHORS)
    box = k.let(k.global_id(0), "box")
    guard(k, box < count)
    if anchors.data is None:
        place = k.cast(low.read(k, _ANCHORS).load(box, 0), Scalar.F32)
    else:
        # In f32 also where the precision would store constants in 16 bits.
        place = k.load(low.weights(k, anchors.data, "anchors", scalar=Scalar.F32), box)
    place = k.let(place, "anchor")
    code = k.let(k.cast(encoded.load(box, 0), Scalar.F32), "code")
    y, x, h, w = (code.lane(i) / np.float32(s).item() for i, s in enumerate(attributes.scales))
    size = [place.lane(2), place.lane(3)]
    middle = [
        k.let(k.fma(c, s, place.lane(i)), "middle")
        for i, (c, s) in enumerate(zip((y, x), size, strict=True))
    ]
    half = [k.let(k.call("exp", c) * s * 0.5, "half") for c, s in zip((h, w), size, strict=True)]
    low_, high = (
        [m - d for m, d in zip(middle, half, strict=True)],
        [m + d for m, d in zip(middle, half, strict=True)],
    )
    out.store(box, 0, k.vec([*low_, *high]))
    low.dispatch(k, (count, 1, 1))
    return boxes


def _rank_best(low: Lowering) -> tuple[Temp, Temp]:
    """Keys and numbers of every box's best class, [1, boxes]; a team finds those of four boxes."""
    count = low.node.input(_SCORES).shape[1]
    keys, numbers = low.temp((1, count), Scalar.I32), low.temp((1, count), Scalar.I32)
    teams = Teams.of(low.caps, _WORKGROUP // _MEMBERS, _MEMBERS, lanes_first=True)
    k = low.kernel("best_classes", teams.workgroup)
    scores = _Scores.of(low, k)
    out, second = low.write_temp(k, keys, "keys"), low.write_temp(k, numbers, "numbers")
    member = teams.member(k)
    slice_ = k.let(k.group_id(0) * teams.columns + member.column, "slice")
    best = k.var(k.const(NOTHING, I32x4), "best")
    number = k.var(k.const(0, I32x4), "number")
    with k.loop(0, -(-scores.classes // teams.lanes), name="turn") as turn:
        class_ = k.let(turn * teams.lanes + member.lane, "class")
        with k.if_(class_ < scores.classes):
            key = scores.keys(slice_, class_)
            better = k.let(key > best, "better")
            k.set(best, k.select(better, key, best))
            k.set(number, k.select(better, k.splat(class_, 4), number))
    rooms = [member.shared(I32x4, "best_keys"), member.shared(I32x4, "best_classes")]
    member.combine(rooms, [best, number], better_of(k))
    with k.if_(member.lane.eq(0) & (slice_ < out.slices)):
        out.store(k.i32(0), slice_, _candidates(low, k, best))
        second.store(k.i32(0), slice_, number)
    low.dispatch_groups(k, (-(-out.slices // teams.columns), 1, 1))
    return keys, numbers


def _rank_all(low: Lowering) -> Temp:
    """Keys [classes, boxes]."""
    count, classes = low.node.input(_SCORES).shape[1], low.attrs.num_classes
    keys = low.temp((classes, count), Scalar.I32)
    k = low.kernel("score_keys")
    scores, out = _Scores.of(low, k), low.write_temp(k, keys, "keys")
    with each_vector(low, k, out) as (class_, slice_):
        out.store(class_, slice_, _candidates(low, k, scores.keys(slice_, class_)))
    return keys


def _report(low: Lowering, boxes: Temp, chosen: Temp) -> None:
    """All four results, four detections an invocation; zeros where there are none."""
    attributes: DetectionPostprocess = low.attrs
    width = 1 if attributes.use_regular_nms else attributes.max_classes_per_detection
    rows = chosen.layout.shape[0]
    k = low.kernel("detections")
    picked, places, scores = (
        low.read_temp(k, chosen, "chosen"),
        low.read_temp(k, boxes, "boxes"),
        _Scores.of(low, k),
    )
    corners, labels, values, number = (low.write(k, i) for i in range(4))
    slice_ = k.let(k.global_id(0), "slice")
    guard(k, slice_ < labels.slices)
    found: list[Expr] = []
    reached: list[Expr] = []
    for lane in range(4):
        slot = k.let(slice_ * 4 + lane, "slot")
        row = k.let(picked.load(k.min(slot // width, rows - 1), 0), "row")
        box = k.let(k.max(row.lane(0), 0), "box")
        if width == 1:
            class_, is_class = row.lane(2), row.lane(0) >= 0
        else:
            rank = k.let(slot % width, "rank")
            class_, is_class = (
                _ranked(scores, box, rank),
                (rank < scores.classes) & (row.lane(0) >= 0),
            )
        exists = k.let((slot < rows * width) & is_class, "exists")
        found.append(k.select(exists, k.cast(class_, Scalar.F32), 0.0))
        reached.append(k.select(exists, scores.load(box, class_), 0.0))
        with k.if_(slot < labels.channels):
            corners.store(slot, 0, k.select(exists, places.load(box, 0), 0.0))
    labels.store(k.i32(0), slice_, k.vec(found))
    values.store(k.i32(0), slice_, k.vec(reached))
    with k.if_(slice_.eq(0)):
        total = k.var(k.i32(0), "total")
        with k.loop(0, rows, name="row") as at:
            k.add_to(total, k.select(picked.load_lane(at, 0) >= 0, k.i32(1), 0))
        number.store(k.i32(0), 0, k.splat(k.cast(total, Scalar.F32), 4))
    low.dispatch(k, (labels.slices, 1, 1))


def _ranked(scores: _Scores, box: Expr, rank: Expr) -> Expr:
    """The class of a box that ``rank`` others beat: better ones, and equal ones of lower number.
    Classes whose score is NaN come last."""
    k, classes = scores.k, scores.classes
    last_key, last = k.var(k.i32(2**31 - 1), "last_key"), k.var(k.i32(-1), "last")
    with k.loop(0, k.let(k.min(rank, classes - 1) + 1, "passes"), name="pass"):
        best, where = k.var(k.i32(NOTHING), "best"), k.var(k.i32(classes), "where")
        with k.loop(0, classes, name="class") as class_:
            key = k.let(ordered(k, scores.load(box, class_)), "key")
            follows = (key < last_key) | (key.eq(last_key) & (class_ > last))
            with k.if_(follows & ((key > best) | where.eq(classes))):
                k.set(best, key)
                k.set(where, class_)
        k.set(last_key, best)
        k.set(last, where)
    return k.let(last, "class")


def _accepts(node: Node, site: Site) -> str | None:
    attributes: DetectionPostprocess = node.attrs
    largest = max(attributes.num_classes, attributes.max_detections)
    if site.precision is Precision.F16 and largest > _EXACT_IN_F16:
        return f"{OP}: classes or a count of up to {largest} are not exact in 16-bit floats"
    return takes(FLOATS)(node, site)


RULES = (KernelRule(OP, "on the device", _build, _accepts, fuses=False),)
