"""From a model's outputs to answers: which kind a model is of, and how each kind is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from tflgpu.errors import OptionError
from tflgpu.ir.dtypes import Array
from tflgpu.tools.answer import (
    Answer,
    Detection,
    Detections,
    Embedding,
    Keypoint,
    Keypoints,
    Label,
    Mask,
    Picture,
    RawOutputs,
    Scores,
)
from tflgpu.tools.metadata_values import Normalization, ScoreCalibration
from tflgpu.tools.picture import GUESS, Fitted
from tflgpu.tools.port import PROBABILITIES, ModelPort

KINDS = ("classify", "detect", "segment", "keypoints", "embed", "image", "values")

#: RawOutputs of a landmark model's output: how many belong to one point.
_LANDMARKS = {195: 5, 165: 5, 1404: 3, 1434: 3, 63: 3}
_BODY = (
    *("nose", "left eye", "right eye", "left ear", "right ear", "left shoulder", "right shoulder"),
    *("left elbow", "right elbow", "left wrist", "right wrist", "left hip", "right hip"),
    *("left knee", "right knee", "left ankle", "right ankle"),
)
#: What SSD models divide the offsets of boxes by (y, x, height, width).
_SSD_SCALES = np.array([10, 10, 5, 5], np.float32)
_OVERLAP = 0.5  # of boxes of one class, above which the less sure one goes
_MOST = 100  # boxes


@frozen
class OutputRules:
    """How outputs are read.

    Attributes:
        labels: Names by class.
        top: How many classes an answer has.
        threshold: The least score; None for that of the metadata, or of the kind.
        anchors: f32 [boxes, 4] of y and x of the centre, height and width, from 0 to 1.
        normalization: Of the input, for pictures that come out as they go in.
        size: Width and height of the input's picture; zeros where there is none.
    """

    labels: Mapping[int, str]
    top: int = 5
    threshold: float | None = None
    anchors: Array | None = None
    normalization: Normalization = GUESS
    size: tuple[int, int] = (0, 0)

    def name(self, index: int) -> str:
        """The name of a class."""
        return self.labels.get(index) or f"class {index}"

    def least(self, port: ModelPort, default: float) -> float:
        """The least score of an output's."""
        said = port.said.threshold
        return next(t for t in (self.threshold, said, default) if t is not None)


def kind_of(takes: str, outputs: Sequence[ModelPort], *, has_labels: bool) -> str:
    """The kind of a model, by its outputs' shapes, operators and metadata; "values" where these do
    not tell.

    Args:
        takes: "picture", "sound", "text" or "array".
        outputs: With the shapes of now.
        has_labels: Whether there are names of classes.
    """
    shapes = [p.shape for p in outputs]
    if not outputs:
        return "values"
    if any(p.role == "boxes" or p.said.content == "boxes" for p in outputs):
        return "detect"
    if takes == "picture":
        if _raw_boxes(shapes) is not None or (len(shapes) == 1 and _is_yolo(shapes[0])):
            return "detect"
        if _heat_maps(shapes) or any(_points(s) for s in shapes):
            return "keypoints"
        if len(outputs) == 1 and len(shapes[0]) == 4 and min(shapes[0][1:3]) > 1:
            is_class = outputs[0].role == "softmax" or has_labels
            return "image" if shapes[0][3] == 3 and not is_class else "segment"
        if len(outputs) == 1 and len(shapes[0]) == 3 and outputs[0].role == "indices":
            return "segment"
    port = _scores_port(outputs)
    if np.prod(port.shape[:-1] or (1,)) == 1 and port.shape[-1:] > (1,):
        is_vector = len(port.shape) <= 2 or (len(port.shape) == 4 and takes == "picture")
        if port.said.labels or (has_labels and len(outputs) == 1):
            return "classify"
        if is_vector and (port.role == "features" or "embed" in port.name.lower()):
            return "embed"
        if is_vector and len(outputs) == 1 and port.role in PROBABILITIES | {"sums"}:
            return "classify"
    return "values"


def read_outputs(
    kind: str,
    outputs: Sequence[ModelPort],
    arrays: Sequence[Array],
    reading: OutputRules,
    fitted: Fitted | None,
) -> Answer:
    """The answer in a model's outputs.

    Raises:
        OptionError: a kind that does not fit the outputs, or raw boxes without anchors.
    """
    real = [p.real(a) for p, a in zip(outputs, arrays, strict=True)]
    return _READERS[kind](outputs, real, reading, fitted)


def _scores_port(outputs: Sequence[ModelPort]) -> ModelPort:
    return next((p for p in outputs if p.said.labels), outputs[0])


def probabilities(port: ModelPort, scores: Array) -> tuple[Array, bool]:
    """Scores [..., classes] as probabilities, and whether they are: of a softmax or a sigmoid as
    they are, of sums by a softmax, and calibrated where the metadata say how."""
    if port.said.calibration is not None:
        return _calibrated(port.said.calibration, scores), True
    if port.role == "sums":
        with np.errstate(invalid="ignore"):  # infinities give NaN, which is said
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            return powers / powers.sum(-1, keepdims=True), True
    return scores, port.role in PROBABILITIES


def _calibrated(rule: ScoreCalibration, scores: Array) -> Array:
    x = scores.astype(np.float64)
    found = np.full(x.shape, rule.default_score)
    with np.errstate(all="ignore"):
        if rule.transformation == "log":
            x = np.log(x)
        elif rule.transformation == "inverse logistic":
            x = np.log(x) - np.log1p(-x)
        for i, parameters in enumerate(rule.parameters[: x.shape[-1]]):
            if parameters is None:
                continue
            scale, slope, offset, least = parameters
            value = scale / (1 + np.exp(-(slope * x[..., i] + offset)))
            found[..., i] = np.where(scores[..., i] > least, value, rule.default_score)
    return found.astype(np.float32)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    return (0.5 * (1 + np.tanh(0.5 * x))).astype(np.float32)


def _classify(
    outputs: Sequence[ModelPort], real: Sequence[Array], reading: OutputRules, fitted: Fitted | None
) -> Answer:
    port = _scores_port(outputs)
    array = real[outputs.index(port)].astype(np.float32)
    rows = array.reshape(-1, array.shape[-1] if array.ndim else 1)
    scores, are = probabilities(port, rows)
    mean = scores.mean(0)  # of the frames of a sound
    least = reading.least(port, -np.inf)
    order = np.argsort(-np.nan_to_num(mean, nan=-np.inf), kind="stable")
    best = [int(i) for i in order[: reading.top] if not mean[i] < least]
    labels = tuple(Label(i, reading.name(i), float(mean[i])) for i in best)
    return Scores(labels, mean, are)


def _embed(
    outputs: Sequence[ModelPort], real: Sequence[Array], reading: OutputRules, fitted: Fitted | None
) -> Answer:
    return Embedding(real[0].astype(np.float32).ravel())


def _values(
    outputs: Sequence[ModelPort], real: Sequence[Array], reading: OutputRules, fitted: Fitted | None
) -> Answer:
    return RawOutputs({p.name: a for p, a in zip(outputs, real, strict=True)})


def _image(
    outputs: Sequence[ModelPort], real: Sequence[Array], reading: OutputRules, fitted: Fitted | None
) -> Answer:
    port, array = outputs[0], real[0]
    if array.ndim != 4 or array.shape[3] not in (1, 3):
        raise _unfit("image", outputs)
    if port.role == "sigmoid":
        pixels = 255 * array
    elif port.role == "tanh":
        pixels = 127.5 * (array + 1)
    elif port.dtype.kind in "iu" and not port.scale:
        pixels = array
    else:  # they come out as they go in
        mean, std = (
            np.array(n, np.float32) for n in (reading.normalization.mean, reading.normalization.std)
        )
        pixels = array * std + mean
    whole = np.rint(np.nan_to_num(pixels[0])).clip(0, 255).astype(np.uint8)
    return Picture(np.repeat(whole, 3 // whole.shape[2], 2))


def _segment(
    outputs: Sequence[ModelPort], real: Sequence[Array], reading: OutputRules, fitted: Fitted | None
) -> Answer:
    port, array = outputs[0], real[0]
    region = None if fitted is None else fitted.region
    if array.ndim == 3:  # classes themselves
        classes, confidence = array[0].astype(np.int32), None
    elif array.ndim == 4 and array.shape[3] == 1:
        scores = array[0, ..., 0]
        confidence = sigmoid(scores) if port.role == "sums" else scores
        classes = (confidence >= reading.least(port, 0.5)).astype(np.int32)
    elif array.ndim == 4:
        classes, confidence = array[0].argmax(-1).astype(np.int32), None
    else:
        raise _unfit("segment", outputs)
    found = [int(c) for c in np.unique(classes)]
    if confidence is None:
        names = {c: reading.name(c) for c in found}
    else:  # the one class that there is, and the rest
        names = {0: "background", 1: reading.labels.get(0, "foreground")}
    return Mask(classes, names, confidence, region)


def _heat_maps(shapes: Sequence[tuple[int, ...]]) -> tuple[int, int] | None:
    """Positions of a pose model's heat maps [1,h,w,K] and offsets [1,h,w,2K]."""
    for i, heat in enumerate(shapes):
        for j, offsets in enumerate(shapes):
            if len(heat) == 4 and heat[3] > 2 and offsets == (*heat[:3], 2 * heat[3]):
                return i, j
    return None


def _points(shape: tuple[int, ...]) -> int:
    """How many numbers an output has for each point; 0 where it has no points."""
    if len(shape) == 4 and shape[:2] == (1, 1) and shape[3] == 3 and shape[2] > 4:
        return 3
    return _LANDMARKS.get(shape[-1], 0) if shape and np.prod(shape) == shape[-1] else 0


def _keypoints(
    outputs: Sequence[ModelPort], real: Sequence[Array], reading: OutputRules, fitted: Fitted | None
) -> Answer:
    shapes = [a.shape for a in real]
    width, height = reading.size
    maps = _heat_maps(shapes)
    if maps is not None:
        heat, offsets = real[maps[0]][0], real[maps[1]][0]
        rows, columns, count = heat.shape
        flat = np.nan_to_num(heat, nan=-np.inf).reshape(-1, count).argmax(0)
        y, x = np.unravel_index(flat, (rows, columns))
        k = np.arange(count)
        # Offsets are in pixels of the input: first all of y, then all of x.
        ys = (y / max(rows - 1, 1)) + offsets[y, x, k] / max(height - 1, 1)
        xs = (x / max(columns - 1, 1)) + offsets[y, x, count + k] / max(width - 1, 1)
        scores = sigmoid(heat[y, x, k])
    else:
        at = next((i for i, s in enumerate(shapes) if _points(s)), None)
        if at is None:
            raise _unfit("keypoints", outputs)
        parts = real[at].reshape(-1, _points(shapes[at]))
        if len(shapes[at]) == 4:  # y, x and score, from 0 to 1
            ys, xs, scores = parts.T
        else:  # x, y and z in pixels, and how visible a point is
            xs, ys = parts[:, 0] / max(width, 1), parts[:, 1] / max(height, 1)
            visible = parts.shape[1] > 3
            scores = sigmoid(parts[:, 3]) if visible else np.ones(len(parts), np.float32)
    names = _BODY if len(scores) == len(_BODY) else ()
    if fitted is not None:
        xs, ys = fitted.on_picture(xs, ys)
    points = tuple(
        Keypoint(
            reading.labels.get(i) or (names[i] if names else f"point {i}"),
            float(xs[i]),
            float(ys[i]),
            float(scores[i]),
        )
        for i in range(len(scores))
    )
    return Keypoints(points, reading.least(outputs[0], 0.3))


def _raw_boxes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, int] | None:
    """Positions of an SSD model's boxes [1,N,4] and scores [1,N,C]."""
    if len(shapes) != 2 or any(len(s) != 3 for s in shapes) or shapes[0][1] != shapes[1][1]:
        return None
    return next(((i, 1 - i) for i in (0, 1) if shapes[i][2] == 4), None)


def _is_yolo(shape: tuple[int, ...]) -> bool:
    """Whether an output is [1, 4 + C, N] or [1, N, 5 + C] of boxes and scores."""
    return len(shape) == 3 and min(shape[1:]) >= 5 and max(shape[1:]) >= 8 * min(shape[1:])


def _detect(
    outputs: Sequence[ModelPort], real: Sequence[Array], reading: OutputRules, fitted: Fitted | None
) -> Answer:
    shapes = [a.shape for a in real]
    raw = _raw_boxes(shapes)
    if len(real) >= 3 and raw is None:
        boxes, classes, scores = _post_processed(outputs, real, reading.size)
        keep = np.flatnonzero(scores >= reading.least(outputs[0], 0.5))
    else:
        if raw is not None:
            boxes, every = _anchored(real[raw[0]][0], outputs[raw[1]], real[raw[1]][0], reading)
        elif len(real) == 1 and _is_yolo(shapes[0]):
            boxes, every = _yolo(real[0][0], reading.size)
        else:
            raise _unfit("detect", outputs)
        classes, scores = every.argmax(-1), every.max(-1)
        least = reading.least(outputs[-1], 0.5)
        keep = suppressed(boxes, classes, scores, least)
    found = []
    # A file of labels for the operator's results may begin with a class that they do not count.
    first = int(len(real) >= 3 and reading.labels.get(0) == "???")
    for i in keep[np.argsort(-scores[keep], kind="stable")][:_MOST]:
        top, left, bottom, right = boxes[i].astype(np.float64)
        if fitted is not None:
            left, top = fitted.on_picture(left, top)
            right, bottom = fitted.on_picture(right, bottom)
        label = Label(int(classes[i]), reading.name(int(classes[i]) + first), float(scores[i]))
        found.append(Detection((float(left), float(top), float(right), float(bottom)), label))
    return Detections(tuple(found))


def _post_processed(
    outputs: Sequence[ModelPort], real: Sequence[Array], size: tuple[int, int]
) -> tuple[Array, Array, Array]:
    """Boxes [N,4] of top, left, bottom and right, from 0 to 1, classes [N] and scores [N], of a
    model that ends with TFLite_Detection_PostProcess or an equal. Metadata may give boxes by a
    place and a size, and in pixels of a picture of ``size`` (width, height)."""
    order = list(range(len(real)))
    if all(p.role == "boxes" for p in outputs):
        order.sort(key=lambda i: outputs[i].position)
    else:  # by metadata's names, and boxes by their shape
        names = ("location", "category", "score")
        order.sort(
            key=lambda i: (
                real[i].ndim != 3,
                next((n for n, word in enumerate(names) if word in outputs[i].said.name), 3),
            )
        )
    boxes, classes, scores = (real[i] for i in order[:3])
    if boxes.ndim != 3 or boxes.shape[2] != 4 or not classes.size == scores.size == len(boxes[0]):
        raise _unfit("detect", outputs)
    said = outputs[order[0]].said
    found = boxes[0]
    if said.box_order:
        # Metadata say where left, top, right and bottom are.
        found = found[:, [said.box_order[n] for n in (1, 0, 3, 2)]]
    place, extent = found[:, :2], found[:, 2:]
    if said.box_type == "center":
        found = np.concatenate([place - extent / 2, place + extent / 2], 1)
    elif said.box_type == "upper left":
        found = np.concatenate([place, place + extent], 1)
    if said.boxes_in_pixels and all(size):
        found = found / np.array([*size[::-1], *size[::-1]], found.dtype)
    count = len(found)
    if len(order) > 3 and real[order[3]].size == 1:
        count = min(count, max(int(np.nan_to_num(real[order[3]]).flat[0]), 0))
    return found[:count], classes.ravel()[:count].astype(int), scores.ravel()[:count]


def _anchored(
    offsets: Array, port: ModelPort, scores: Array, reading: OutputRules
) -> tuple[Array, Array]:
    """Boxes and scores [N, classes] of an SSD model, whose class 0 is the background."""
    anchors = reading.anchors
    if anchors is None:
        raise OptionError(
            f"the model gives {len(offsets)} raw boxes; they take anchors (--anchors FILE, "
            f"Task(anchors=...)): {len(offsets)} rows of y, x, height and width from 0 to 1"
        )
    if anchors.shape != offsets.shape:
        raise OptionError(f"{len(anchors)} anchors for a model of {len(offsets)} boxes")
    with np.errstate(over="ignore"):
        scaled = offsets / _SSD_SCALES
        centre = scaled[:, :2] * anchors[:, 2:] + anchors[:, :2]
        half = np.exp(scaled[:, 2:]) * anchors[:, 2:] / 2
    boxes = np.concatenate([centre - half, centre + half], 1)
    real = scores if port.role in PROBABILITIES else sigmoid(scores)
    real[:, 0] = 0
    return boxes, real


def _yolo(array: Array, size: tuple[int, int]) -> tuple[Array, Array]:
    rows = array if array.shape[0] > array.shape[1] else array.T
    has_objectness = rows is array  # [N, 5 + C], as YOLOv5 has it
    x, y, width, height = rows[:, :4].T
    if np.nanmax(rows[:, :4], initial=0) > 2:  # in pixels of the input
        x, width = x / max(size[0], 1), width / max(size[0], 1)
        y, height = y / max(size[1], 1), height / max(size[1], 1)
    boxes = np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], 1)
    return boxes, rows[:, 5:] * rows[:, 4:5] if has_objectness else rows[:, 4:]


def suppressed(boxes: Array, classes: Array, scores: Array, least: float) -> Array:
    """Which boxes stay: those of a score of ``least``, without such as overlap a surer one of their
    class by more than half."""
    order = np.flatnonzero(scores >= least)
    order = order[np.argsort(-scores[order], kind="stable")][: 10 * _MOST]
    keep: list[int] = []
    while len(order) and len(keep) < _MOST:
        best, order = order[0], order[1:]
        keep.append(int(best))
        corner = np.maximum(boxes[best, :2], boxes[order, :2])
        sides = (np.minimum(boxes[best, 2:], boxes[order, 2:]) - corner).clip(0)
        both, areas = sides.prod(1), (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(1)
        union = areas[best] + areas[order] - both
        overlaps = both > _OVERLAP * union
        order = order[~overlaps | (classes[order] != classes[best])]
    return np.array(keep, int)


def _unfit(kind: str, outputs: Sequence[ModelPort]) -> OptionError:
    shown = ", ".join(f"{p.name} {list(p.shape)}" for p in outputs)
    return OptionError(f"outputs {shown} are not those of a model of kind {kind!r}")


_READERS: Mapping[str, Callable[[Any, Any, OutputRules, Fitted | None], Answer]] = {
    "classify": _classify,
    "detect": _detect,
    "segment": _segment,
    "keypoints": _keypoints,
    "embed": _embed,
    "image": _image,
    "values": _values,
}
