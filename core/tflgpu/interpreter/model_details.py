"""What an interpreter says of its model: tensors, operators and signatures, as TFLite's does."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from tflgpu.backend_kit.run_guard import RunGuard
from tflgpu.errors import InputError
from tflgpu.interpreter.arguments import as_index
from tflgpu.interpreter.details import TensorDetails, operator_details
from tflgpu.interpreter.resizing import no_tensor
from tflgpu.interpreter.subgraph import Subgraph
from tflgpu.tflite.bodies import STATE
from tflgpu.tflite.model_file import ModelFile


class ModelDetails:
    """The half of `Interpreter` that only looks. All of it raises `StateError` where the
    interpreter is closed or in use."""

    _busy: RunGuard
    _model: ModelFile
    _main: Subgraph
    _compress: bool

    @abstractmethod
    def _subgraph(self, index: int) -> Subgraph:
        """A subgraph.

        Raises:
            InputError: there is none of that index.
        """

    def __repr__(self) -> str:
        info = self._main.info
        sides = (", ".join(info.tensors[i].name for i in at) for at in (info.inputs, info.outputs))
        state = "ready" if self._main.allocated else "not allocated"
        return f"<Interpreter: {' -> '.join(sides)}; {state}>"

    def get_input_details(self) -> list[TensorDetails]:
        """A dictionary per input: name, index, shape, shape_signature, dtype, quantization,
        quantization_parameters, sparsity_parameters."""
        with self._busy:
            return [self._main.details(i) for i in self._main.info.inputs]

    def get_output_details(self) -> list[TensorDetails]:
        """A dictionary per output, as `get_input_details`."""
        with self._busy:
            return [self._main.details(i) for i in self._main.info.outputs]

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
                    found.append(subgraph.details(info.index))
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
            return subgraph.details(index)

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
        """As the constructor was given it."""
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
