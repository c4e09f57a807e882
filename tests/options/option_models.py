"""Small models for the tests of options, and what runs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tflgpu
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocated, results
from tests.small_models import small_model, tensor_of

#: The NumPy interpreter of kernels.
HERE: dict[str, Any] = {"backend": "cpu_ref", "device": 1}
SHAPE = (2, 5)


def chain(*ops: str) -> bytes:
    """Operators of one operand, one after another, whose tensors are t0, t1, ..."""
    tensors = [TensorSpec(f"t{i}", SHAPE) for i in range(len(ops) + 1)]
    operators = [OperatorSpec(op, {}, (i,), (i + 1,)) for i, op in enumerate(ops)]
    return write_model(ModelSpec(tensors, operators, (0,), (len(ops),)))


def block() -> bytes:
    """A 1x1 convolution and a depthwise one, which one kernel could make."""
    rng = np.random.default_rng(5)

    def constant(name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, shape, data=rng.uniform(-1, 1, shape).astype(np.float32))

    tensors = [
        TensorSpec("x", (1, 5, 5, 3)),
        constant("w1", 7, 1, 1, 3), constant("b1", 7), TensorSpec("middle", (1, 5, 5, 7)),
        constant("w2", 1, 3, 3, 7), constant("b2", 7), TensorSpec("y", (1, 5, 5, 7)),
    ]  # fmt: skip
    stride = {"stride_h": 1, "stride_w": 1}
    operators = [
        OperatorSpec("CONV_2D", stride, (0, 1, 2), (3,)),
        OperatorSpec("DEPTHWISE_CONV_2D", {**stride, "depth_multiplier": 1}, (3, 4, 5), (6,)),
    ]
    return write_model(ModelSpec(tensors, operators, (0,), (6,)))


def quantized_conv() -> bytes:
    """An int8 convolution with 16 KiB of weights."""
    rng = np.random.default_rng(6)
    weights = rng.integers(-127, 128, (64, 1, 1, 256)).astype(np.int8)
    one = Quantization((0.05,), (0,))
    many = Quantization((0.01,) * 64, (0,) * 64)
    products = Quantization((0.0005,) * 64, (0,) * 64)
    fields = {"stride_h": 1, "stride_w": 1}
    return small_model(
        {
            "x": tensor_of((1, 3, 3, 256), DType.I8, quantization=one),
            "w": tensor_of(weights.shape, DType.I8, weights, many),
            "b": tensor_of((64,), DType.I32, np.zeros(64, np.int32), products),
            "y": tensor_of((1, 3, 3, 64), DType.I8, quantization=one),
        },
        ("y = CONV_2D(x, w, b)", fields),
    )


@contextmanager
def opened(model: bytes, **options: Any) -> Iterator[Any]:
    """tflgpu's interpreter with a delegate of these options, allocated."""
    with (
        tflgpu.GpuDelegate(**{**HERE, **options}) as delegate,
        allocated(
            tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate])
        ) as interpreter,
    ):
        yield interpreter


def run(interpreter: Any, x: Array) -> Array:
    """One invoke of a model of one input and one output."""
    return results(interpreter, {interpreter.get_input_details()[0]["index"]: x})[0]
