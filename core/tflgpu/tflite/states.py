"""Finds the tensors that hold an operator's state, which must be variables in the file.

A variable that an operator makes anew in every run is a plain result, from which the states of
another may begin: decoders begin so.

    RELU -> h (a variable in the file)     LSTM, whose output state is h

No operator may read h after that, since LiteRT's kernel has changed it by then.

One operator is not run anew: DEQUANTIZE of a constant, which LiteRT runs once and whose result then
stays in memory. Converters put one before each state of a model whose weights are 16-bit floats;
such a state carries over from run to run as any other does.

    zeros (a constant) -> DEQUANTIZE -> h (a variable in the file)     LSTM, whose output state is h
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.graph import Node, Value
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import OpDef
from tflgpu.tflite.model_file import OperatorInfo, SubgraphInfo, TensorInfo

#: What LiteRT runs once where its operand is a constant (dequantize.cc).
_ONCE = "DEQUANTIZE"


def check_states(
    node: Node, definition: OpDef, tensors: Sequence[TensorInfo], where: str
) -> tuple[int, ...] | Unsupported:
    """Tensors that are its states and no variables of the graph; or why its variables are beyond
    tflgpu. ``tensors`` are the file's, and ``where`` begins messages.

    Raises:
        ModelError: a state of the operator is no variable in the file. LiteRT's kernels refuse that
            too.
    """
    variables = {i for i, v in enumerate(node.inputs) if v is not None and v.is_variable}
    if definition.state is not None and definition.state.operands is None:
        return ()
    states = definition.states_of(node.attrs)
    begins = []
    for i in states:
        if i in variables:
            continue
        value = node.optional_input(i)
        if value is None:
            raise ModelError(
                f"{where}: operand {i} is its state and must be a variable, but is absent"
            )
        if not tensors[value.id].is_variable:
            raise ModelError(
                f"{where}: operand {i} is its state and must be a variable (is_variable in the "
                f"file), but is {value.named}, an ordinary one; "
                "LiteRT refuses it too"
            )
        begins.append(value.id)
    if definition.contents.shape_only:
        return ()  # the contents do not matter
    for i in sorted(variables - set(states)):
        value = node.input(i)
        return Unsupported(
            f"operand {i}, {value.named}, is a variable (a state "
            "tensor), which this operator does not keep; only as an operator's state can one be "
            "read"
        )
    named = [node.input(i).id for i in states]
    if len(set(named)) < len(named):
        return Unsupported(f"one variable is several of its states (operands {list(states)})")
    return tuple(begins)


def kept_after_all(
    value: Value, maker: OperatorInfo, made: Node, definition: OpDef | None, info: SubgraphInfo
) -> bool | Unsupported:
    """Whether a state that an operator makes is made once only, and is kept from then on; or why
    such a state is beyond tflgpu.

    Args:
        value: The state.
        maker: The operator of the file that makes it.
        made: The node that became of it.
        definition: What defines that node.
        info: Where they are in the file.
    """
    if maker.name != _ONCE or definition is None or info.tensors[maker.inputs[0]].data is None:
        return False
    where = f"{value.named}, a state, is made once, by operator {maker.index}"
    if sum(value.id in o.inputs for o in info.operators) > 1:
        return Unsupported(f"{where} ({maker.name}), and others read it too")
    (begin,) = definition.reference(made.attrs, [made.input(0).data])
    if np.any(begin):
        return Unsupported(f"{where} ({maker.name}), of a constant that is not zeros")
    return True
