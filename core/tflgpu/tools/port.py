"""A model's inputs and outputs: what a file and its metadata say of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import field, frozen

from tflgpu.errors import OptionError
from tflgpu.interpreter import Interpreter
from tflgpu.ir.dtypes import Array
from tflgpu.tflite.model_file import OperatorInfo
from tflgpu.tools.metadata_values import ModelMetadata, TensorMetadata

#: Operators that say nothing of what numbers mean: they are looked through.
_PASSED = frozenset(
    {"RESHAPE", "SQUEEZE", "EXPAND_DIMS", "QUANTIZE", "DEQUANTIZE", "CAST", "RESIZE_BILINEAR"}
    | {"RESIZE_NEAREST_NEIGHBOR", "STRIDED_SLICE", "TRANSPOSE"}
)
_SUMS = frozenset(
    {"FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "BATCH_MATMUL"}
    | {"Convolution2DTransposeBias", "LOG_SOFTMAX"}
)
#: What the results of operators are.
_ROLES = {
    "SOFTMAX": "softmax",
    "LOGISTIC": "sigmoid",
    "TANH": "tanh",
    "ARG_MAX": "indices",
    "TFLite_Detection_PostProcess": "boxes",
    **dict.fromkeys(_SUMS, "sums"),
    **dict.fromkeys(("AVERAGE_POOL_2D", "MEAN", "L2_NORMALIZATION"), "features"),
}
#: Roles of numbers from 0 to 1.
PROBABILITIES = frozenset({"softmax", "sigmoid"})


@frozen(eq=False)
class ModelPort:
    """An input or an output.

    Attributes:
        index: Of the tensor.
        name: Of the tensor.
        shape: Now.
        open_shape: With -1 for sizes that are not fixed.
        dtype: Of its array; texts have kind "S".
        scale, zero_point: ``real = scale * (stored - zero_point)``; a scale of 0 where it is real.
        said: What the metadata say of it.
        role: What the operator makes whose result it is, but for reshaping, resizing and
            quantizing: "softmax", "sigmoid", "tanh", "sums", "features", "indices", "boxes" (with
            their classes and scores), or "" for anything else.
        position: Which of its operator's results it is.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    open_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    scale: float = 0.0
    zero_point: int = 0
    said: TensorMetadata = field(factory=TensorMetadata)
    role: str = ""
    position: int = 0

    def real(self, array: Array) -> Array:
        """Stored numbers as real ones, f32; whole numbers without a scale as they are."""
        if not self.scale or array.dtype.kind == "f":
            return array.astype(np.float32) if array.dtype.kind == "f" else array
        return ((array.astype(np.float64) - self.zero_point) * self.scale).astype(np.float32)

    def stored(self, real: Array) -> Array:
        """Real numbers as the tensor stores them, rounded and clamped where it is quantized.

        Raises:
            OptionError: it is of whole numbers without a scale.
        """
        if self.dtype.kind == "f":
            return real.astype(self.dtype)
        if not self.scale:
            raise OptionError(
                f"input {self.name} is {self.dtype} without a scale: it takes stored numbers, and "
                "mean and std have no effect"
            )
        limits = np.iinfo(self.dtype)
        steps = np.rint(real.astype(np.float64) / self.scale) + self.zero_point
        return steps.clip(limits.min, limits.max).astype(self.dtype)


def ports_of(
    interpreter: Interpreter, metadata: ModelMetadata | None, batch: int = 1
) -> tuple[list[ModelPort], list[ModelPort]]:
    """Inputs and outputs of an interpreter's model, with their shapes of now; those of one item
    where it computes a ``batch`` of them."""
    makers: dict[int, OperatorInfo] = {}
    for operator in interpreter._model.main.operators:  # noqa: SLF001
        makers |= dict.fromkeys(operator.outputs, operator)
    said = metadata or ModelMetadata()
    sides = (
        (interpreter.get_input_details(), said.inputs),
        (interpreter.get_output_details(), said.outputs),
    )
    inputs, outputs = (
        [
            _port(d, said_of[i] if i < len(said_of) else TensorMetadata(), makers, batch)
            for i, d in enumerate(details)
        ]
        for details, said_of in sides
    )
    return inputs, outputs


def _port(
    detail: Mapping[str, Any],
    said: TensorMetadata,
    makers: Mapping[int, OperatorInfo],
    batch: int,
) -> ModelPort:
    index = int(detail["index"])
    maker = makers.get(index)
    scale, zero_point = detail["quantization"]
    shape, open_shape = ([int(n) for n in detail[name]] for name in ("shape", "shape_signature"))
    if batch > 1 and shape[:1] == [batch]:
        shape[0] = open_shape[0] = 1
    return ModelPort(
        index,
        str(detail["name"]),
        tuple(shape),
        tuple(open_shape),
        np.dtype(detail["dtype"]),
        float(scale),
        int(zero_point),
        said,
        _ROLES.get(_producer(index, makers), ""),
        0 if maker is None else maker.outputs.index(index),
    )


def _producer(index: int, makers: Mapping[int, OperatorInfo]) -> str:
    for _ in range(len(makers)):
        maker = makers.get(index)
        if maker is None:
            return ""
        before = makers.get(maker.inputs[0]) if maker.inputs else None
        is_bias = maker.name == "ADD" and before is not None and before.name in _SUMS
        if maker.name not in _PASSED and not is_bias:
            return maker.name
        index = maker.inputs[0]
    return ""
