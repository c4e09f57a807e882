"""TFLite_Detection_PostProcess where the samples of the op do not go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from flatbuffers import flexbuffers
from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.base import Fields, Operand
from tflgpu.ops.detection_postprocess import OP, DetectionPostprocess, decode_boxes, pack_options
from tflgpu.ops.registry import builtin_ops

from tests.running import allocated, set_and_run

PLAIN = DetectionPostprocess(
    max_detections=4, max_classes_per_detection=1, num_classes=2, nms_score_threshold=0.5,
    nms_iou_threshold=0.5, scales=(1.0, 1.0, 1.0, 1.0),
)  # fmt: skip
#: (y, x, h, w): the first two overlap by 7/9, the third is apart.
ANCHORS = np.array([[2, 2, 4, 4], [2, 2.5, 4, 4], [9, 9, 2, 2]], np.float32)


def detect(attributes: DetectionPostprocess, scores: Any, anchors: Array = ANCHORS) -> list[Array]:
    boxes = np.zeros((1, len(anchors), 4), np.float32)
    return builtin_ops()[OP].reference(attributes, [boxes, np.array([scores], np.float32), anchors])


def test_boxes_are_decoded_from_anchors() -> None:
    attributes = attrs.evolve(PLAIN, scales=(10.0, 5.0, 2.0, 4.0))
    encoded = np.array([[10, 10, 2 * np.log(2), 0, 99]], np.float32)
    got = decode_boxes(attributes, encoded, np.array([[1, 2, 3, 4]], np.float32))
    # Centre (1 + 1 * 3, 2 + 2 * 4), size (3 * 2, 4 * 1).
    np.testing.assert_allclose(got, [[4 - 3, 10 - 2, 4 + 3, 10 + 2]], rtol=1e-6)


def test_overlapping_boxes_go_and_what_is_left_over_is_zero() -> None:
    boxes, classes, scores, count = detect(PLAIN, [[0.6, 0.1], [0.2, 0.9], [0.3, 0.7]])
    np.testing.assert_array_equal(count, [2])
    np.testing.assert_array_equal(classes, [[1, 1, 0, 0]])
    np.testing.assert_array_equal(scores, np.array([[0.9, 0.7, 0, 0]], np.float32))
    np.testing.assert_array_equal(boxes[0, 0], [0, 0.5, 4, 4.5])
    np.testing.assert_array_equal(boxes[0, 2:], np.zeros((2, 4)))


def test_regular_suppression_keeps_a_box_of_each_class() -> None:
    attributes = attrs.evolve(PLAIN, use_regular_nms=True)
    _, classes, scores, count = detect(attributes, [[0.6, 0.1], [0.2, 0.9], [0.7, 0.7]])
    np.testing.assert_array_equal(count, [4])
    # Of equal scores the lower class comes first.
    np.testing.assert_array_equal(classes, [[1, 0, 1, 0]])
    np.testing.assert_array_equal(scores, np.array([[0.9, 0.7, 0.7, 0.6]], np.float32))


def test_of_equal_scores_the_first_box_wins() -> None:
    boxes, _, _, count = detect(PLAIN, [[0.8, 0.1], [0.8, 0.1], [0.1, 0.2]])
    np.testing.assert_array_equal(count, [1])
    np.testing.assert_array_equal(boxes[0, 0], [0, 0, 4, 4])


def test_boxes_without_area_overlap_nothing() -> None:
    anchors = np.array([[2, 2, 0, 0], [2, 2, 0, 0]], np.float32)
    assert detect(PLAIN, [[0.8, 0.1], [0.7, 0.1]], anchors)[3] == [2]


def test_nothing_found() -> None:
    for regular in (False, True):
        found = detect(attrs.evolve(PLAIN, use_regular_nms=regular), np.zeros((3, 2)))
        assert [a.shape for a in found] == [(1, 4, 4), (1, 4), (1, 4), (1,)]
        assert not any(a.any() for a in found)


def test_options_survive_packing() -> None:
    attributes = attrs.evolve(PLAIN, use_regular_nms=True, detections_per_class=7)
    packed = Fields(OP, {}, pack_options(attributes))
    assert builtin_ops()[OP].parse(packed) == attributes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_classes": 0}, "num_classes is 0"),
        ({"nms_iou_threshold": 0.0}, "nms_iou_threshold 0.0 is not in"),
        ({"nms_iou_threshold": 1.5}, "nms_iou_threshold 1.5 is not in"),
        ({"max_detections": -1}, "max_detections is -1"),
        ({"y_scale": 0.0}, "must be positive"),
        ({"max_classes_per_detection": "many"}, "max_classes_per_detection is 'many'"),
    ],
)
def test_options_that_make_no_sense(changes: dict[str, Any], said: str) -> None:
    options = {**flexbuffers.Loads(pack_options(PLAIN)), **changes}
    with pytest.raises(ModelError, match=said):
        builtin_ops()[OP].parse(Fields(OP, {}, bytes(flexbuffers.Dumps(options))))


def test_broken_options_are_an_error_of_the_model() -> None:
    parse, good = builtin_ops()[OP].parse, pack_options(PLAIN)
    rng = np.random.default_rng(0)
    for _ in range(500):
        bad = bytearray(good[: rng.integers(0, len(good) + 1)])
        for at in rng.integers(0, max(1, len(bad)), 3):
            if bad:
                bad[at] = rng.integers(0, 256)
        try:
            parse(Fields(OP, {}, bytes(bad)))
        except ModelError:
            continue
    with pytest.raises(ModelError, match="custom options are"):
        parse(Fields(OP, {}, b""))


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 4), (1, 3, 2), (3, 4)),
        ((1, 3, 3), (1, 3, 2), (3, 4)),
        ((1, 3, 4), (1, 4, 2), (3, 4)),
        ((1, 3, 4), (1, 3, 1), (3, 4)),
        ((1, 3, 4), (1, 3, 2), (2, 4)),
        ((1, 3, 4), (1, 3, 2), (3,)),
    ],
)
def test_shapes_that_do_not_fit(shapes: tuple[tuple[int, ...], ...]) -> None:
    operands = [Operand(TensorSpec(s, DType.F32)) for s in shapes]
    with pytest.raises(ModelError, match=OP):
        builtin_ops()[OP].infer(PLAIN, operands)


def test_on_the_tensors_of_a_real_detector(model_path: Callable[[str], Path], litert: Any) -> None:
    """LiteRT's own boxes and scores, quantized with many ties, give LiteRT's detections."""
    path = model_path("ssd_mobilenet_v1_coco_quant")
    theirs = allocated(litert.Interpreter(str(path), experimental_preserve_all_tensors=True))
    from tflgpu.tflite.build import build_graph
    from tflgpu.tflite.read import read_model

    node = build_graph(read_model(str(path)), 0, builtin_ops()).nodes[-1]
    assert node.op == OP
    rng = np.random.default_rng(3)
    for _ in range(5):
        (image,) = theirs.get_input_details()
        set_and_run(theirs, {image["index"]: rng.integers(0, 256, image["shape"], np.uint8)})
        operands = []
        for value in node.inputs:
            assert value is not None and value.quant is not None
            stored = value.data if value.data is not None else theirs.get_tensor(value.id)
            operands.append(value.quant.dequantize(stored))
        got = builtin_ops()[OP].reference(node.attrs, operands)
        for ours, out in zip(got, node.outputs, strict=True):
            expected = theirs.get_tensor(out.id)
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
        assert got[3] == [10]
