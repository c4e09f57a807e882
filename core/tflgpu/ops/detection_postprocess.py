"""TFLite_Detection_PostProcess: boxes and scores of an SSD detector -> the detections. Version 1.

Boxes come as offsets from anchors and are decoded; overlapping ones are suppressed, greedily from
the highest score down. "Fast" suppression looks at each box's best class only; "regular"
suppression treats every class on its own. Arithmetic and ties (the lower box first) are those of
TFLite's kernel; what it leaves unset beyond the last detection is 0 here. Only where several
classes of a box are asked for, equal ones come in order here, and there as C++'s `partial_sort` of
the platform leaves them.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import need_rank, present, take_operands
from tflgpu.ops.base import Accuracy, Arg, Arrays, Fields, OpDef, Operands, Sample
from tflgpu.ops.flexible import read_map, write_map

OP = "TFLite_Detection_PostProcess"
_COORDINATES = 4
_SCALES = ("y_scale", "x_scale", "h_scale", "w_scale")
_DETECTIONS_PER_CLASS = 100  # TFLite's, where the options do not say


@attrs.frozen
class DetectionPostprocess:
    """The custom options, by their names there.

    Attributes:
        max_detections: Most boxes that are kept.
        max_classes_per_detection: Fast suppression: classes reported for each box.
        detections_per_class: Regular suppression: most boxes kept of one class.
        use_regular_nms: Regular suppression instead of fast.
        nms_score_threshold: Boxes below it are dropped.
        nms_iou_threshold: Boxes whose intersection over union with a better one is above it are
            dropped.
        num_classes: Classes without the background, which the scores may have in front.
        scales: What encoded (y, x, h, w) are divided by.
    """

    max_detections: int
    max_classes_per_detection: int
    num_classes: int
    nms_score_threshold: float
    nms_iou_threshold: float
    scales: tuple[float, float, float, float]
    use_regular_nms: bool = False
    detections_per_class: int = _DETECTIONS_PER_CLASS


def pack_options(attributes: DetectionPostprocess) -> bytes:
    """The custom options of the attributes."""
    values = attrs.asdict(attributes)
    for name, scale in zip(_SCALES, values.pop("scales"), strict=True):
        values[name] = float(scale)
    return write_map(values)


def _parse(fields: Fields) -> DetectionPostprocess:
    options = read_map(fields)
    scales = tuple(options.number(name) for name in _SCALES)
    if not all(scale > 0 for scale in scales):
        raise ModelError(f"{OP}: scales {scales} must be positive")
    found = DetectionPostprocess(
        max_detections=options.integer("max_detections", minimum=0),
        max_classes_per_detection=options.integer("max_classes_per_detection", minimum=1),
        num_classes=options.integer("num_classes", minimum=1),
        nms_score_threshold=options.number("nms_score_threshold"),
        nms_iou_threshold=options.number("nms_iou_threshold"),
        scales=(scales[0], scales[1], scales[2], scales[3]),
        use_regular_nms=options.flag("use_regular_nms"),
        detections_per_class=options.integer(
            "detections_per_class", _DETECTIONS_PER_CLASS, minimum=1
        ),
    )
    if not 0 < found.nms_iou_threshold <= 1:
        raise ModelError(f"{OP}: nms_iou_threshold {found.nms_iou_threshold} is not in (0, 1]")
    return found


def _infer(attributes: DetectionPostprocess, operands: Operands) -> list[TensorSpec]:
    boxes, scores, anchors = take_operands(OP, operands, 3)
    need_rank(OP, boxes, "boxes (operand 0)", 3)
    need_rank(OP, scores, "scores (operand 1)", 3)
    need_rank(OP, anchors, "anchors (operand 2)", 2)
    count = boxes.shape[1]
    if boxes.shape[0] != 1 or boxes.shape[2] < _COORDINATES:
        raise ModelError(f"{OP}: boxes (operand 0) have shape {list(boxes.shape)}")
    if scores.shape[:2] != (1, count) or scores.shape[2] < attributes.num_classes:
        raise ModelError(
            f"{OP}: scores (operand 1) of shape {list(scores.shape)} for {count} boxes and "
            f"{attributes.num_classes} classes"
        )
    if anchors.shape != (count, _COORDINATES):
        raise ModelError(
            f"{OP}: anchors (operand 2) of shape {list(anchors.shape)} for {count} boxes"
        )
    found = attributes.max_detections * attributes.max_classes_per_detection
    shapes = ((1, found, _COORDINATES), (1, found), (1, found), (1,))
    return [TensorSpec(shape, DType.F32) for shape in shapes]


def decode_boxes(attributes: DetectionPostprocess, encoded: Array, anchors: Array) -> Array:
    """Corners (ymin, xmin, ymax, xmax) as f32; rows of both operands are (y, x, h, w)."""
    wide, anchor = encoded.astype(np.float64), anchors.astype(np.float64)
    scaled = wide[:, :_COORDINATES] / np.array(attributes.scales, np.float32).astype(np.float64)
    center = (scaled[:, :2] * anchor[:, 2:] + anchor[:, :2]).astype(np.float32)
    half = (0.5 * np.exp(scaled[:, 2:]) * anchor[:, 2:]).astype(np.float32)
    return np.concatenate([center - half, center + half], axis=1)


def _overlap(box: Array, others: Array) -> Array:
    """Intersection over union of one box with others; 0 where either has no area."""
    area = (box[2] - box[0]) * (box[3] - box[1])
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    zero = np.float32(0)
    height = np.maximum(np.minimum(box[2], others[:, 2]) - np.maximum(box[0], others[:, 0]), zero)
    width = np.maximum(np.minimum(box[3], others[:, 3]) - np.maximum(box[1], others[:, 1]), zero)
    common = height * width
    empty = (areas <= 0) | (area <= 0)
    return np.asarray(np.where(empty, zero, common / np.where(empty, 1, area + areas - common)))


def _suppress(attributes: DetectionPostprocess, boxes: Array, scores: Array, most: int) -> Array:
    """Indices of the boxes that are kept, from the highest score down."""
    ranked = np.argsort(-scores, kind="stable")
    ranked = ranked[scores[ranked] >= np.float32(attributes.nms_score_threshold)]
    kept: list[int] = []
    while len(ranked) and len(kept) < most:
        best, ranked = int(ranked[0]), ranked[1:]
        kept.append(best)
        overlap = _overlap(boxes[best], boxes[ranked])
        ranked = ranked[~(overlap > np.float32(attributes.nms_iou_threshold))]
    return np.array(kept, np.int64)


def _fast(attributes: DetectionPostprocess, boxes: Array, scores: Array) -> tuple[Array, Array]:
    """Boxes and classes of the detections, several a box; -1 where there are no more classes."""
    width = attributes.max_classes_per_detection
    taken = min(width, scores.shape[1])
    ranked = np.argsort(-scores, axis=1, kind="stable")[:, :taken]
    best = np.take_along_axis(scores, ranked[:, :1], axis=1)[:, 0]
    kept = _suppress(attributes, boxes, best, attributes.max_detections)
    classes = np.full((len(kept), width), -1, np.int64)
    classes[:, :taken] = ranked[kept]
    return np.repeat(kept, width), classes.reshape(-1)


def _regular(attributes: DetectionPostprocess, boxes: Array, scores: Array) -> tuple[Array, Array]:
    """Boxes and classes of the detections, from the highest score down."""
    most = min(attributes.detections_per_class, attributes.max_detections)
    found = [_suppress(attributes, boxes, column, most) for column in scores.T]
    kept = np.concatenate(found)
    classes = np.repeat(np.arange(len(found)), [len(f) for f in found])
    order = np.argsort(-scores[kept, classes], kind="stable")[: attributes.max_detections]
    return kept[order], classes[order]


def _reference(attributes: DetectionPostprocess, arrays: Arrays) -> list[Array]:
    encoded, scores, anchors = (present(a).astype(np.float32) for a in arrays)
    boxes = decode_boxes(attributes, encoded[0], anchors)
    scores = scores[0, :, scores.shape[2] - attributes.num_classes :]
    choose = _regular if attributes.use_regular_nms else _fast
    kept, classes = choose(attributes, boxes, scores)
    room = attributes.max_detections * attributes.max_classes_per_detection
    corners, labels, values = (
        np.zeros(shape, np.float32) for shape in ((1, room, _COORDINATES), (1, room), (1, room))
    )
    real = np.flatnonzero(classes >= 0)
    corners[0, real] = boxes[kept[real]]
    labels[0, real] = classes[real]
    values[0, real] = scores[kept[real], classes[real]]
    per_box = 1 if attributes.use_regular_nms else attributes.max_classes_per_detection
    count = np.array([len(kept) // per_box], np.float32)
    return [corners, labels, values, count]


def _samples() -> list[Sample]:
    plain = DetectionPostprocess(
        max_detections=10,
        max_classes_per_detection=1,
        num_classes=5,
        nms_score_threshold=0.3,
        nms_iou_threshold=0.4,
        scales=(10.0, 10.0, 5.0, 5.0),
    )

    def sample(id: str, count: int, background: int = 1, **changes: Any) -> Sample:
        attributes = attrs.evolve(plain, **changes)
        classes = attributes.num_classes + background
        args = (
            Arg((1, count, _COORDINATES), low=-2, high=2),
            Arg((1, count, classes), low=0, high=1),
            Arg((count, _COORDINATES), low=0.2, high=0.8, const=True),
        )
        return Sample(id, {}, args, custom_options=pack_options(attributes))

    return [
        sample("fast", 37),
        sample("fast_no_background", 37, 0, nms_iou_threshold=0.6),
        sample("fast_three_classes", 37, max_classes_per_detection=3),
        sample("regular", 37, use_regular_nms=True),
        sample("regular_per_class", 53, use_regular_nms=True, detections_per_class=2),
        sample("regular_few_boxes", 2, use_regular_nms=True, nms_score_threshold=0.7),
    ]


OPS = (
    OpDef(
        OP,
        _parse,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.TRANSCENDENTAL,
        is_custom=True,
        batch=lambda node, items: "it finds the boxes of one image",
    ),
)
