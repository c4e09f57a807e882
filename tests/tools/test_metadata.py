"""`tflgpu.metadata`: what is in it, and that damaged and hostile ones are one clear error."""

from __future__ import annotations

import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
import tflgpu
from tflgpu.errors import ModelError
from tflgpu.tflite.spec import ModelSpec
from tflgpu.tflite.write import write_model
from tflgpu.tools.archive import MOST_BYTES
from tflgpu.tools.metadata import NAME

from tests.small_models import small_spec
from tests.tools.metadata_files import archive, buffer, file, unit, with_metadata

SPEC = small_spec({"x": (1, 4, 6, 3), "y": (1, 4, 6, 3)}, "y = RELU(x)")
IMAGE = {
    "name": "photo",
    "description": "any photo",
    "dimension_names": ["batch", "height", "width", "colour"],
    "content": {
        "content_properties_type": 2,
        "content_properties": (
            "ImageProperties",
            {"color_space": 1, "default_size": {"width": 6, "height": 4}},
        ),
    },
    "process_units": [unit("NormalizationOptions", mean=[1, 2, 3], std=[4, 5, 6])],
    "stats": {"max": [255], "min": [0]},
}
SCORES = {
    "name": "scores",
    "process_units": [
        unit("ScoreCalibrationOptions", score_transformation=1, default_score=0.25),
        unit("ScoreThresholdingOptions", global_score_threshold=0.5),
    ],
    "associated_files": [file("labels.txt", 2), file("calibration.csv", 4)],
}
FILES = {"labels.txt": "cat\nd\u00f6g\n\n".encode(), "calibration.csv": b"1,2,3,0.5\n\n4,5,6\n"}


def whole(**said: Any) -> bytes:
    return with_metadata(SPEC, [IMAGE], [SCORES], FILES, author="me", **said)


def test_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(whole())
    for source in (path, str(path), path.read_bytes(), bytearray(path.read_bytes())):
        found = tflgpu.metadata(source)
        assert found is not None
        assert (found.name, found.author, found.license) == ("a model", "me", "")
        (image,), (scores,) = found.inputs, found.outputs
        assert (image.name, image.description) == ("photo", "any photo")
        assert image.dimension_names == ("batch", "height", "width", "colour")
        assert (image.content, image.colours, image.size) == ("image", "rgb", (6, 4))
        assert image.normalization is not None
        assert (image.normalization.mean, image.normalization.std) == ((1, 2, 3), (4, 5, 6))
        assert (image.minimum, image.maximum) == ((0,), (255,))
        assert scores.labels == ("cat", "d\u00f6g")
        assert scores.threshold == 0.5
        assert scores.calibration is not None
        assert scores.calibration.transformation == "log"
        assert scores.calibration.default_score == 0.25
        assert scores.calibration.parameters == ((1, 2, 3, 0.5), None, (4, 5, 6, -np.inf))
        assert [f.name for f in found.files] == ["labels.txt", "calibration.csv"]
        assert found.read("labels.txt") == FILES["labels.txt"]
        with pytest.raises(ModelError, match="'other' is not behind the model"):
            found.read("other")


def test_a_model_may_have_none() -> None:
    assert tflgpu.metadata(write_model(SPEC)) is None


def test_the_rest_of_the_model_is_read_as_ever() -> None:
    with tflgpu.Model(whole()) as model:
        (y,) = model(np.full((1, 4, 6, 3), -1, np.float32))
    assert (y == 0).all()


def test_boxes_sound_and_texts() -> None:
    boxes = {"index": [1, 0, 3, 2], "type": 1, "coordinate_type": 1}
    sound = {"sample_rate": 16000, "channels": 1}
    found = tflgpu.metadata(
        with_metadata(
            SPEC,
            [{"content": {"content_properties_type": 4,
                          "content_properties": ("AudioProperties", sound)}},
             {"process_units": [unit("RegexTokenizerOptions", delim_regex_pattern="[^a-z]+",
                                     vocab_file=[file("v.txt", 5)])]}],
            [{"content": {"content_properties_type": 3,
                          "content_properties": ("BoundingBoxProperties", boxes)}}],
            subgraph={"input_process_units": [unit("BertTokenizerOptions",
                                                   vocab_file=[file("v.txt", 5)])]},
        )
    )  # fmt: skip
    assert found is not None
    assert (found.inputs[0].content, found.inputs[0].sample_rate) == ("audio", 16000)
    words = found.inputs[1].tokenizer
    assert words is not None
    assert (words.kind, words.pattern, words.vocabulary) == ("regex", "[^a-z]+", ("v.txt",))
    assert found.outputs[0].box_order == (1, 0, 3, 2)
    assert (found.outputs[0].box_type, found.outputs[0].boxes_in_pixels) == ("boundaries", True)
    assert found.tokenizer is not None
    assert (found.tokenizer.kind, found.tokenizer.vocabulary) == ("bert", ("v.txt",))


def test_what_is_younger_is_passed_over() -> None:
    young = {
        "content": {"content_properties_type": 99, "content_properties": ("Stats", {"max": [1]})},
        "process_units": [{"options_type": 99, "options": ("Stats", {"max": [1]})}],
        "associated_files": [file("f", 99)],
    }
    found = tflgpu.metadata(with_metadata(SPEC, [young], []))
    assert found is not None
    assert (found.inputs[0].content, found.inputs[0].normalization) == ("", None)
    assert found.files[0].kind == "unknown"


@pytest.mark.parametrize(
    ("mean", "std"),
    [([0], [0]), ([], [1]), ([1, 2], [1, 2, 3]), ([float("nan")], [1]), ([0], [float("inf")])],
)
def test_a_normalization_that_is_none(mean: list[float], std: list[float]) -> None:
    bad = {"process_units": [unit("NormalizationOptions", mean=mean, std=std)]}
    with pytest.raises(ModelError, match="metadata: input 0: process unit 0: normalization by"):
        tflgpu.metadata(with_metadata(SPEC, [bad], []))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "'labels.txt' is not behind the model"),
        ({**FILES, "calibration.csv": b"1,2\n"}, "line 1: '1,2' is not scale, slope"),
        ({**FILES, "calibration.csv": b"1,2,3\nfoo"}, "line 2: 'foo' is not scale"),
        ({**FILES, "calibration.csv": b"nan,2,3"}, "line 1: 'nan,2,3' is not scale"),
    ],
)
def test_files_that_are_none(files: dict[str, bytes], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        tflgpu.metadata(with_metadata(SPEC, [], [SCORES], files))


def test_a_bomb_is_not_unpacked() -> None:
    bomb = {**FILES, "labels.txt": bytes(MOST_BYTES + 1)}
    with pytest.raises(ModelError, match=r"'labels.txt' is longer than 16,777,216 bytes"):
        tflgpu.metadata(with_metadata(SPEC, [], [SCORES], bomb))
    # Nor many that are smaller.
    many = [{"associated_files": [file("labels.txt", 2)]} for _ in range(9)]
    with pytest.raises(ModelError, match=r"'labels.txt' is longer"):
        tflgpu.metadata(with_metadata(SPEC, [], many, {"labels.txt": bytes(MOST_BYTES)}))


def test_other_kinds_of_packing_are_refused() -> None:
    content = buffer({"subgraph_metadata": [{"output_tensor_metadata": [SCORES]}]})
    model = write_model(
        ModelSpec(SPEC.tensors, SPEC.operators, (0,), (1,), metadata={NAME: content})
    )
    with pytest.raises(ModelError, match="packed in a way that is not read"):
        tflgpu.metadata(model + archive(FILES, zipfile.ZIP_LZMA))
    with pytest.raises(ModelError, match="cannot be read"):
        tflgpu.metadata(model)


def test_another_identifier() -> None:
    content = bytearray(buffer({"name": "x"}))
    content[4:8] = b"M002"
    spec = ModelSpec(SPEC.tensors, SPEC.operators, (0,), (1,), metadata={NAME: bytes(content)})
    with pytest.raises(
        ModelError, match=r"metadata: it does not begin as metadata of version M001"
    ):
        tflgpu.metadata(write_model(spec))


def damaged(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    how = rng.randrange(4)
    if how == 0:
        del data[rng.randrange(len(data)) :]
    elif how == 1:
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    else:  # an aligned word, as offsets and counts are
        size = 2 if how == 2 else 4
        at = rng.randrange(len(data) // size) * size
        near = int.from_bytes(data[at : at + size], "little") + rng.randint(-16, 16)
        word = rng.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, near, len(data) - at))
        data[at : at + size] = struct.pack("<Q", word % (1 << 32))[:size]
    return bytes(data)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_metadata_is_an_error_or_is_read(seed: int) -> None:
    """150 damaged buffers and 50 damaged archives for each seed: values or ModelError, no more."""
    rng = random.Random(seed)
    subgraph = {"input_tensor_metadata": [IMAGE], "output_tensor_metadata": [SCORES]}
    content = buffer({"name": "a model", "subgraph_metadata": [subgraph]})
    files = archive(FILES)
    refused = 0
    for number in range(200):
        is_archive = number >= 150
        inner = content if is_archive else damaged(content, rng)
        spec = ModelSpec(SPEC.tensors, SPEC.operators, (0,), (1,), metadata={NAME: inner})
        model = write_model(spec) + (damaged(files, rng) if is_archive else files)
        try:
            found = tflgpu.metadata(model)
            assert found is not None
            assert isinstance(found.outputs, tuple)
        except ModelError as error:
            refused += 1
            assert len(str(error)) < 1000
    assert 40 < refused < 200


def test_tables_that_share_tables_are_counted() -> None:
    """Half a million inputs that are one table: more than any model needs."""
    many = buffer({"subgraph_metadata": [{"input_tensor_metadata": [{"name": "x"}] * 4000}]})
    spec = ModelSpec(SPEC.tensors, SPEC.operators, (0,), (1,), metadata={NAME: many})
    found = tflgpu.metadata(write_model(spec))
    assert found is not None
    assert len(found.inputs) == 4000
    shared = _all_the_first(500_000)
    spec = ModelSpec(SPEC.tensors, SPEC.operators, (0,), (1,), metadata={NAME: shared})
    with pytest.raises(ModelError, match="which no model needs"):
        tflgpu.metadata(write_model(spec))


def _all_the_first(count: int) -> bytes:
    """Metadata whose vector of inputs names one table ``count`` times."""
    builder = flatbuffers.Builder(64)
    name = builder.CreateString("x")
    builder.StartObject(7)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    tensor = builder.EndObject()
    builder.StartVector(4, count, 4)
    for _ in range(count):
        builder.PrependUOffsetTRelative(tensor)
    inputs = builder.EndVector()
    builder.StartObject(7)
    builder.PrependUOffsetTRelativeSlot(2, inputs, 0)
    subgraph = builder.EndObject()
    builder.StartVector(4, 1, 4)
    builder.PrependUOffsetTRelative(subgraph)
    subgraphs = builder.EndVector()
    builder.StartObject(8)
    builder.PrependUOffsetTRelativeSlot(3, subgraphs, 0)
    builder.Finish(builder.EndObject(), b"M001")
    return bytes(builder.Output())
