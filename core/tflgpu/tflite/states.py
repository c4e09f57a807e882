"""Which tensors an operator keeps its state in, and that a file has variables there.

A variable that an operator makes anew in every run is a plain result, from which the states of another may
begin: decoders begin so.

    RELU -> h (a variable in the file)      LSTM, whose output state is h

Nobody may read h after that, since LiteRT's kernel has changed it by then.
"""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.errors import ModelError
from tflgpu.ir.brief import quoted
from tflgpu.ir.graph import Node
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.base import OpDef
from tflgpu.tflite.model_file import TensorInfo


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
    if definition.stateful and definition.states is None:
        return ()
    states = definition.states(node.attrs) if definition.stateful and definition.states else ()
    begins = []
    for i in states:
        if i in variables:
            continue
        value = node.optional_input(i)
        if value is None or not tensors[value.id].is_variable:
            raise ModelError(
                f"{where}: operand {i} is its state and must be a variable, but is {value}"
            )
        begins.append(value.id)
    if definition.shape_only:
        return ()  # the contents do not matter
    for i in sorted(variables - set(states)):
        value = node.input(i)
        return Unsupported(
            f"operand {i}, tensor {value.id} ({quoted(value.name)}), is a variable (a state tensor), "
            "which this operator does not keep; only as an operator's state can one be read"
        )
    named = [node.input(i).id for i in states]
    if len(set(named)) < len(named):
        return Unsupported(f"one variable is several of its states (operands {list(states)})")
    return tuple(begins)
