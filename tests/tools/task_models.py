"""Small models of each kind, whose answers are known."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.small_models import small_spec, tensor_of

COLOURS = ("red", "green", "blue")
ORANGE = (250, 90, 20)


def colours(
    shape: tuple[int, ...] = (1, 8, 10, 3), *, softmax: bool = True, eight_bits: bool = False
) -> ModelSpec:
    """How red, green and blue a picture is, as probabilities, or as sums."""
    axes = [i for i, n in enumerate(shape) if n not in (1, 3)]
    kind, image, logits = DType.F32, None, None
    if eight_bits:
        kind, image, logits = (
            DType.U8,
            Quantization((1 / 64,), (128,)),
            Quantization((1 / 256,), (0,)),
        )
    tensors = [
        TensorSpec("image", shape, kind, quantization=image),
        TensorSpec("axes", (len(axes),), DType.I32, np.array(axes, np.int32)),
        TensorSpec("mean", (1, 3), kind, quantization=image),
        TensorSpec("weights", (3, 3), data=np.eye(3, dtype=np.float32)),
        TensorSpec("sums", (1, 3)),
        TensorSpec("scores", (1, 3), kind, quantization=logits),
    ]
    mean = OperatorSpec("MEAN", {"keep_dims": False}, [0, 1], [2])
    dense = OperatorSpec("FULLY_CONNECTED", {}, [2, 3, -1], [4])
    if eight_bits:  # the mean's own numbers go into the softmax
        operators = [mean, OperatorSpec("SOFTMAX", {"beta": 1.0}, [2], [5])]
        return ModelSpec(tensors, operators, [0], [5])
    if not softmax:
        return ModelSpec(tensors, [mean, dense], [0], [4])
    return ModelSpec(
        tensors, [mean, dense, OperatorSpec("SOFTMAX", {"beta": 1.0}, [4], [5])], [0], [5]
    )


def same(
    op: str = "LOGISTIC", shape: tuple[int, ...] = (1, 8, 10, 3), dtype: DType = DType.F32
) -> ModelSpec:
    """An operator on every element of a picture."""
    fields = {"new_shape": shape} if op == "RESHAPE" else {}
    return small_spec(
        {"image": tensor_of(shape, dtype), "made": tensor_of(shape, dtype)},
        (f"made = {op}(image)", fields),
    )


def loudness(size: int = 4000) -> ModelSpec:
    """Whether a sound is quiet or loud: a softmax of its mean square."""
    return small_spec(
        {
            "sound": (1, size),
            "squares": (1, size),
            "axis": tensor_of((1,), DType.I32, np.array([1], np.int32)),
            "mean": (1, 1),
            "weights": tensor_of((2, 1), data=np.array([[-20], [20]], np.float32)),
            "bias": tensor_of((2,), data=np.array([1, -1], np.float32)),
            "sums": (1, 2),
            "scores": (1, 2),
        },
        "squares = SQUARE(sound)",
        ("mean = MEAN(squares, axis)", {"keep_dims": True}),
        "sums = FULLY_CONNECTED(mean, weights, bias)",
        ("scores = SOFTMAX(sums)", {"beta": 1.0}),
    )


def words(size: int = 6) -> ModelSpec:
    """The numbers of a text's words, as floats."""
    return small_spec(
        {"ids": tensor_of((1, size), DType.I32), "floats": (1, size)},
        ("floats = CAST(ids)", {"in_data_type": 2, "out_data_type": 0}),
    )


def write(path: Path, spec: ModelSpec) -> Path:
    path.write_bytes(write_model(spec))
    return path


def picture(path: Path, colour: Any = ORANGE, size: tuple[int, int] = (20, 16)) -> Path:
    from PIL import Image

    Image.new("RGB", size, colour).save(path)
    return path


def sound(path: Path, samples: np.ndarray, rate: int = 8000, width: int = 2) -> Path:
    """A WAV of one channel, or of [samples, channels], from -1 to 1."""
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    most = 2 ** (8 * width - 1) - 1
    whole = np.rint(samples.ravel() * most).astype(np.int64)
    if width == 1:
        content = (whole + 128).astype(np.uint8).tobytes()
    else:
        content = whole.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(content)
    return path


def heat_maps(size: int = 16, count: int = 17) -> ModelSpec:
    """PoseNet's outputs of a picture: heat maps [1,h,w,K] and offsets [1,h,w,2K], each by a
    convolution."""
    rng = np.random.default_rng(0)
    tensors, operators = [TensorSpec("image", (1, size, size, 3))], []
    for name, channels in (("heat", count), ("offsets", 2 * count)):
        at = len(tensors)
        weights = rng.standard_normal((channels, 4, 4, 3)).astype(np.float32)
        tensors += [
            TensorSpec(f"{name}_weights", weights.shape, data=weights),
            TensorSpec(f"{name}_bias", (channels,), data=np.zeros(channels, np.float32)),
            TensorSpec(name, (1, size // 4, size // 4, channels)),
        ]
        fields = {"stride_w": 4, "stride_h": 4, "padding": 1}
        operators.append(OperatorSpec("CONV_2D", fields, (0, at, at + 1), (at + 2,)))
    return ModelSpec(tensors, operators, (0,), (3, 6))
