"""Readers of a variable that the same subgraph has assigned take the assigned tensor instead.

Converted models read, assign and read again: ``count.assign_add(1)`` and then ``count * x``. Each
read ends what can be compiled as one graph, though what this one gives is known: it is the tensor
that was assigned. So operators behind it are given that tensor, and one graph has them all. The
read itself stays, since its result may be an output.
"""

from __future__ import annotations

import attrs

from tflgpu.flow.operators import (
    ASSIGN,
    CALL_ONCE,
    READ,
    VAR_HANDLE,
    called,
    handle_of,
    keeps_state,
)
from tflgpu.flow.store import Handle
from tflgpu.tflite.model_file import OperatorInfo, SubgraphInfo, TensorInfo

#: What names a variable: what VAR_HANDLE makes, or a tensor that the subgraph is given.
_Key = Handle | int


def forwarded(info: SubgraphInfo, subgraphs: tuple[SubgraphInfo, ...]) -> SubgraphInfo:
    """The subgraph, its operators taking what was read or assigned before in the place of another
    read of it. Numbers of operators and tensors stay."""
    held: dict[_Key, int] = {}  # by variable: the tensor that has what it holds
    handles: dict[int, _Key] = {}
    instead: dict[int, int] = {}
    operators: list[OperatorInfo] = []
    for operator in info.operators:
        inputs = tuple(instead.get(i, i) for i in operator.inputs)
        operators.append(
            operator if inputs == operator.inputs else attrs.evolve(operator, inputs=inputs)
        )
        if operator.is_custom:
            continue
        if operator.name == VAR_HANDLE:
            handles[operator.outputs[0]] = handle_of(operator)
        elif operator.name == READ:
            key, made = handles.get(inputs[0], inputs[0]), operator.outputs[0]
            if key in held and _alike(info.tensors[held[key]], info.tensors[made]):
                instead[made] = held[key]
            else:
                held[key] = made
        elif operator.name == ASSIGN:
            key = handles.get(inputs[0], inputs[0])
            # Two tensors that the subgraph is given may be one variable, or any that it names
            # itself.
            held = {k: i for k, i in held.items() if _distinct(k, key)}
            held[key] = inputs[1]
        elif operator.name == CALL_ONCE or (held and keeps_state(subgraphs, called(operator))):
            held.clear()
    if not instead:
        return info
    return attrs.evolve(info.whole, operators=tuple(operators))


def _distinct(one: _Key, other: _Key) -> bool:
    return isinstance(one, Handle) and isinstance(other, Handle) and one != other


def _alike(held: TensorInfo, read: TensorInfo) -> bool:
    """Whether the one can stand for the other: the same numbers, which mean the same and stay."""
    plain = held.sparsity is None and held.blockwise is None and not held.is_variable
    return plain and held.dtype is read.dtype and held.quantization == read.quantization
