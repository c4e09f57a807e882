"""Calling a model by a signature: arguments and results by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tflgpu.backend_kit.run_guard import RunGuard
from tflgpu.compiler.report import DelegationReport
from tflgpu.errors import InputError, OptionError
from tflgpu.errors.blame import clipped, listed, quoted, shown
from tflgpu.interpreter.arguments import array_of
from tflgpu.interpreter.bound_runs import BoundRuns
from tflgpu.interpreter.buffer_methods import Copied
from tflgpu.interpreter.details import TensorDetails
from tflgpu.interpreter.parts import InterpreterParts
from tflgpu.interpreter.subgraph import Subgraph
from tflgpu.interpreter.tensor_memory import TensorMemory
from tflgpu.ir.dtypes import Array
from tflgpu.options import truth
from tflgpu.tflite.model_file import SignatureInfo


class SignatureRunner:
    """A signature of a model, ready to be called; made by `Interpreter.get_signature_runner`.

    ``runner(x=array, ...)`` resizes the inputs to the arrays' shapes, allocates, runs, and
    returns a dictionary of copies of the results. It shares its subgraph's tensors with the
    interpreter, and like it is used by one thread at a time.

    With ``carry`` it has caches: inputs that a call may leave out, since they are what an earlier
    call made, of this signature or of another one of the interpreter with an input of that name.
    They stay on the device, and are no results.
    """

    def __init__(
        self,
        interpreter: Any = None,
        signature_key: str | None = None,
        *,
        carry: bool | Mapping[str, str] = False,
    ) -> None:
        """The signature of a key, of an `Interpreter`; ``carry`` as `get_signature_runner` takes
        it.

        Raises:
            OptionError: one of the two is missing, or ``carry`` names no output and input of one
                shape and type.
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
        self._own: Subgraph = subgraph
        self._busy = busy
        self._carried = _pairs(signature, subgraph, carry)
        self._caches: dict[str, TensorMemory] = interpreter._caches  # noqa: SLF001
        self._every: dict[int, BoundRuns] = interpreter._bound  # noqa: SLF001
        self._runs: BoundRuns | None = None
        if self._carried:
            self._runs = interpreter._bound_runs(signature.subgraph)  # noqa: SLF001

    def __call__(self, **inputs: npt.ArrayLike) -> dict[str, Array]:
        """Run on one array per input; one for a cache replaces what is in it.

        Raises:
            InputError: a name is missing or unknown, or an array has the wrong type.
            AllocationError: the model does not work out at the arrays' shapes.
            StateError: the interpreter is closed or in use.
            DeviceError, UnsupportedError: as `Interpreter.allocate_tensors` and ``invoke``.
        """
        subgraph = self._subgraph
        with self._busy.call:
            known = {n: i for n, i in self._inputs.items() if n in inputs or n not in self._carried}
            if inputs.keys() != known.keys():
                raise InputError(
                    f"{_wrong(inputs, known)}: signature {quoted(self._key)} takes "
                    f"{_names(known)}, not {_names(inputs)}"
                )
            arrays = {
                index: array_of(subgraph.tensor(index), inputs[name])
                for name, index in known.items()
            }
            with self._busy:
                self._settle()
                if self._runs is not None:
                    return self._run_on_caches(self._runs, arrays)
                for index, array in arrays.items():
                    subgraph.resize(index, array.shape)
                subgraph.allocate()
                for index, array in arrays.items():
                    subgraph.set(index, array)
                subgraph.run()
                return {name: subgraph.get(index) for name, index in self._outputs.items()}

    @property
    def _subgraph(self) -> Subgraph:
        return self._own if self._runs is None else self._runs.subgraph

    @property
    def carried(self) -> dict[str, str]:
        """The caches: inputs, and the outputs that they become."""
        return dict(self._carried)

    def read_caches(self) -> dict[str, Array]:
        """Copies of the caches, by input; zeros before the first run.

        Raises:
            StateError: the interpreter is closed or in use.
            DeviceError, UnsupportedError: as a call.
        """
        with self._busy:
            return {} if self._runs is None else {n: self._cache(n).read() for n in self._carried}

    def reset_caches(self) -> None:
        """Set the caches to zero. After a run that failed, all of the interpreter begin anew in
        other memory, on a device opened anew where it is lost.

        Raises:
            StateError, DeviceError, UnsupportedError: as `read_caches`.
        """
        with self._busy:
            broken = [runs for runs in self._every.values() if runs.is_broken]
            if broken:
                for runs in self._every.values():
                    runs.forget()
                for runs in broken:  # before others are opened on a device that is lost
                    runs.ready()
                while self._caches:
                    self._caches.popitem()[1].close()
            for name in self._carried:
                cache = self._cache(name)
                cache.write(np.zeros(cache.shape, cache.dtype))

    @property
    def report(self) -> DelegationReport:
        """Which operators of the signature run where, and why; it is allocated where it was not.

        Raises:
            StateError: the interpreter is closed or in use.
            UnsupportedError, DeviceError: as a call.
        """
        with self._busy:
            if self._runs is not None:
                return self._runs.ready().report
            self._own.allocate()
            return self._own.report

    @property
    def copied(self) -> Copied:
        """What runs with caches have copied between host and device: the other inputs, and
        results."""
        with self._busy:
            return Copied(0, 0) if self._runs is None else Copied(*self._runs.copied)

    def _cache(self, name: str) -> TensorMemory:
        """The cache of an input, which signatures share."""
        assert self._runs is not None
        index = self._inputs[name]
        found = self._caches.get(name)
        if found is None:
            found = self._runs.memory(index, on_device=True, name=name)
            self._caches[name] = found
        own = self._runs.shape(index), self._runs.subgraph.tensor(index).dtype.numpy
        if (found.shape, found.dtype) != own:
            raise InputError(
                f"cache {quoted(name)} is {own[1]}{listed(own[0])} in signature "
                f"{quoted(self._key)}, and {found.dtype}{listed(found.shape)} in the one that "
                "filled it; signatures share caches of one shape and type only"
            )
        return found

    def _run_on_caches(self, runs: BoundRuns, arrays: dict[int, Array]) -> dict[str, Array]:
        for name, index in self._inputs.items():
            if name not in self._carried and runs.shape(index) != arrays[index].shape:
                runs.resize(index, arrays[index].shape, strict=False)
        runs.ready()
        caches = {name: self._cache(name) for name in self._carried}
        for name, cache in caches.items():
            given = arrays.pop(self._inputs[name], None)
            if given is not None:
                cache.write(given.reshape(cache.shape))
        subgraph = runs.run(
            {self._inputs[name]: cache for name, cache in caches.items()},
            {self._outputs[self._carried[name]]: cache for name, cache in caches.items()},
            arrays,
        )
        outputs = self._outputs.items()
        return {n: subgraph.get(i) for n, i in outputs if n not in self._carried.values()}

    def get_input_details(self) -> dict[str, TensorDetails]:
        """Tensor details of each input, by name in the signature."""
        with self._busy:
            return {name: self._details(self._subgraph, i) for name, i in self._inputs.items()}

    def get_output_details(self) -> dict[str, TensorDetails]:
        """Tensor details of each output, by name in the signature."""
        with self._busy:
            return {name: self._details(self._subgraph, i) for name, i in self._outputs.items()}


class SignatureMethods(InterpreterParts):
    """The part of `Interpreter` that is about signatures."""

    def get_signature_runner(
        self, signature_key: str | None = None, *, carry: bool | Mapping[str, str] = False
    ) -> SignatureRunner:
        """A function that runs a signature; without a key, the only one.

        Args:
            signature_key: Which.
            carry: Which outputs are inputs of the next call, and stay on the device in between:
                True are those that have the name, shape and type of an input, as the caches of
                language models have; otherwise names of inputs by those of outputs. Runners of the
                interpreter share what has the same input's name.

        Raises:
            InputError: no signature of that key, or no key and not exactly one signature.
            OptionError: ``carry`` names no output and input of one shape and type.
        """
        if signature_key is None:
            with self._busy:
                keys = [s.key for s in self._model.signatures]
            if len(keys) != 1:
                known = ", ".join(map(repr, keys)) or "none"
                raise InputError(
                    f"SignatureDef signature_key is None and model has {len(keys)} Signatures. "
                    f"None is only allowed when the model has 1 SignatureDef; this one has {known}"
                )
            (signature_key,) = keys
        return SignatureRunner(self, signature_key, carry=carry)

    def delegation_report(self, signature_key: str) -> DelegationReport:
        """Which operators of a signature run where, and why, as `report` says it of the main
        subgraph; it is allocated where it was not.

        Raises:
            InputError: there is no signature of that key.
            StateError: closed or in use.
            UnsupportedError, DeviceError: as `allocate_tensors`.
        """
        return SignatureRunner(self, signature_key).report

    def _signature(self, key: str) -> tuple[SignatureInfo, Subgraph, RunGuard]:
        """For a runner: a signature, its subgraph, and what keeps other threads out."""
        with self._busy:
            known = [s for s in self._model.signatures if isinstance(key, str) and s.key == key]
            if not known:
                there = ", ".join(repr(s.key) for s in self._model.signatures) or "none"
                said = f'Invalid signature_key provided: "{clipped(str(key))}".'
                said = said if str(key) else "None signature_key provided."
                raise InputError(
                    f"{said} There is no signature {shown(key)}; the model has {there}"
                )
            return known[-1], self._subgraph(known[-1].subgraph), self._busy

    def _bound_runs(self, number: int) -> BoundRuns:
        """Runs of a subgraph on tensors that outlive them; closed with the interpreter."""
        if number not in self._bound:
            keeps_state = self._opener.keeps_state(number)
            make = partial(self._make, number)
            self._bound[number] = BoundRuns(make, keeps_state=keeps_state)
        return self._bound[number]


def _pairs(signature: SignatureInfo, subgraph: Subgraph, carry: Any) -> dict[str, str]:
    """Outputs by the input that they are in the next call."""
    if not isinstance(carry, Mapping):
        names = signature.inputs if truth("carry", carry) else ()
        return {
            name: name
            for name in names
            if name in signature.outputs and _form(signature, subgraph, name, name) is None
        }
    found: dict[str, str] = {}
    for output, name in carry.items():
        for side, known, which in (
            ("output", signature.outputs, output),
            ("input", signature.inputs, name),
        ):
            if which not in known:
                raise OptionError(
                    f"carry: signature {quoted(signature.key)} has no {side} {shown(which)}; there "
                    f"are {_names(known)}"
                )
        refused = _form(signature, subgraph, output, name)
        if refused is not None or name in found:
            raise OptionError(f"carry: {refused or f'two outputs for input {quoted(name)}'}")
        found[name] = output
    return found


def _form(signature: SignatureInfo, subgraph: Subgraph, output: str, name: str) -> str | None:
    """Why an output cannot become an input; None where it can."""
    made, read = signature.outputs[output], signature.inputs[name]
    forms = [(subgraph.shape(i), subgraph.tensor(i).dtype.numpy) for i in (made, read)]
    if made != read and forms[0] == forms[1]:
        return None
    (after, its), (before, own) = forms
    return (
        f"output {quoted(output)} ({its}{listed(after)}) cannot become input {quoted(name)} "
        f"({own}{listed(before)}); it takes the same shape and type, and tensors of their own"
    )


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
