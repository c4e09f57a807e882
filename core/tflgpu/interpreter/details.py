"""What an interpreter says of its model: tensors, operators and signatures, as TFLite's does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from tflgpu.errors import InputError
from tflgpu.interpreter.arguments import as_index, numpy_type
from tflgpu.interpreter.parts import InterpreterParts
from tflgpu.interpreter.resizing import no_tensor
from tflgpu.interpreter.subgraph import Subgraph
from tflgpu.ir.dtypes import DType
from tflgpu.runtime.session import Session
from tflgpu.tflite.bodies import STATE
from tflgpu.tflite.model_file import OperatorInfo, TensorInfo
from tflgpu.tflite.sparsity import Sparsity


class QuantizationParameters(TypedDict):
    """How the numbers of a tensor are stored: a scale and a zero point each, or one for all. Of
    blocks only the scales are told, in the type that they are stored in."""

    scales: npt.NDArray[np.floating[Any]]
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


def _type_in(session: Session, info: TensorInfo) -> type[np.generic]:
    """The type of the array that has a tensor's contents; of texts and of what has no array its
    own."""
    array = None if info.data is not None else session.arrays.get(info.index)
    # What is bf16 lies as f32, and stays without a type.
    if array is None or array.dtype.hasobject or info.dtype is DType.BF16:
        return numpy_type(info)
    return array.dtype.type


def tensor_details(
    info: TensorInfo,
    shape: Sequence[int],
    session: Session | None = None,
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
        "dtype": numpy_type(info) if session is None else _type_in(session, info),
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


class ModelDetails(InterpreterParts):
    """The half of `Interpreter` that only looks. All of it raises `StateError` where the
    interpreter is closed or in use."""

    _compress: bool

    def __repr__(self) -> str:
        info = self._main.info
        sides = (", ".join(info.tensors[i].name for i in at) for at in (info.inputs, info.outputs))
        state = "ready" if self._main.allocated else "not allocated"
        return f"<Interpreter: {' -> '.join(sides)}; {state}>"

    def get_input_details(self) -> list[TensorDetails]:
        """A dictionary per input: name, index, shape, shape_signature, dtype, quantization,
        quantization_parameters, sparsity_parameters."""
        with self._busy:
            return [self._details(self._main, i) for i in self._main.info.inputs]

    def get_output_details(self) -> list[TensorDetails]:
        """A dictionary per output, as `get_input_details`."""
        with self._busy:
            return [self._details(self._main, i) for i in self._main.info.outputs]

    def get_tensor_details(self, subgraph_index: int = 0) -> list[TensorDetails]:
        """A dictionary per tensor of the file that NumPy has a type for.

        Raises:
            InputError: no such subgraph.
        """
        with self._busy:
            subgraph = self._subgraph(subgraph_index)
            found = []
            for info in subgraph.info.tensors:
                try:
                    found.append(self._details(subgraph, info.index))
                except InputError:
                    continue
            return found

    def _get_tensor_details(self, tensor_index: int, subgraph_index: int) -> TensorDetails:
        """What `get_tensor_details` has of one tensor.

        Raises:
            InputError: no such tensor or subgraph, or one of a type that NumPy lacks.
        """
        with self._busy:
            subgraph, index = self._subgraph(subgraph_index), as_index(tensor_index)
            count = len(subgraph.info.tensors)
            if index >= count:  # in LiteRT, tensors of kernels follow, which have no shape
                raise InputError(f"Tensor with no shape found. {no_tensor(index, count)}")
            return self._details(subgraph, index)

    def _get_ops_details(self) -> list[dict[str, Any]]:
        """A dictionary per operator of the file: index, op_name, inputs, outputs, types.

        In TFLite, operators named DELEGATE follow them that stand for delegated parts; here what
        runs where is in `report`.
        """
        with self._busy:
            info = self._main.info
            return [operator_details(o, info.tensors) for o in info.operators]

    def _get_op_details(self, op_index: int) -> dict[str, Any]:
        """What `_get_ops_details` has of one operator.

        Raises:
            InputError: no such operator.
            ArgumentError: ``op_index`` is not a number.
        """
        with self._busy:
            info, index = self._main.info, as_index(op_index, "an operator index")
            if not 0 <= index < len(info.operators):
                count = len(info.operators)
                raise InputError(
                    f"Invalid node index: there is no operator {index}; the model has {count}, "
                    "from 0"
                )
            return operator_details(info.operators[index], info.tensors)

    @property
    def experimental_compress_quantization_zero_points(self) -> bool:
        """Whether equal zero points of channels are told as one, by the constructor's argument."""
        with self._busy:
            return self._compress

    def num_subgraphs(self) -> int:
        """How many subgraphs the model has."""
        with self._busy:
            return len(self._model.subgraphs)

    def get_signature_list(self) -> dict[str, dict[str, list[str]]]:
        """Names of inputs and outputs of each signature, by its key."""
        with self._busy:
            return {
                s.key: {"inputs": sorted(s.inputs), "outputs": sorted(s.outputs)}
                for s in self._model.signatures
            }

    def _get_full_signature_list(self) -> dict[str, dict[str, dict[str, int]]]:
        """Tensor indices of each signature's inputs and outputs, by key and name."""
        with self._busy:
            return {
                s.key: {
                    "inputs": dict(sorted(s.inputs.items())),
                    "outputs": dict(sorted(s.outputs.items())),
                }
                for s in self._model.signatures
            }

    @property
    def keeps_state(self) -> bool:
        """Whether results depend on earlier runs: the file has variables.

        Raises:
            StateError: closed, or in use.
        """
        with self._busy:
            return any(
                any(t.is_variable for t in s.tensors) or any(o.name in STATE for o in s.operators)
                for s in self._model.subgraphs
            )

    def _details(self, subgraph: Subgraph, index: int) -> TensorDetails:
        """Of a tensor of a subgraph.

        Raises:
            InputError: no such tensor, or one of a type that NumPy lacks.
        """
        info = subgraph.tensor(index)
        shape, blocks = subgraph.shape(info.index), info.blockwise
        found = tensor_details(info, shape, subgraph.session, compress=self._compress)
        scales = None if blocks is None else subgraph.tensor(blocks.scales).data
        if scales is not None:
            found["quantization_parameters"]["scales"] = scales.flatten()
        return found
