"""Types of results that the file has nothing to say about.

Some of TFLite's kernels give their results the type that they make (EQUAL: bool) when they are prepared,
whatever type the file gives these tensors. So what the file says is replaced, like a stale shape, before
a graph is made: the tensors are of that type for whatever reads them, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from tflgpu.ir.dtypes import DType
from tflgpu.ops.base import OpDef
from tflgpu.tflite.model_file import ModelFile, OperatorInfo, SubgraphInfo


def settled_types(
    operators: Sequence[OperatorInfo], ops: Mapping[str, OpDef]
) -> Mapping[int, DType]:
    """The types of tensors that operators set, by the tensor's index."""
    found = {}
    for operator in operators:
        definition = None if operator.is_custom else ops.get(operator.name)
        if definition is not None and definition.result_type is not None:
            found.update(dict.fromkeys(operator.outputs, definition.result_type))
    return found


def settled(info: SubgraphInfo, ops: Mapping[str, OpDef]) -> SubgraphInfo:
    """A subgraph whose tensors have the types that its operators make; itself where they do.

    A scale goes with the type that it was for. Variables and constants keep theirs: an operator that
    writes one is refused elsewhere.
    """
    types = settled_types(info.operators, ops)
    wrong = {
        i
        for i, dtype in types.items()
        if 0 <= i < len(info.tensors)
        and info.tensors[i].dtype is not dtype
        and info.tensors[i].data is None
        and not info.tensors[i].is_variable
    }
    if not wrong:
        return info
    tensors = [
        attrs.evolve(t, dtype=types[t.index], quantization=None, blockwise=None)
        if t.index in wrong
        else t
        for t in info.tensors
    ]
    return attrs.evolve(info.whole, tensors=tensors)


def settled_model(model: ModelFile, ops: Mapping[str, OpDef]) -> ModelFile:
    """A model whose subgraphs are `settled`; itself where all are."""
    subgraphs = tuple(settled(s, ops) for s in model.subgraphs)
    if all(a is b for a, b in zip(subgraphs, model.subgraphs, strict=True)):
        return model
    return attrs.evolve(model.whole, subgraphs=subgraphs)
