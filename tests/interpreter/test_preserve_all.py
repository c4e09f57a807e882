"""`experimental_preserve_all_tensors` and `..._disable_delegate_node_fusion` with a device: what
passes and kernels would merge is there, on the device, and equals what LiteRT keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import interpreter_models
import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.ir.quant import Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter")

RNG = np.random.default_rng(9)


def draw(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def mergeable() -> bytes:
    """A chain of which a device makes two or three kernels: padding, activation, arithmetic per
    channel, constants that fold, reshapes that move nothing, and a tail of elementwise ones."""
    image = (1, 5, 6, 3)
    inner = (1, 5, 6, 7)
    tensors = [
        TensorSpec("x", image),
        TensorSpec("pads", (4, 2), DType.I32, np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32)),
        TensorSpec("padded", (1, 7, 8, 3)),
        TensorSpec("filter", (7, 3, 3, 3), DType.F16, draw(7, 3, 3, 3).astype(np.float16)),
        TensorSpec("wide", (7, 3, 3, 3)),
        TensorSpec("bias", (7,), data=draw(7)),
        TensorSpec("conv", inner),
        TensorSpec("relu", inner),
        TensorSpec("c", (7,), data=np.abs(draw(7)) + 1),
        TensorSpec("root", (7,)),
        TensorSpec("scaled", inner),
        TensorSpec("same", (1, 5, 6, 7)),
        TensorSpec("flat", (1, 210)),
        TensorSpec("tanh", (1, 210)),
        TensorSpec("sum", (1, 210)),
        TensorSpec("y", (1, 210)),
    ]
    at = {t.name: i for i, t in enumerate(tensors)}

    def operator(op: str, sources: str, result: str, **fields: Any) -> OperatorSpec:
        return OperatorSpec(op, fields, [at[n] for n in sources.split()], [at[result]])

    operators = [
        operator("PAD", "x pads", "padded"),
        operator("DEQUANTIZE", "filter", "wide"),
        operator("CONV_2D", "padded wide bias", "conv", padding=1, stride_h=1, stride_w=1),
        operator("RELU", "conv", "relu"),
        operator("RSQRT", "c", "root"),
        operator("MUL", "relu root", "scaled"),
        operator("RESHAPE", "scaled", "same", new_shape=(1, 5, 6, 7)),
        operator("RESHAPE", "same", "flat", new_shape=(1, 210)),
        operator("TANH", "flat", "tanh"),
        operator("ADD", "tanh flat", "sum"),
        operator("SOFTMAX", "sum", "y", beta=1.0),
    ]
    return write_model(ModelSpec(tensors, operators, [0], [at["y"]]))


def quantized() -> bytes:
    """int8: a convolution, a clamp, a sum and a change of scale."""
    activation = Quantization((0.05,), (3,))
    finer = Quantization((0.025,), (-7,))
    scales = tuple(float(s) for s in np.abs(draw(5)) * 0.01 + 0.005)
    filters = Quantization(scales, (0,) * 5, 0)
    offsets = Quantization(tuple(0.05 * s for s in scales), (0,) * 5, 0)
    image, inner = (1, 4, 5, 3), (1, 4, 5, 5)
    tensors = [
        TensorSpec("x", image, DType.I8, None, activation),
        TensorSpec("filter", (5, 1, 1, 3), DType.I8,
                   RNG.integers(-127, 128, (5, 1, 1, 3), np.int8), filters),
        TensorSpec("bias", (5,), DType.I32, RNG.integers(-300, 300, 5).astype(np.int32), offsets),
        TensorSpec("conv", inner, DType.I8, None, activation),
        TensorSpec("relu", inner, DType.I8, None, activation),
        TensorSpec("sum", inner, DType.I8, None, activation),
        TensorSpec("y", inner, DType.I8, None, finer),
    ]  # fmt: skip
    fields = {"padding": 1, "stride_h": 1, "stride_w": 1}
    operators = [
        OperatorSpec("CONV_2D", fields, [0, 1, 2], [3], version=3),
        OperatorSpec("RELU", {}, [3], [4], version=2),
        OperatorSpec("ADD", {}, [3, 4], [5], version=2),
        OperatorSpec("QUANTIZE", {}, [5], [6], version=2),
    ]
    return write_model(ModelSpec(tensors, operators, [0], [6]))


@pytest.fixture(scope="module")
def delegate() -> Iterator[tflgpu.GpuDelegate]:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as made:
        yield made


def ours(content: bytes, delegate: Any, **arguments: Any) -> Any:
    made = tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate], **arguments)
    made.allocate_tensors()
    return made


def theirs(content: bytes) -> Any:
    made = litert.Interpreter(
        model_content=content,
        experimental_preserve_all_tensors=True,
        # XNNPACK leaves results of constants in f16 unwritten, whatever it is told.
        experimental_op_resolver_type=litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    made.allocate_tensors()
    return made


def feed(interpreter: Any, x: Any) -> Any:
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    return interpreter


def test_every_tensor_of_a_chain_that_would_be_merged(delegate: Any) -> None:
    content = mergeable()
    kept = theirs(content)
    with ours(content, delegate, experimental_preserve_all_tensors=True) as made:
        report = made.report
        assert report.fully_delegated
        assert report.partitions == 1
        for _ in range(2):
            x = draw(1, 5, 6, 3)
            feed(made, x)
            feed(kept, x)
            for detail in made.get_tensor_details():
                index, name = detail["index"], detail["name"]
                np.testing.assert_allclose(
                    made.get_tensor(index), kept.get_tensor(index), rtol=1e-5, atol=1e-6,
                    err_msg=name,
                )  # fmt: skip
        kernels = report.dispatches
    with ours(content, delegate) as plain:
        assert plain.report.dispatches < kernels / 2
        feed(plain, x)
        with pytest.raises(tflgpu.InputError, match=r"\('relu'\) is an intermediate result"):
            plain.get_tensor(7)
        last = made_output(kept)
        np.testing.assert_allclose(made_output(plain), last, rtol=1e-5, atol=1e-6)


def made_output(interpreter: Any) -> Any:
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def test_a_quantized_model_keeps_stored_numbers(delegate: Any) -> None:
    content = quantized()
    with ours(content, delegate, experimental_preserve_all_tensors=True) as made:
        kept = theirs(content)
        assert made.report.fully_delegated
        x = RNG.integers(-128, 128, (1, 4, 5, 3), np.int8)
        feed(made, x)
        feed(kept, x)
        for name, index in {"conv": 3, "relu": 4, "sum": 5, "y": 6}.items():
            got, want = made.get_tensor(index), kept.get_tensor(index)
            assert got.dtype == want.dtype == np.int8
            assert len(np.unique(got)) > 10, name
            steps = np.abs(got.astype(int) - want.astype(int))
            assert steps.max() <= (2 if name == "y" else 1), name  # whose steps are half as large
            assert steps.mean() < 0.1, name


def test_what_a_device_refuses_is_kept_too() -> None:
    content = interpreter_models.two_subgraphs()
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, min_nodes_per_partition=99) as refuses,
        ours(content, refuses, experimental_preserve_all_tensors=True) as made,
    ):
        assert made.report.delegated_nodes == 0
        made.set_tensor(0, draw(2, 2))
        made.invoke()
        np.testing.assert_array_equal(made.get_tensor(2), made.get_tensor(0))


def test_it_survives_a_resize(delegate: Any) -> None:
    content = interpreter_models.chain()
    with ours(content, delegate, experimental_preserve_all_tensors=True) as made:
        made.resize_tensor_input(0, [4, 3])
        made.allocate_tensors()
        x = draw(4, 3)
        feed(made, x)
        np.testing.assert_allclose(made.get_tensor(2), x + interpreter_models.C, rtol=1e-6)
        runner = made.get_signature_runner()
        runner(image=x[:2])
        np.testing.assert_allclose(made.get_tensor(2), x[:2] + interpreter_models.C, rtol=1e-6)


def test_fusion_can_be_switched_off(delegate: Any) -> None:
    content = mergeable()
    x = draw(1, 5, 6, 3)
    with ours(content, delegate, experimental_disable_delegate_node_fusion=True) as made:
        report = made.report
        assert report.fully_delegated
        # One each for PAD, CONV_2D, RELU, MUL, TANH, ADD and SOFTMAX. What RESHAPE does is a view,
        # or one more where the channels' padding differs; what DEQUANTIZE and RSQRT make was known
        # when the file was read.
        assert report.dispatches == 8
        feed(made, x)
        with ours(content, delegate) as merged:
            assert merged.report.dispatches <= 4
            feed(merged, x)
            np.testing.assert_allclose(made_output(made), made_output(merged), rtol=1e-5)
        with pytest.raises(tflgpu.InputError, match="is an intermediate result"):
            made.get_tensor(7)
