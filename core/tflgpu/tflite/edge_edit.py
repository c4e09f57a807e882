"""Operators before an input or behind an output of a model: what converters are made of.

A converter gives and takes real numbers: QUANTIZE follows it where the input is quantized, and
DEQUANTIZE comes before it where the output is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from tflgpu.errors import InputError
from tflgpu.errors.blame import listed, quoted, shown
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Shape
from tflgpu.tflite.model_file import ModelFile
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec, spec_of


@attrs.frozen(eq=False)
class Step:
    """One operator of a converter: its first operand is what the step before it made.

    Attributes:
        op: A builtin operator's name.
        shape, dtype: Of its result.
        fields: Its options, by the schema's names.
        constants: Its further operands.
        quantization: Of its result.
    """

    op: str
    shape: Shape
    dtype: DType = DType.F32
    fields: Mapping[str, Any] = attrs.Factory(dict)
    constants: tuple[Array, ...] = ()
    quantization: Quantization | None = None


class FromSomething(Protocol):
    """A converter for an input of the model."""

    def given(self, shape: Shape) -> tuple[Shape, DType]:
        """Shape and type of what the caller gives, for a tensor of ``shape``."""
        ...

    def steps(self, shape: Shape) -> list[Step]:
        """The operators that make the tensor's real numbers from what the caller gives; none where
        those are given."""
        ...


class ToSomething(Protocol):
    """A converter for an output of the model."""

    def steps(self, shape: Shape) -> list[Step]:
        """The operators that make the caller's result from real numbers of ``shape``; none where
        those are the result."""
        ...


class EdgeEdit:
    """A model whose main subgraph gets operators at its ends."""

    def __init__(self, file: ModelFile) -> None:
        self._whole = spec_of(file)
        self._tensors = list(self._whole.tensors)
        self._inputs, self._outputs = list(self._whole.inputs), list(self._whole.outputs)
        self._signatures = list(self._whole.signatures)
        self._before: list[OperatorSpec] = []
        self._after: list[OperatorSpec] = []

    def spec(self) -> ModelSpec:
        """The model with all that was put there."""
        return attrs.evolve(
            self._whole,
            tensors=self._tensors,
            operators=(*self._before, *self._whole.operators, *self._after),
            inputs=self._inputs,
            outputs=self._outputs,
            signatures=self._signatures,
        )

    def found(self, which: str | int, *, is_input: bool) -> int:
        """The tensor that is meant, which must have real numbers: f32, or quantized.

        Raises:
            InputError: there is none, or it has others.
        """
        whole = self._whole
        ports = whole.inputs if is_input else whole.outputs
        sides = [s.inputs if is_input else s.outputs for s in whole.signatures if not s.subgraph]
        named = {side[which] for side in sides if isinstance(which, str) and which in side}
        named = named or {i for i in ports if which in (i, whole.tensors[i].name)}
        kind = "input" if is_input else "output"
        if len(named) != 1:
            known = ", ".join(f"{i} ({quoted(whole.tensors[i].name)})" for i in ports)
            told = "several are" if named else "none is"
            raise InputError(f"{told} the {kind} {shown(which)}; there are {known or 'none'}")
        (index,) = named
        now = self._inputs if is_input else self._outputs
        tensor = whole.tensors[index]
        if index not in now:
            raise InputError(f"{kind} {quoted(tensor.name)} is converted twice")
        if tensor.dtype is not DType.F32 and not _is_quantized(tensor):
            raise InputError(
                f"{kind} {quoted(tensor.name)} is {tensor.dtype.value} without one scale; "
                "converters are for f32 and for quantized tensors"
            )
        if is_input and index in self._whole.outputs:
            raise InputError(f"{quoted(tensor.name)} is an input and an output at once")
        return index

    def put_before(self, index: int, give: FromSomething) -> None:
        """Put a converter before an input.

        Raises:
            InputError: it makes another shape, or does nothing.
            OptionError: the converter's numbers make no sense.
        """
        tensor = self._tensors[index]
        shape, dtype = give.given(tensor.shape)
        steps = give.steps(tensor.shape)
        if steps and (steps[-1].shape != tensor.shape or steps[-1].dtype is not DType.F32):
            raise InputError(f"{type(give).__name__} makes {listed(steps[-1].shape)}")
        if tensor.dtype is not DType.F32:
            own = tensor.quantization
            steps.append(Step("QUANTIZE", tensor.shape, tensor.dtype, quantization=own))
        _check_some(steps, give, tensor)
        made = self._new(TensorSpec(tensor.name, shape, dtype, **_open(tensor, shape)))
        inner = attrs.evolve(tensor, name=f"{tensor.name}, converted")
        self._tensors[index] = inner
        source = made
        for i, step in enumerate(steps):
            target = index if i == len(steps) - 1 else None
            source = self._add(self._before, step, source, tensor, target)
        self._inputs = [made if i == index else i for i in self._inputs]
        self._rename(index, made, is_input=True)

    def put_after(self, index: int, take: ToSomething) -> None:
        """Put a converter behind an output.

        Raises:
            InputError: it does nothing.
            OptionError: the converter's numbers make no sense.
        """
        tensor = self._tensors[index]
        source = index
        steps = take.steps(tensor.shape)
        if tensor.dtype is not DType.F32:
            steps.insert(0, Step("DEQUANTIZE", tensor.shape))
        _check_some(steps, take, tensor)
        self._tensors[index] = attrs.evolve(tensor, name=f"{tensor.name}, as computed")
        for step in steps:
            source = self._add(self._after, step, source, tensor, None)
        self._tensors[source] = attrs.evolve(self._tensors[source], name=tensor.name)
        self._outputs = [source if i == index else i for i in self._outputs]
        self._rename(index, source, is_input=False)

    # Inside

    def _add(
        self,
        operators: list[OperatorSpec],
        step: Step,
        source: int,
        port: TensorSpec,
        target: int | None,
    ) -> int:
        name = f"{port.name}, by {step.op}"
        constants = [
            self._new(TensorSpec(f"{name}, operand {i}", c.shape, DType.from_numpy(c.dtype), c))
            for i, c in enumerate(step.constants, 1)
        ]
        if target is None:
            made = TensorSpec(
                name,
                step.shape,
                step.dtype,
                quantization=step.quantization,
                **_open(port, step.shape),
            )
            target = self._new(made)
        operators.append(OperatorSpec(step.op, step.fields, (source, *constants), (target,)))
        return target

    def _new(self, tensor: TensorSpec) -> int:
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def _rename(self, old: int, new: int, *, is_input: bool) -> None:
        for i, signature in enumerate(self._signatures):
            if not signature.subgraph:
                given = signature.inputs if is_input else signature.outputs
                ports = {n: new if t == old else t for n, t in given.items()}
                self._signatures[i] = (
                    attrs.evolve(signature, inputs=ports)
                    if is_input
                    else attrs.evolve(signature, outputs=ports)
                )


def _is_quantized(tensor: TensorSpec) -> bool:
    own = tensor.quantization
    whole = tensor.dtype in (DType.U8, DType.I8, DType.I16)
    return whole and own is not None and len(own.scale) == 1 and own.scale[0] > 0


def _check_some(steps: Sequence[Step], converter: object, tensor: TensorSpec) -> None:
    if not steps:
        raise InputError(f"{type(converter).__name__}: {quoted(tensor.name)} is f32 as it is")


def _open(port: TensorSpec, shape: Shape) -> dict[str, Any]:
    """Dimensions that the tensor leaves open stay so where the shape is the tensor's."""
    return {"shape_signature": port.shape_signature} if shape == port.shape else {}
