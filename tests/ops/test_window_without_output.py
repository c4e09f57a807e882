"""Convolutions whose window fits nowhere on the image: an empty result, as by LiteRT's own
kernels."""

from __future__ import annotations

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT
from ai_edge_litert.interpreter import OpResolverType
from tflgpu import GpuDelegate, Interpreter
from tflgpu.errors import AllocationError
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

SIZES = [(2, 5), (1, 5), (5, 1), (2, 2), (1, 1), (4, 3)]


def _model(op: str, stride: int) -> bytes:
    """A filter of 3 x 3, which is an input: XNNPACK, which refuses such images, takes constants
    only."""
    depthwise = op == "DEPTHWISE_CONV_2D"
    shape = (1 if depthwise else 2, 3, 3, 2)
    fields = {"padding": 1, "stride_h": stride, "stride_w": stride, "fused_activation_function": 1}
    tensors = [
        TensorSpec("x", (1, 5, 5, 2)), TensorSpec("w", shape),
        TensorSpec("b", (2,), DType.F32, np.ones(2, np.float32)), TensorSpec("y", (1, 3, 3, 2)),
    ]  # fmt: skip
    if depthwise:
        fields["depth_multiplier"] = 1
    return write_model(ModelSpec(tensors, [OperatorSpec(op, fields, [0, 1, 2], [3])], [0, 1], [3]))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("op", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_the_result_is_empty(op: str, stride: int) -> None:
    content, empty = _model(op, stride), 0
    theirs = LiteRT(
        model_content=content,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    with (
        GpuDelegate(backend="cpu_ref") as delegate,
        Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        for height, width in SIZES:
            shapes: list[tuple[int, ...] | None] = []
            for interpreter, error in ((theirs, RuntimeError), (ours, AllocationError)):
                interpreter.resize_tensor_input(0, (1, height, width, 2))
                try:
                    interpreter.allocate_tensors()
                except error:
                    shapes.append(None)
                    continue
                for d in interpreter.get_input_details():
                    interpreter.set_tensor(d["index"], np.ones(d["shape"], np.float32))
                interpreter.invoke()
                shapes.append(interpreter.get_tensor(3).shape)
            assert shapes[0] == shapes[1], (height, width)
            empty += 0 in (shapes[0] or ())
    assert empty >= 2
