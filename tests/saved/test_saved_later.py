"""A file that was read before is read where somebody asks, and says the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from tflgpu.errors import ModelError
from tflgpu.tflite.later import LaterModel
from tflgpu.tflite.model_file import TensorInfo
from tflgpu.tflite.read import read_model

MODELS = ["mobilenet_v2_1.0_224_ptq_int8", "movie_review_nl_classifier", "dtln_model_quant_1"]


def told(tensor: TensorInfo) -> tuple[object, ...]:
    data = None if tensor.data is None else (tensor.data.shape, tensor.data.tobytes())
    return (
        tensor.index, tensor.name, tensor.shape, tensor.shape_signature, tensor.dtype, data,
        tensor.quantization, tensor.is_variable, tensor.has_rank, tensor.buffer,
    )  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_it_says_what_the_whole_says(name: str, models_dir: Path) -> None:
    path = models_dir / f"{name}.tflite"
    whole, later = read_model(path), read_model(path, lambda data: True)
    assert isinstance(later, LaterModel)
    assert later._whole._found is None
    assert later.signatures == whole.signatures
    assert len(later.subgraphs) == len(whole.subgraphs)
    for mine, theirs in zip(later.subgraphs, whole.subgraphs, strict=True):
        assert (mine.name, mine.inputs, mine.outputs) == (
            theirs.name,
            theirs.inputs,
            theirs.outputs,
        )
        assert len(mine.tensors) == len(theirs.tensors)
        for index in {*mine.inputs, *mine.outputs, 0, -1}:
            assert told(mine.tensors[index]) == told(theirs.tensors[index])
    assert later._whole._found is None
    assert later.main.operators == whole.main.operators
    assert later._whole._found is not None
    assert list(map(told, later.main.tensors)) == list(map(told, whole.main.tensors))
    assert (later.version, later.description) == (whole.version, whole.description)
    assert later.operator_codes == whole.operator_codes
    assert later.metadata.keys() == whole.metadata.keys()


def test_a_damaged_file_is_refused_where_it_is_read(models_dir: Path) -> None:
    """Nobody vouches for one; should it happen, it is an error like another."""
    data = bytearray((models_dir / "tflm_mnist_lstm_fp32.tflite").read_bytes())
    data[0:4] = b"\xff\xff\xff\x7f"
    with pytest.raises(ModelError):
        read_model(bytes(data), lambda given: True)


def test_there_is_no_tensor_beyond_the_last(models_dir: Path) -> None:
    later = read_model(models_dir / "tflm_mnist_lstm_fp32.tflite", lambda data: True)
    with pytest.raises(IndexError):
        later.main.tensors[len(later.main.tensors)]
