"""TFLite_Detection_PostProcess on a device against LiteRT, where ties and thresholds are many.

Scores have few values, as those of a quantized network, and boxes lie on a grid, so that many
overlaps are exactly a fraction that the threshold is too.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.conformance.samples import materialize
from tflgpu.ir.dtypes import Array
from tflgpu.ops.base import Arg, Sample
from tflgpu.ops.detection_postprocess import OP, DetectionPostprocess, pack_options
from tflgpu.ops.registry import builtin_ops

from tests.ops.test_reference_vs_litert import single_op_model
from tests.running import allocated, results

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

PLAIN = DetectionPostprocess(
    max_detections=12, max_classes_per_detection=1, num_classes=6, nms_score_threshold=0.25,
    nms_iou_threshold=0.5, scales=(1.0, 1.0, 1.0, 1.0),
)  # fmt: skip
WAYS = {
    "fast": {},
    "fast_two_classes": {"max_classes_per_detection": 2},
    "fast_three_fifths": {"nms_iou_threshold": 0.6},
    "fast_seven_ninths": {"nms_iou_threshold": 7 / 9},
    "fast_more_than_there_are": {"max_detections": 150, "nms_iou_threshold": 1.0},
    "regular": {"use_regular_nms": True},
    "regular_third": {"use_regular_nms": True, "nms_iou_threshold": 1 / 3, "max_detections": 40,
                      "detections_per_class": 9},
}  # fmt: skip
BOXES = 131


def model(attributes: DetectionPostprocess) -> bytes:
    """Anchors of sizes 1 to 4 at whole and half places."""
    rng = np.random.default_rng(1)
    places = rng.integers(0, 12, (BOXES, 2)) / 2
    anchors = np.concatenate([places, rng.integers(1, 5, (BOXES, 2))], axis=1)
    args = (Arg((1, BOXES, 4)), Arg((1, BOXES, attributes.num_classes + 1)), Arg.of(anchors))
    sample = Sample("grid", {}, args, custom_options=pack_options(attributes))
    return single_op_model(materialize(builtin_ops()[OP], sample))


def inputs(seed: int, classes: int) -> list[Array]:
    """No offsets from the anchors, and scores of 8 levels, different ones for a box's classes."""
    levels = np.tile(np.arange(8), (BOXES, 1))
    scores = np.random.default_rng(seed).permuted(levels, axis=1)[None, :, : classes + 1] / 8
    return [np.zeros((1, BOXES, 4), np.float32), scores.astype(np.float32)]


def tied(seed: int, classes: int) -> list[Array]:
    """The same, where classes of a box are equal as well."""
    boxes, scores = inputs(seed, classes)
    scores[0] = np.random.default_rng(seed).integers(0, 8, scores.shape[1:]) / 8
    return [boxes, scores]


def run(interpreter: Any, arrays: list[Array]) -> list[Array]:
    return results(interpreter, arrays)


@pytest.mark.parametrize("way", WAYS)
def test_detections_are_those_of_litert(way: str) -> None:
    attributes = attrs.evolve(PLAIN, **WAYS[way])
    content = model(attributes)
    theirs = allocated(litert.Interpreter(model_content=content))
    delegate = tflgpu.GpuDelegate(backend="vulkan", allow_fallback=False)
    ours = allocated(tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]))
    # Of several classes of a box, equal ones come in the order that C++'s partial_sort leaves.
    draw = inputs if attributes.max_classes_per_detection > 1 else tied
    for seed in range(4):
        arrays = draw(seed, attributes.num_classes)
        expected, got = run(theirs, arrays), run(ours, arrays)
        found = int(expected[3][0]) * (
            1 if attributes.use_regular_nms else attributes.max_classes_per_detection
        )
        assert found > 4
        np.testing.assert_array_equal(got[3], expected[3])
        for name, a, b in zip(("classes", "scores"), got[1:3], expected[1:3], strict=True):
            np.testing.assert_array_equal(a[0, :found], b[0, :found], err_msg=name)
        np.testing.assert_allclose(got[0][0, :found], expected[0][0, :found], rtol=1e-6)
        assert not any(a[0, found:].any() for a in got[:3])
