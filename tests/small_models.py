"""Small models by the names of their tensors: ``small_model({"x": (2, 3), "y": (2, 3)},
"y = RELU(x)")`` is a file whose tensor 0 is ``x``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

#: Results, operator and operands, as in ``values, at = TOPK_V2(x, k)``; "-" is an absent operand.
_STEP = re.compile(r"(?:(.*) = )?([^()]+)\((.*)\)")


def tensor_of(
    shape: Any, dtype: DType = DType.F32, data: Any = None, *rest: Any, **more: Any
) -> Any:
    """A tensor of which there is more to say than its shape."""
    return TensorSpec("", shape, dtype, data, *rest, **more)


def _tensor(name: str, value: Any) -> TensorSpec:
    if isinstance(value, TensorSpec):
        return attrs.evolve(value, name=name)
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return TensorSpec(name, array.shape, DType.from_numpy(array.dtype), array)
    return TensorSpec(name, value)


def small_spec(
    tensors: Mapping[str, Any], *steps: Any, inputs: str | None = None, outputs: str | None = None,
    **more: Any,
) -> ModelSpec:  # fmt: skip
    """A model to write.

    Args:
        tensors: by name the shape of an f32 tensor, the array of a constant, or a `tensor_of`.
        steps: operators: a text, a text with the operator's options, or a spec.
        inputs: names of the inputs; by default tensors without contents that no operator makes.
        outputs: names of the outputs; by default results that no operator takes.
        more: of `ModelSpec`.
    """
    names = list(tensors)
    made = [_tensor(name, value) for name, value in tensors.items()]

    def numbers(text: str | None) -> list[int]:
        listed = re.split(r",? +", text.strip()) if text and text.strip() else []
        return [-1 if name == "-" else names.index(name) for name in listed]

    def operator(step: Any) -> OperatorSpec:
        if isinstance(step, OperatorSpec):
            return step
        text, fields, *rest = (step, {}) if isinstance(step, str) else step
        found = _STEP.fullmatch(text)
        assert found, text
        into, name, operands = found.groups()
        keywords = rest[0] if rest else {}
        return OperatorSpec(name, fields, numbers(operands), numbers(into), **keywords)

    operators = [operator(step) for step in steps]
    written = {i for each in operators for i in each.outputs}
    taken = {i for each in operators for i in each.inputs}
    free = [
        i for i, t in enumerate(made) if t.data is None and not t.is_variable and i not in written
    ]
    last = [i for i in range(len(made)) if i in written - taken]
    return ModelSpec(
        made, operators, free if inputs is None else numbers(inputs),
        last if outputs is None else numbers(outputs), **more,
    )  # fmt: skip


def small_model(tensors: Mapping[str, Any], *steps: Any, **more: Any) -> bytes:
    """The file of a `small_spec`."""
    return write_model(small_spec(tensors, *steps, **more))
