"""Calling a model by a signature: arguments and results by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from tflgpu.errors import InputError, OptionError
from tflgpu.interpreter.arguments import array_of
from tflgpu.interpreter.details import TensorDetails
from tflgpu.ir.brief import clipped, quoted
from tflgpu.ir.dtypes import Array


class SignatureRunner:
    """A signature of a model, ready to be called; made by `Interpreter.get_signature_runner`.

    ``runner(x=array, ...)`` resizes the inputs to the arrays' shapes, allocates, runs, and
    returns a dictionary of copies of the results. It shares its subgraph's tensors with the
    interpreter, and like it is used by one thread at a time.
    """

    def __init__(self, interpreter: Any = None, signature_key: str | None = None) -> None:
        """The signature of a key, of an `Interpreter`.

        Raises:
            OptionError: one of the two is missing.
            InputError: the model has no such signature.
            StateError: the interpreter is closed or in use.
        """
        for name, given in (("interpreter", interpreter), ("signature_key", signature_key)):
            if given is None:
                raise OptionError(
                    f"None {name} provided. A SignatureRunner is for an interpreter and a "
                    "signature_key"
                )
        assert interpreter is not None
        assert signature_key is not None
        signature, subgraph, busy = interpreter._signature(signature_key)  # noqa: SLF001
        self._settle = interpreter._settle  # noqa: SLF001
        self._details = interpreter._details  # noqa: SLF001
        self._key = signature.key
        self._inputs = dict(sorted(signature.inputs.items()))
        self._outputs = dict(sorted(signature.outputs.items()))
        self._subgraph = subgraph
        self._busy = busy

    def __call__(self, **inputs: npt.ArrayLike) -> dict[str, Array]:
        """Run on one array per input.

        Raises:
            InputError: a name is missing or unknown, or an array has the wrong type.
            AllocationError: the model does not work out at the arrays' shapes.
            StateError: the interpreter is closed or in use.
            DeviceError, UnsupportedError: as `Interpreter.allocate_tensors` and ``invoke``.
        """
        subgraph = self._subgraph
        with self._busy.call:
            if inputs.keys() != self._inputs.keys():
                raise InputError(
                    f"{_wrong(inputs, self._inputs)}: signature {quoted(self._key)} takes "
                    f"{_names(self._inputs)}, not {_names(inputs)}"
                )
            arrays = {
                index: array_of(subgraph.tensor(index), inputs[name])
                for name, index in self._inputs.items()
            }
            with self._busy.alone:
                self._settle()
                for index, array in arrays.items():
                    subgraph.resize(index, array.shape)
                subgraph.allocate()
                for index, array in arrays.items():
                    subgraph.set(index, array)
                subgraph.run()
                return {name: subgraph.get(index) for name, index in self._outputs.items()}

    def get_input_details(self) -> dict[str, TensorDetails]:
        """Tensor details of each input, by name in the signature."""
        with self._busy:
            return {name: self._details(self._subgraph, i) for name, i in self._inputs.items()}

    def get_output_details(self) -> dict[str, TensorDetails]:
        """Tensor details of each output, by name in the signature."""
        with self._busy:
            return {name: self._details(self._subgraph, i) for name, i in self._outputs.items()}


def _names(names: Any) -> str:
    return ", ".join(names) or "no inputs"


def _wrong(given: Mapping[str, Any], wanted: Mapping[str, int]) -> str:
    """How LiteRT says that the names of arguments are not those of the inputs."""
    if len(given) != len(wanted):
        return (
            "Invalid number of inputs provided for running a SignatureDef, expected "
            f"{len(wanted)} vs provided {len(given)}"
        )
    unknown = next(name for name in given if name not in wanted)
    return f"Invalid Input name ({clipped(unknown)}) for SignatureDef"
