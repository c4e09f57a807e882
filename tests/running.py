"""One run of an interpreter, ours or LiteRT's, for tests that ask about something else than how
it is driven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tflgpu


def set_and_run(interpreter: Any, inputs: Mapping[int, Any] | Sequence[Any]) -> None:
    """Sets inputs, by index or one for each input of the interpreter in its order, and runs."""
    if not isinstance(inputs, Mapping):
        details = interpreter.get_input_details()
        inputs = {d["index"]: x for d, x in zip(details, inputs, strict=True)}
    for index, array in inputs.items():
        interpreter.set_tensor(index, array)
    interpreter.invoke()


def allocate_and_run(interpreter: Any, inputs: Mapping[int, Any] | Sequence[Any]) -> None:
    """A first run, or the first after a resize."""
    interpreter.allocate_tensors()
    set_and_run(interpreter, inputs)


def outputs(interpreter: Any) -> list[Any]:
    """What a run has made, as arrays of its own."""
    return [np.array(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()]


def side_by_side(
    content: bytes, inputs: Mapping[int, Any] | Sequence[Any], kernels: Any = None, **options: Any
) -> tuple[list[Any], list[Any]]:
    """The outputs of a model by LiteRT's interpreter, with ``kernels`` if not its default ones, and
    by ours, with a delegate on NumPy's devices."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    resolver = OpResolverType.AUTO if kernels is None else kernels
    theirs = Interpreter(model_content=content, experimental_op_resolver_type=resolver)
    allocate_and_run(theirs, inputs)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", **options) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        allocate_and_run(ours, inputs)
        return outputs(theirs), outputs(ours)
