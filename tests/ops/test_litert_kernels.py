"""Results of LiteRT's kernels that no definition of the operator gives: what ours are there, and
that they are so. Each was a difference that mutated models showed."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocated, set_and_run
from tests.small_models import small_model, tensor_of

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


KERNELS = litert.OpResolverType
_LARGEST = np.finfo(np.float32).max


def _litert(content: bytes, x: Array, kernels: Any, before: float) -> Array:
    """LiteRT's result, in memory that has ``before`` in it when the run begins."""
    interpreter = allocated(
        litert.Interpreter(
            model_content=content, experimental_op_resolver_type=kernels, num_threads=1
        )
    )
    interpreter.set_tensor(0, x)
    (output,) = interpreter.get_output_details()
    interpreter.tensor(output["index"])()[...] = before
    interpreter.invoke()
    return interpreter.get_tensor(output["index"])


def _ours(content: bytes, x: Array, device: int | None) -> Array:
    """Ours on a device, or where LiteRT is the CPU side (None)."""
    with contextlib.ExitStack() as stack:
        delegates = []
        if device is not None:
            made = tflgpu.GpuDelegate(backend="cpu_ref", device=device, allow_fallback=False)
            delegates.append(stack.enter_context(made))
        one = tflgpu.Interpreter(
            model_content=content, experimental_delegates=delegates, cpu_backend="litert"
        )
        stack.enter_context(one).allocate_tensors()
        set_and_run(one, {0: x})
        return one.get_tensor(one.get_output_details()[0]["index"])


@pytest.mark.parametrize(("begin", "stride"), [(0, -1), (2, -3), (-1, -1), (1, -(2**31))])
def test_a_dimension_that_is_shrunk_with_a_negative_stride(begin: int, stride: int) -> None:
    """LiteRT's STRIDED_SLICE takes no step then, and leaves its result as the memory was; one
    element is taken, whatever the stride."""
    tensors = [
        TensorSpec("x", (3, 4)),
        TensorSpec("begin", (2,), DType.I32, [begin, 0]),
        TensorSpec("end", (2,), DType.I32, [begin + 1, 4]),
        TensorSpec("strides", (2,), DType.I32, [stride, 1]),
        TensorSpec("y", (4,)),
    ]
    operator = OperatorSpec("STRIDED_SLICE", {"shrink_axis_mask": 1}, (0, 1, 2, 3), (4,))
    content = write_model(ModelSpec(tensors, [operator], (0,), (4,)))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    doubled = ModelSpec(
        [*tensors, TensorSpec("z", (4,))],
        [operator, OperatorSpec("ADD", {}, (4, 4), (5,))],
        (0,),
        (5,),
    )
    np.testing.assert_array_equal(_ours(write_model(doubled), x, None), 2 * x[begin])
    for kernels in (KERNELS.AUTO, KERNELS.BUILTIN_REF):
        for before in (-7.0, 5.5):
            np.testing.assert_array_equal(_litert(content, x, kernels, before), [before] * 4)
    for device in (0, 1, None):
        np.testing.assert_array_equal(_ours(content, x, device), x[begin])


@pytest.mark.parametrize("activation", [0, 1], ids=["none", "relu"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I8])
def test_infinity_after_relu(dtype: DType, activation: int) -> None:
    """LiteRT's own kernels clamp to the largest float, also where RELU has no upper end; XNNPACK
    does not, which has no DEPTHWISE_CONV_2D of floats and 8-bit weights."""
    quant = Quantization((0.5,) * 3, (0,) * 3, 3) if dtype is DType.I8 else None
    fields = {
        "padding": 1, "stride_w": 1, "stride_h": 1, "depth_multiplier": 1, "dilation_w_factor": 1,
        "dilation_h_factor": 1, "fused_activation_function": activation,
    }  # fmt: skip
    content = small_model(
        {
            "x": (1, 2, 2, 3),
            "w": tensor_of((1, 1, 1, 3), dtype, np.ones((1, 1, 1, 3), dtype.numpy), quant),
            "b": tensor_of((3,), data=np.array([np.inf, 0, 0], np.float32)),
            "y": (1, 2, 2, 3),
        },
        ("y = DEPTHWISE_CONV_2D(x, w, b)", fields),
    )
    x = np.ones((1, 2, 2, 3), np.float32)
    assert _litert(content, x, KERNELS.BUILTIN_REF, 0)[0, 0, 0, 0] == _LARGEST
    by_default = _litert(content, x, KERNELS.AUTO, 0)[0, 0, 0, 0]
    assert by_default == (np.inf if dtype is DType.F32 else _LARGEST)
    for device in (0, 1):
        assert _ours(content, x, device)[0, 0, 0, 0] == np.inf


# Reductions over no elements, next to LiteRT: what the kernels begin with.


@pytest.mark.parametrize("dtype", [DType.F32, DType.I32])
@pytest.mark.parametrize("op", ["REDUCE_MAX", "REDUCE_MIN", "SUM", "REDUCE_PROD"])
def test_of_no_elements(op: str, dtype: DType) -> None:
    content = small_model(
        {
            "x": tensor_of((2, 0, 3), dtype),
            "axes": tensor_of((1,), DType.I32, [1]),
            "y": tensor_of((2, 1, 3), dtype),
        },
        (f"y = {op}(x, axes)", {"keep_dims": True}),
    )
    found = []
    for module in (tflgpu, litert):
        interpreter = allocated(module.Interpreter(model_content=content))
        interpreter.invoke()
        found.append(interpreter.get_tensor(2))
    np.testing.assert_array_equal(*found)
