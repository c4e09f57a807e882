"""What a compiled model says of itself: signatures, tensors, and where its operators run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from tflgpu.backend_kit.forks import OfProcess
from tflgpu.compiler.report import DelegationReport
from tflgpu.errors import ArgumentError, InputError
from tflgpu.errors.blame import listed, shown
from tflgpu.interpreter import Interpreter
from tflgpu.interpreter.bound_runs import BoundRuns
from tflgpu.tflite.model_file import ModelFile
from tflgpu.values import frozen

T = TypeVar("T")
#: The key of a model that has no signature, as LiteRT calls it.
_NO_SIGNATURE = "<placeholder signature>"


@frozen
class Signature:
    """A way to call a subgraph.

    Attributes:
        key: Its name.
        subgraph: Its index.
        inputs, outputs: Tensors by name, in the subgraph's order.
    """

    key: str
    subgraph: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]

    def side(self, *, is_input: bool) -> Mapping[str, int]:
        """Inputs or outputs."""
        return self.inputs if is_input else self.outputs


def signatures_of(model: ModelFile) -> list[Signature]:
    """The signatures of a file; where it has none, one of its main subgraph, by tensors' names."""
    found = []
    for s in model.signatures:
        info = model.subgraphs[s.subgraph]
        sides = [
            dict(sorted(named.items(), key=lambda item: order.index(item[1])))
            for named, order in ((s.inputs, info.inputs), (s.outputs, info.outputs))
        ]
        found.append(Signature(s.key, s.subgraph, *sides))
    if not found:
        main = model.subgraphs[0]
        sides = [{main.tensors[i].name: i for i in ids} for ids in (main.inputs, main.outputs)]
        found = [Signature(_NO_SIGNATURE, 0, *sides)]
    return found


def in_order(key: str, kind: str, given: Mapping[str, T], names: Mapping[str, int]) -> list[T]:
    """Buffers in the order of a signature's tensors.

    Raises:
        InputError: one is missing, or has no tensor.
    """
    missing = [name for name in names if name not in given]
    if missing:
        raise InputError(
            f"The given map is missing some {kind} TensorBuffers: {listed(missing)} of signature "
            f"{key!r}"
        )
    for name in given:
        if name not in names:
            raise unknown(kind, name, [*names], key)
    return [given[name] for name in names]


def unknown(kind: str, name: object, names: Sequence[str], key: str) -> InputError:
    """That a signature has no such input or output."""
    return InputError(
        f"{kind.capitalize()} tensor not found: {shown(name)}; signature {key!r} has "
        f"{listed([*names])}"
    )


class ModelFacts(OfProcess):
    """The half of `CompiledModel` that only looks."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._guard = interpreter._busy  # noqa: SLF001
        self._signatures = signatures_of(interpreter._model)  # noqa: SLF001
        self._is_on_gpu = True

    def get_signature_list(self) -> dict[str, dict[str, list[str]]]:
        """Names of inputs and outputs of each signature, by its key."""
        return {s.key: {"inputs": [*s.inputs], "outputs": [*s.outputs]} for s in self._signatures}

    def get_signature_by_index(self, index: int) -> dict[str, Any]:
        """Key, and names of inputs and outputs, of a signature.

        Raises:
            InputError: there is no signature of that index.
        """
        signature = self._signature(index)
        return {
            "key": signature.key,
            "inputs": [*signature.inputs],
            "outputs": [*signature.outputs],
        }

    def get_num_signatures(self) -> int:
        """How many signatures there are; 1 where the file has none, which stands for its main
        subgraph."""
        return len(self._signatures)

    def get_signature_index(self, key: str) -> int:
        """The index of a signature; -1 where there is none of that key."""
        return next((i for i, s in enumerate(self._signatures) if s.key == key), -1)

    def get_input_tensor_details(self, signature_key: str) -> dict[str, Any]:
        """Name in the file, index, type and shape of each input, by its name in the signature.

        Raises:
            InputError: there is no such signature.
            StateError: closed or in use.
        """
        return self._details(signature_key, is_input=True)

    def get_output_tensor_details(self, signature_key: str) -> dict[str, Any]:
        """As `get_input_tensor_details`, of the outputs.

        Raises:
            As there.
        """
        return self._details(signature_key, is_input=False)

    def get_input_buffer_requirements(
        self, input_index: int, signature_index: int = 0
    ) -> dict[str, Any]:
        """Bytes that a buffer for an input takes, and the types of memory that there are (1: host
        memory).

        Raises:
            InputError: there is no such input or signature.
            UnsupportedError: its shape is only known at run time.
            StateError: closed or in use.
        """
        return self._requirements(signature_index, input_index, is_input=True)

    def get_output_buffer_requirements(
        self, output_index: int, signature_index: int = 0
    ) -> dict[str, Any]:
        """As `get_input_buffer_requirements`, of an output.

        Raises:
            As there.
        """
        return self._requirements(signature_index, output_index, is_input=False)

    def is_fully_accelerated(self) -> bool:
        """Whether every operator of every signature runs on the GPU, where that was named;
        otherwise all of them run on the CPU, as they should: True. Compiles signatures that were
        not used yet.

        Raises:
            UnsupportedError, DeviceError: a signature cannot be compiled.
            StateError: closed or in use.
        """
        if not self._is_on_gpu:
            return True
        return all(self.report(s.key).fully_delegated for s in self._signatures)

    def report(self, signature_key: str | None = None) -> DelegationReport:
        """Which operators of a signature, or of the first one, run where, and why.

        Raises:
            InputError: there is no such signature.
            UnsupportedError, DeviceError: it cannot be compiled.
            StateError: closed or in use.
        """
        index = 0 if signature_key is None else self._index(signature_key)
        with self._guard:
            return self._runs_of(index).ready().report

    # Inside

    def _runs_of(self, index: int) -> BoundRuns:
        return self._interpreter._bound_runs(self._signature(index).subgraph)  # noqa: SLF001

    def _signature(self, index: int) -> Signature:
        if isinstance(index, bool) or not isinstance(index, (int, np.integer)):
            raise ArgumentError(f"a signature index is a whole number, not {shown(index)}")
        if not 0 <= index < len(self._signatures):
            count = len(self._signatures)
            raise InputError(f"there is no signature {index}; the model has {count}, from 0")
        return self._signatures[index]

    def _index(self, key: str) -> int:
        found = self.get_signature_index(key)
        if found < 0:
            known = listed([s.key for s in self._signatures])
            raise InputError(f"Signature not found: {shown(key)}; the model has {known}")
        return found

    def _tensor(self, signature_index: int, at: int, *, is_input: bool) -> tuple[str, int]:
        signature, kind = self._signature(signature_index), "input" if is_input else "output"
        tensors = [*signature.side(is_input=is_input).items()]
        if isinstance(at, bool) or not isinstance(at, (int, np.integer)):
            raise ArgumentError(f"an {kind} index is a whole number, not {shown(at)}")
        if not 0 <= at < len(tensors):
            raise InputError(
                f"{kind.capitalize()} index out of range: there is no {kind} {at}; signature "
                f"{signature.key!r} has {listed([name for name, _ in tensors])}"
            )
        return tensors[at]

    def _details(self, key: str, *, is_input: bool) -> dict[str, Any]:
        index = self._index(key)
        with self._guard:
            subgraph = self._runs_of(index).subgraph
            found = {}
            for name, tensor in self._signatures[index].side(is_input=is_input).items():
                details = self._interpreter._details(subgraph, tensor)  # noqa: SLF001
                found[name] = {
                    "name": details["name"],
                    "index": tensor,
                    "dtype": np.dtype(details["dtype"]).name,
                    "shape": [int(n) for n in details["shape"]],
                }
            return found

    def _requirements(self, signature_index: int, at: int, *, is_input: bool) -> dict[str, Any]:
        with self._guard:
            name, index = self._tensor(signature_index, at, is_input=is_input)
            memory = self._runs_of(signature_index).memory(index, on_device=False, name=name)
            return {"buffer_size": memory.nbytes, "supported_types": [1]}
