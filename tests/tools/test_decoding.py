"""Outputs of detectors and pose models, read where the right answer is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.errors import OptionError
from tflgpu.tools.decoding import OutputRules, kind_of, read_outputs, suppressed
from tflgpu.tools.metadata_values import TensorMetadata
from tflgpu.tools.picture import Fitted
from tflgpu.tools.port import ModelPort

#: An input that shows the middle half of a picture of 400x200.
FITTED = Fitted(None, np.zeros((10, 10, 3), np.uint8), (100.0, 0.0, 200.0, 200.0), "")


def port(array: np.ndarray, **more: Any) -> ModelPort:
    return ModelPort(0, more.pop("name", "out"), array.shape, array.shape, array.dtype, **more)


def read(kind: str, ports: list[ModelPort], arrays: list[np.ndarray], **more: Any) -> Any:
    names = more.pop("labels", {})
    return read_outputs(kind, ports, arrays, OutputRules(names, **more), FITTED)


def test_post_processed_boxes() -> None:
    """In the operator's order, whatever the order of the outputs; only as many as it counts."""
    boxes = np.array([[[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.6, 0.6], [0, 0, 1, 1]]], np.float32)
    arrays = [boxes, np.array([[1, 0, 2]], np.float32), np.array([[0.9, 0.6, 0.8]], np.float32),
              np.array([2], np.float32)]  # fmt: skip
    ports = [port(a, role="boxes", position=i) for i, a in enumerate(arrays)]
    labels = {0: "cat", 1: "dog"}
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        chosen, given = [ports[i] for i in order], [arrays[i] for i in order]
        assert kind_of("picture", chosen, has_labels=True) == "detect"
        answer = read("detect", chosen, given, labels=labels)
        assert [d.label.name for d in answer.found] == ["dog", "cat"]
        np.testing.assert_allclose(answer.found[0].box, (140, 20, 180, 60), atol=1e-4)
    assert answer.lines()[0] == "  90.0 %  dog  at 140,20 to 180,60"
    answer = read("detect", ports, arrays, labels=labels, threshold=0.7)
    assert len(answer.found) == 1
    # Labels of the old files have a class more at the beginning.
    answer = read("detect", ports, arrays, labels={0: "???", 1: "cat", 2: "dog"})
    assert [d.label.name for d in answer.found] == ["dog", "cat"]


@pytest.mark.parametrize(
    ("kind", "in_pixels", "numbers"),
    [
        ("", False, (0.2, 0.1, 0.4, 0.3)),
        ("boundaries", True, (40, 10, 80, 30)),
        ("upper left", False, (0.2, 0.1, 0.2, 0.2)),
        ("center", False, (0.3, 0.2, 0.2, 0.2)),
        ("center", True, (60, 20, 40, 20)),
    ],
)
def test_boxes_by_metadata(kind: str, in_pixels: bool, numbers: tuple[float, ...]) -> None:
    """Other order of outputs, and of a box's numbers: left, top, right, bottom, or a place and a
    size, also in pixels of the input's picture."""
    boxes = np.array([[numbers]], np.float32)
    said = TensorMetadata(
        name="location", content="boxes", box_order=(0, 1, 2, 3), box_type=kind,
        boxes_in_pixels=in_pixels,
    )  # fmt: skip
    ports = [
        port(np.ones((1, 1), np.float32), said=TensorMetadata(name="score")),
        port(boxes, said=said),
        port(np.zeros((1, 1), np.float32), said=TensorMetadata(name="category")),
    ]
    arrays = [np.ones((1, 1), np.float32), boxes, np.zeros((1, 1), np.float32)]
    assert kind_of("picture", ports, has_labels=False) == "detect"
    (found,) = read("detect", ports, arrays, size=(200, 100)).found
    np.testing.assert_allclose(found.box, (140, 20, 180, 60), atol=1e-4)


def anchored() -> tuple[list[ModelPort], list[np.ndarray], np.ndarray]:
    anchors = np.array([[0.5, 0.5, 0.2, 0.4], [0.2, 0.2, 0.1, 0.1]], np.float32)
    offsets = np.zeros((1, 2, 4), np.float32)
    offsets[0, 0] = [1, 0, 5 * np.log(2), 0]  # down by a tenth of the height, twice as high
    scores = np.full((1, 2, 3), -9, np.float32)
    scores[0, 0, 2] = 2
    scores[0, 1, 0] = 9  # the background
    return [port(offsets), port(scores, role="sums")], [offsets, scores], anchors


def test_raw_boxes_take_anchors() -> None:
    ports, arrays, anchors = anchored()
    assert kind_of("picture", ports, has_labels=False) == "detect"
    (found,) = read("detect", ports, arrays, anchors=anchors).found
    assert found.label.index == 2
    assert found.label.score == pytest.approx(1 / (1 + np.exp(-2)), abs=1e-6)
    np.testing.assert_allclose(found.box, (160, 64, 240, 144), atol=1e-3)
    with pytest.raises(OptionError, match="gives 2 raw boxes; they take anchors"):
        read("detect", ports, arrays)
    with pytest.raises(OptionError, match="3 anchors for a model of 2 boxes"):
        read("detect", ports, arrays, anchors=np.zeros((3, 4)))


@pytest.mark.parametrize("has_objectness", [False, True])
@pytest.mark.parametrize("in_pixels", [False, True])
def test_rows_of_boxes(has_objectness: bool, in_pixels: bool) -> None:
    """[1, 4 + C, N], or [1, N, 5 + C], from 0 to 1 or in pixels of the input."""
    rows = np.zeros((80, 4 + 3 + has_objectness), np.float32)
    rows[:, :4] = 0.01
    rows[7, :4] = [0.5, 0.5, 0.2, 0.4]
    rows[8, :4] = [0.51, 0.5, 0.2, 0.4]  # the same thing, less sure
    rows[7, -1], rows[8, -1] = 0.9, 0.8
    if has_objectness:
        rows[:, 4] = 1
    if in_pixels:
        rows[:, :4] *= 50
    array = rows[None] if has_objectness else np.ascontiguousarray(rows.T[None])
    assert kind_of("picture", [port(array)], has_labels=False) == "detect"
    assert kind_of("array", [port(array)], has_labels=False) == "values"
    (found,) = read("detect", [port(array)], [array], size=(50, 50)).found
    assert (found.label.index, found.label.score) == (2, pytest.approx(0.9))
    np.testing.assert_allclose(found.box, (180, 60, 220, 140), atol=1e-3)


def test_overlapping_boxes() -> None:
    boxes = np.array([[0, 0, 1, 1], [0, 0, 1, 0.9], [0, 0, 1, 0.4], [2, 2, 3, 3]], np.float32)
    scores = np.array([0.8, 0.9, 0.7, 0.1], np.float32)
    same, other = np.zeros(4, int), np.array([0, 1, 0, 0])
    assert suppressed(boxes, same, scores, 0.5).tolist() == [1, 2]
    assert suppressed(boxes, other, scores, 0.5).tolist() == [1, 0, 2]
    assert suppressed(boxes, same, scores, 2.0).tolist() == []


def test_heat_maps_and_offsets() -> None:
    """PoseNet: the best cell, and the offset in pixels of the input from it."""
    heat = np.full((1, 5, 5, 17), -4, np.float32)
    offsets = np.zeros((1, 5, 5, 34), np.float32)
    heat[0, 2, 1, 0] = 3
    offsets[0, 2, 1, 0], offsets[0, 2, 1, 17] = 8, -4
    arrays = [offsets, heat]
    ports = [port(a) for a in arrays]
    assert kind_of("picture", ports, has_labels=False) == "keypoints"
    answer = read("keypoints", ports, arrays, size=(65, 65))
    nose = answer.points[0]
    assert (nose.name, len(answer.points)) == ("nose", 17)
    assert nose.score == pytest.approx(1 / (1 + np.exp(-3)), abs=1e-6)
    # The cell is at (16, 32) of 64, and the input shows 200 pixels from 100.
    assert (nose.x, nose.y) == (pytest.approx(100 + 200 * 12 / 64), pytest.approx(200 * 40 / 64))


def test_points_of_movenet_and_landmarks() -> None:
    array = np.zeros((1, 1, 17, 3), np.float32)
    array[0, 0, 3] = [0.5, 0.25, 0.75]
    answer = read("keypoints", [port(array)], [array], size=(192, 192))
    assert kind_of("picture", [port(array)], has_labels=False) == "keypoints"
    point = answer.points[3]
    assert (point.name, point.x, point.y, point.score) == ("left ear", 150, 100, 0.75)
    body = np.zeros((1, 195), np.float32)
    body[0, :5] = [128, 64, 0, 2, 2]
    flag = np.zeros((1, 1), np.float32)
    answer = read("keypoints", [port(flag), port(body)], [flag, body], size=(256, 256))
    assert (answer.points[0].x, answer.points[0].y) == (200, 50)
    assert len(answer.points) == 39


def test_drawings(tmp_path: Path) -> None:
    """What is drawn is where the answer is."""
    image = pytest.importorskip("PIL.Image").new("RGB", (400, 200))
    boxes = np.array([[[0.1, 0.2, 0.6, 0.8]]], np.float32)
    arrays = [boxes, np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32)]
    ports = [port(a, role="boxes", position=i) for i, a in enumerate(arrays)]
    answer = attrs.evolve(read("detect", ports, arrays), picture=image)
    drawn = np.asarray(answer.draw()).astype(int).sum(2)
    assert drawn[120, 140:260].min() > 0  # the lower edge
    assert drawn[60, 200] == 0  # the inside
    assert drawn[150:].max() == 0
    points = np.zeros((1, 1, 17, 3), np.float32)
    points[0, 0, 5] = [0.5, 0.5, 0.9]
    answer = read("keypoints", [port(points)], [points], size=(192, 192))
    drawn = np.asarray(attrs.evolve(answer, picture=image).draw()).astype(int).sum(2)
    assert drawn[100, 200] > 0
    assert (drawn > 0).sum() < 200


def test_outputs_without_a_meaning() -> None:
    """JSON has texts, both parts of complex numbers, and null for what is not finite."""
    arrays = [
        np.array([b"gr\xc3\xbcn"], object),
        np.array([1 + 2j], np.complex64),
        np.array([[np.nan, np.inf, 1]], np.float32),
    ]
    ports = [port(a, name=name) for a, name in zip(arrays, "abc", strict=True)]
    assert kind_of("array", ports, has_labels=False) == "values"
    answer = read("values", ports, arrays)
    assert json.loads(json.dumps(answer.asdict()["outputs"], allow_nan=False)) == {
        "a": ["gr\u00fcn"], "b": [[1, 2]], "c": [[None, None, 1]],
    }  # fmt: skip
    assert kind_of("picture", [], has_labels=True) == "values"
    assert read("values", [], []).lines() == []
