"""What to write into a `.tflite` file: plain values, close to what reading one gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
from attrs import field, frozen

from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.model_file import (
    Blockwise,
    FieldValue,
    ModelFile,
    OperatorInfo,
    SignatureInfo,
    SubgraphInfo,
    TensorInfo,
)
from tflgpu.tflite.sparsity import Sparsity


def _ints(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def _bools(values: Iterable[bool]) -> tuple[bool, ...]:
    return tuple(values)


def _signatures(values: Iterable[SignatureInfo]) -> tuple[SignatureInfo, ...]:
    return tuple(values)


@frozen(eq=False)
class TensorSpec:
    """A tensor to write.

    Attributes:
        name: may be empty.
        shape: sizes, none negative.
        dtype: element type.
        data: the constant, in the form `TensorInfo.data` describes, or anything numpy makes an
            array of; None for a runtime tensor.
        quantization: affine quantization.
        is_variable: keeps its value between invocations; has no data.
        shape_signature: as ``shape`` with -1 for sizes that are not fixed; None where all are.
        sparsity: how ``data``, then flat, is laid out.
        has_rank: whether an empty shape is known to mean a scalar.
        blockwise: quantization by blocks, with tensors of the same subgraph.
    """

    name: str
    shape: tuple[int, ...] = field(converter=_ints)
    dtype: DType = DType.F32
    data: npt.ArrayLike | None = field(default=None, repr=False)
    quantization: Quantization | None = None
    is_variable: bool = False
    shape_signature: tuple[int, ...] | None = None
    sparsity: Sparsity | None = None
    has_rank: bool = True
    blockwise: Blockwise | None = None


@frozen(eq=False)
class PackedOptions:
    """The options of a builtin operator, written by a function of the caller's.

    Attributes:
        builtin: the operator's code in the schema.
        union: the field of the operator that has them, "builtin_options" or "builtin_options2".
        code: which table of that union they are; 0 for none.
        pack: writes them into a `flatbuffers.Builder`, and gives their offset.
    """

    builtin: int
    union: str = "builtin_options"
    code: int = 0
    pack: Callable[[Any], int] | None = None


@frozen
class OperatorSpec:
    """An operator to write.

    Attributes:
        name: a BuiltinOperator name such as "CONV_2D"; any other name is a custom operator's.
        fields: options by the schema's snake_case name; what is left out has the schema's default.
        inputs: tensor indices; -1 for an optional input that is absent.
        outputs: tensor indices.
        version: version of the operator.
        custom_options: a custom operator's options.
        intermediates: tensor indices, for recurrent operators.
        mutating_variable_inputs: whether the operator changes each input.
        packed: its code and options, in the place of what ``name`` and ``fields`` say.
    """

    name: str
    fields: Mapping[str, FieldValue | Sequence[Any]] = field(factory=dict)
    inputs: tuple[int, ...] = field(default=(), converter=_ints)
    outputs: tuple[int, ...] = field(default=(), converter=_ints)
    version: int = 1
    custom_options: bytes = b""
    intermediates: tuple[int, ...] = field(default=(), converter=_ints)
    mutating_variable_inputs: tuple[bool, ...] = field(default=(), converter=_bools)
    packed: PackedOptions | None = None


def _tensors(values: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    return tuple(values)


def _operators(values: Iterable[OperatorSpec]) -> tuple[OperatorSpec, ...]:
    return tuple(values)


@frozen
class SubgraphSpec:
    """A further subgraph, such as the body of a WHILE."""

    tensors: tuple[TensorSpec, ...] = field(converter=_tensors)
    operators: tuple[OperatorSpec, ...] = field(converter=_operators)
    inputs: tuple[int, ...] = field(converter=_ints)
    outputs: tuple[int, ...] = field(converter=_ints)
    name: str = ""


def _subgraphs(values: Iterable[SubgraphSpec]) -> tuple[SubgraphSpec, ...]:
    return tuple(values)


@frozen
class ModelSpec:
    """A model to write: its main subgraph, and what goes with it.

    Attributes:
        tensors: tensors of the main subgraph; indices below refer to their order.
        operators: operators in order of execution.
        inputs: tensor indices.
        outputs: tensor indices.
        signatures: named entry points.
        name: name of the main subgraph.
        subgraphs: further subgraphs, numbered from 1.
        metadata: named blobs.
        description: free text.
    """

    tensors: tuple[TensorSpec, ...] = field(converter=_tensors)
    operators: tuple[OperatorSpec, ...] = field(converter=_operators)
    inputs: tuple[int, ...] = field(converter=_ints)
    outputs: tuple[int, ...] = field(converter=_ints)
    signatures: tuple[SignatureInfo, ...] = field(default=(), converter=_signatures)
    name: str = "main"
    subgraphs: tuple[SubgraphSpec, ...] = field(default=(), converter=_subgraphs)
    metadata: Mapping[str, bytes | memoryview] = field(factory=dict)
    description: str = ""

    @property
    def main(self) -> SubgraphSpec:
        """The main subgraph on its own."""
        return SubgraphSpec(self.tensors, self.operators, self.inputs, self.outputs, self.name)


def spec_of(model: ModelFile) -> ModelSpec:
    """The spec that writes a model that was read, to change it or to cut a part out."""
    main, *others = (subgraph_spec(s) for s in model.subgraphs)
    return ModelSpec(
        main.tensors,
        main.operators,
        main.inputs,
        main.outputs,
        signatures=model.signatures,
        name=main.name,
        subgraphs=tuple(others),
        metadata=model.metadata,
        description=model.description,
    )


def subgraph_spec(info: SubgraphInfo) -> SubgraphSpec:
    """The spec that writes a subgraph that was read."""
    tensors = [_tensor(t) for t in info.tensors]
    operators = [_operator(o) for o in info.operators]
    return SubgraphSpec(tensors, operators, info.inputs, info.outputs, info.name)


def _tensor(info: TensorInfo) -> TensorSpec:
    return TensorSpec(
        info.name,
        info.shape,
        info.dtype,
        info.default if info.data is None else info.data,
        info.quantization,
        info.is_variable,
        info.shape_signature if info.shape_signature != info.shape else None,
        info.sparsity,
        info.has_rank,
        info.blockwise,
    )


def _operator(info: OperatorInfo) -> OperatorSpec:
    return OperatorSpec(
        info.name,
        info.fields,
        info.inputs,
        info.outputs,
        info.version,
        info.custom_options,
        info.intermediates,
        info.mutating_variable_inputs,
    )
