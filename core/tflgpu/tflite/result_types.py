"""Types of results that TFLite's kernels set themselves, where the file says another.

Some of TFLite's kernels set the type of their results when they are prepared: EQUAL makes bool, ADD
the type of its operands. The reader replaces the file's type before it builds a graph, as it does
with a stale shape, so that every reader of the tensor sees the type that LiteRT would use.

An input of the model that is also marked as a variable, and that no operator keeps its state in, is
an input like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from tflgpu.ir.dtypes import DType
from tflgpu.ops.base import OpDef
from tflgpu.tflite.bodies import run_by_host
from tflgpu.tflite.model_file import ModelFile, OperatorInfo, SubgraphInfo, TensorInfo

#: Types that an option may ask for.
_POSITIONS = (DType.I32, DType.I64)
#: Types that a scale of the file is for.
_SCALED = frozenset({DType.I8, DType.U8, DType.I16})


def result_types(info: SubgraphInfo, ops: Mapping[str, OpDef]) -> Mapping[int, DType]:
    """The types of tensors that operators set, by the tensor's index.

    Variables and constants keep theirs: an operator that writes one is refused elsewhere.
    """
    found: dict[int, DType] = {}
    for operator in info.operators:
        definition = None if operator.is_custom else ops.get(operator.name)
        if definition is None or definition.result_type is None:
            continue
        made = _made(definition.result_type, operator, info.tensors, found)
        for i in operator.outputs:
            if made is not None and i >= 0 and _is_set(info.tensors[i]):
                found[i] = made
    return found


def _is_set(tensor: TensorInfo) -> bool:
    return tensor.data is None and not tensor.is_variable


def _made(
    said: DType | int | str,
    operator: OperatorInfo,
    tensors: Sequence[TensorInfo],
    found: Mapping[int, DType],
) -> DType | None:
    """The type that an operator gives its results; None where it lacks what says so."""
    if isinstance(said, DType):
        return said
    if isinstance(said, str):
        code = operator.fields.get(said)
        return next((kind for kind in _POSITIONS if kind.tflite == code), None)
    source = operator.inputs[said] if said < len(operator.inputs) else -1
    return None if source < 0 else found.get(source, tensors[source].dtype)


def settled(info: SubgraphInfo, ops: Mapping[str, OpDef]) -> SubgraphInfo:
    """A subgraph with the tensors that LiteRT makes of its own; itself where these are as they
    should be.

    A scale of the file stays where the new type has use for one.
    """
    types = result_types(info, ops)
    changed = {
        i: _retyped(info.tensors[i], dtype)
        for i, dtype in types.items()
        if info.tensors[i].dtype is not dtype
    }
    marked = {i for i in info.inputs if info.tensors[i].is_variable}
    kept = {i for o in info.operators if _may_keep(o, ops) for i in o.inputs} if marked else set()
    for i in marked - kept:
        changed[i] = attrs.evolve(info.tensors[i], is_variable=False)
    if not changed:
        return info
    tensors = [changed.get(t.index, t) for t in info.tensors]
    return attrs.evolve(info.whole, tensors=tensors)


def _retyped(tensor: TensorInfo, dtype: DType) -> TensorInfo:
    scale = tensor.quantization if dtype in _SCALED else None
    return attrs.evolve(tensor, dtype=dtype, quantization=scale, blockwise=None)


def _may_keep(operator: OperatorInfo, ops: Mapping[str, OpDef]) -> bool:
    """Whether an operator keeps state in an operand, or is one of which nothing is known."""
    definition = ops.get(operator.name)
    return not run_by_host(operator) if definition is None else definition.stateful


def settled_model(model: ModelFile, ops: Mapping[str, OpDef]) -> ModelFile:
    """A model whose subgraphs are `settled`; itself where all are."""
    subgraphs = tuple(settled(s, ops) for s in model.subgraphs)
    if all(a is b for a, b in zip(subgraphs, model.subgraphs, strict=True)):
        return model
    return attrs.evolve(model.whole, subgraphs=subgraphs)
