"""Tensors and operators of a file as the dictionaries that TFLite's interpreter gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from tflgpu.errors import InputError
from tflgpu.interpreter.views import SessionMemory
from tflgpu.ir.brief import quoted
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.model_file import OperatorInfo, TensorInfo
from tflgpu.tflite.sparsity import Sparsity


class QuantizationParameters(TypedDict):
    """How the numbers of a tensor are stored: a scale and a zero point each, or one for all."""

    scales: npt.NDArray[np.float32]
    zero_points: npt.NDArray[np.int32]
    quantized_dimension: int
    block_size: int


class SparsityParameters(TypedDict, total=False):
    """How a sparse constant is stored; nothing of other tensors."""

    traversal_order: npt.NDArray[np.int32]
    block_map: npt.NDArray[np.int32]
    dim_metadata: list[dict[str, Any]]


class TensorDetails(TypedDict):
    """What `Interpreter.get_input_details` and its like say of a tensor."""

    name: str
    index: int
    shape: npt.NDArray[np.int32]
    shape_signature: npt.NDArray[np.int32]
    dtype: type[np.generic]
    quantization: tuple[float, int]
    quantization_parameters: QuantizationParameters
    sparsity_parameters: SparsityParameters


# Types that NumPy lacks, by what stands for them in Python. Those of less than 8 bits are unpacked
# to bytes.
_STAND_INS: dict[DType, type[np.generic]] = {
    DType.STRING: np.bytes_,
    DType.I2: np.int8,
    DType.I4: np.int8,
    DType.U4: np.uint8,
    DType.RESOURCE: np.object_,
    DType.VARIANT: np.object_,
}


def numpy_type(info: TensorInfo) -> type[np.generic]:
    """The NumPy scalar type of a tensor's elements.

    Raises:
        InputError: none stands for its type (bf16).
    """
    if info.dtype.has_numpy:
        return info.dtype.numpy.type
    try:
        return _STAND_INS[info.dtype]
    except KeyError:
        raise InputError(
            f"tensor {info.index} ({quoted(info.name)}) is {info.dtype.value}, for which NumPy "
            "has no type"
        ) from None


def _type_in(memory: SessionMemory, info: TensorInfo) -> type[np.generic]:
    """The type of the array that has a tensor's contents; of texts and of what has no array its
    own."""
    array = None if info.data is not None else memory.session.arrays.get(info.index)
    # What is bf16 lies as f32, and stays without a type.
    if array is None or array.dtype.hasobject or info.dtype is DType.BF16:
        return numpy_type(info)
    return array.dtype.type


def tensor_details(
    info: TensorInfo,
    shape: Sequence[int],
    memory: SessionMemory | None = None,
    *,
    compress: bool = False,
) -> TensorDetails:
    """The details of a tensor that has ``shape`` now; with ``compress``, a zero point that all
    channels share is given once. ``memory`` is the session's, where there is one: an operator may
    give its result another type than the file (`tflgpu.tflite.result_types`).

    Shapes, zero points and sparsity indices are int32 arrays, scales a float32 array.
    ``quantization`` is ``(scale, zero_point)`` for one scale, else ``(0.0, 0)``.

    Raises:
        InputError: no NumPy type stands for the tensor's type.
    """
    quant = info.quantization
    scales = quant.scale if quant is not None else ()
    points = quant.zero_point if quant is not None else ()
    if compress and len(set(points)) == 1:
        points = points[:1]
    return {
        "name": info.name,
        "index": info.index,
        "shape": np.array(shape, np.int32),
        "shape_signature": np.array(info.signature(tuple(shape)), np.int32),
        "dtype": numpy_type(info) if memory is None else _type_in(memory, info),
        "quantization": (float(scales[0]), int(points[0])) if len(scales) == 1 else (0.0, 0),
        "quantization_parameters": {
            "scales": np.array(scales, np.float32),
            "zero_points": np.array(points, np.int32),
            "quantized_dimension": quant.axis if quant is not None else 0,
            "block_size": info.blockwise.block_size if info.blockwise is not None else 0,
        },
        "sparsity_parameters": {} if info.sparsity is None else _sparsity(info.sparsity),
    }


def _sparsity(sparsity: Sparsity) -> SparsityParameters:
    levels: list[dict[str, Any]] = []
    for level in sparsity.levels:
        if level.dense_size is not None:
            levels.append({"format": 0, "dense_size": level.dense_size})
        else:
            levels.append(
                {
                    "format": 1,
                    "array_segments": np.array(level.segments, np.int32),
                    "array_indices": np.array(level.indices, np.int32),
                }
            )
    return {
        "traversal_order": np.array(sparsity.traversal_order, np.int32),
        "block_map": np.array(sparsity.block_map, np.int32),
        "dim_metadata": levels,
    }


def operator_details(operator: OperatorInfo, tensors: Sequence[TensorInfo]) -> dict[str, Any]:
    """The details of an operator; the types leave out optional operands that are absent."""
    return {
        "index": operator.index,
        "op_name": operator.name,
        "inputs": np.array(operator.inputs, np.int32),
        "outputs": np.array(operator.outputs, np.int32),
        "operand_types": [numpy_type(tensors[i]) for i in operator.inputs if i != -1],
        "result_types": [numpy_type(tensors[i]) for i in operator.outputs if i != -1],
    }
