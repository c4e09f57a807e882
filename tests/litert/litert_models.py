"""Small models for tests of the CPU side, and both ways to run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tflgpu
from ai_edge_litert.interpreter import Interpreter as LiteRT
from ai_edge_litert.interpreter import OpResolverType as LiteRTResolver
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import first_results
from tests.small_models import small_model, tensor_of

#: Devices on which a model's supported parts run, as options of a delegate.
DEVICES: dict[str, dict[str, Any]] = {
    "pocl": {"backend": "opencl"},
    "kernels": {"backend": "cpu_ref", "device": 1},
}
LITERT = "LiteRT CPU kernels"


def numbers(shape: Sequence[int], seed: int = 0, low: float = -2, high: float = 2) -> Any:
    return np.random.default_rng(seed).uniform(low, high, tuple(shape)).astype(np.float32)


def i64_in_the_middle() -> bytes:
    """RELU, then through 64-bit numbers, which no kernel takes, then a product."""
    shape = (1, 5, 7)
    return small_model(
        {
            "x": shape,
            "a": shape,
            "wide": tensor_of(shape, DType.I64),
            "doubled": tensor_of(shape, DType.I64),
            "back": shape,
            "c": tensor_of((7,), data=numbers((7,), 1)),
            "y": shape,
            "two": tensor_of((), DType.I64, data=np.int64(3)),
        },
        "a = RELU(x)",
        ("wide = CAST(a)", {"in_data_type": 0, "out_data_type": 4}),
        "doubled = ADD(wide, two)",
        ("back = CAST(doubled)", {"in_data_type": 4, "out_data_type": 0}),
        ("y = MUL(back, c)", {"fused_activation_function": 3}),
    )


def one(
    name: str,
    fields: Mapping[str, Any],
    tensors: Sequence[TensorSpec],
    inputs: Sequence[int],
    *,
    operands: Sequence[int] | None = None,
    version: int = 1,
    custom_options: bytes = b"",
) -> bytes:
    """A model of one operator: the last tensor is its result, and those before it its operands."""
    read = list(range(len(tensors) - 1)) if operands is None else list(operands)
    operator = OperatorSpec(
        name, fields, read, [len(tensors) - 1], version=version, custom_options=custom_options
    )
    return write_model(ModelSpec(tensors, [operator], inputs, [len(tensors) - 1]))


def between(
    name: str,
    fields: Mapping[str, Any] | None = None,
    *,
    shape: Sequence[int] = (2, 3, 5),
    given: Sequence[TensorSpec] = (),
    made: TensorSpec | None = None,
    version: int = 1,
    custom_options: bytes = b"",
) -> bytes:
    """An operator between RELU and NEG, which every device takes. ``given`` are its operands after
    the first; what the file says of the shape of its result is wrong on purpose, unless
    ``made``."""
    result = TensorSpec("made", (1,)) if made is None else made
    tensors = [
        TensorSpec("x", shape), TensorSpec("a", shape), result, TensorSpec("y", result.shape),
        *given,
    ]  # fmt: skip
    operators = [
        OperatorSpec("RELU", {}, [0], [1]),
        OperatorSpec(
            name, fields or {}, [1, *range(4, 4 + len(given))], [2],
            version=version, custom_options=custom_options,
        ),
        OperatorSpec("NEG", {}, [2], [3]),
    ]  # fmt: skip
    return write_model(ModelSpec(tensors, operators, [0], [3]))


def quantized_add() -> bytes:
    """An 8-bit ADD of an input to itself, between 8-bit tensors of other scales."""
    a, b = Quantization((0.05,), (3,)), Quantization((0.11,), (-7,))
    tensors = [
        TensorSpec("x", (1, 3, 5), DType.I8, None, a),
        TensorSpec("c", (5,), DType.I8, np.arange(-2, 3, dtype=np.int8), b),
        TensorSpec("y", (1, 3, 5), DType.I8, None, b),
    ]
    return one("ADD", {}, tensors, [0])


def run(model: bytes, inputs: Sequence[Any], delegate: Any = None, **arguments: Any) -> Any:
    """The outputs, in order, and the report."""
    delegates = None if delegate is None else [delegate]
    with tflgpu.Interpreter(
        model_content=model, experimental_delegates=delegates, **arguments
    ) as interpreter:
        outputs = first_results(interpreter, inputs)
        return outputs, interpreter.report


def litert(model: bytes, inputs: Sequence[Any], resolver: str = "AUTO") -> list[Any]:
    """LiteRT's own outputs."""
    kind = LiteRTResolver[resolver]
    interpreter = LiteRT(model_content=model, experimental_op_resolver_type=kind)
    return first_results(interpreter, inputs)
