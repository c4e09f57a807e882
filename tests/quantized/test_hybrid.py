"""Float activations and 8-bit weights: as far from LiteRT as rounding in f32 is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.float_view import float_view
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, outputs
from tests.small_models import small_model, tensor_of

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install tflgpu[litert]")

DEVICES = (("cpu_ref", 0), ("cpu_ref", 1), ("opencl", 0), ("vulkan", 0), ("wgpu", 0))


@attrs.frozen
class Hybrid:
    """An operator; ``axis`` is that of the filter's scales, None for one scale, ``stored`` the type
    of its numbers, and ``same`` says that all scales are equal."""

    op: str
    x: tuple[int, ...]
    weights: tuple[int, ...]
    result: tuple[int, ...]
    axis: int | None = None
    fields: dict[str, Any] = attrs.field(factory=dict, hash=False)
    version: int = 4
    stored: DType = DType.I8
    same: bool = False

    @property
    def bias(self) -> int:
        """Its elements; 0 where the op takes none."""
        return 0 if self.op == "BATCH_MATMUL" else self.result[-1]


_CONV = {"padding": 0, "stride_h": 1, "stride_w": 1}
_ASYMMETRIC = {"asymmetric_quantize_inputs": True}
CASES = (
    Hybrid("FULLY_CONNECTED", (5, 29), (7, 29), (5, 7)),
    Hybrid("FULLY_CONNECTED", (5, 29), (7, 29), (5, 7), 0, _ASYMMETRIC, 9),
    # Rows that the input's shape does not show.
    Hybrid("FULLY_CONNECTED", (4, 3, 10), (7, 15), (8, 7), None, _ASYMMETRIC, 9),
    Hybrid("FULLY_CONNECTED", (2, 3, 11), (5, 11), (2, 3, 5), 0, {"keep_num_dims": True}, 9),
    Hybrid("CONV_2D", (2, 5, 7, 3), (6, 3, 3, 3), (2, 5, 7, 6), 0, _CONV, 5),
    Hybrid("CONV_2D", (2, 5, 7, 3), (6, 3, 3, 3), (2, 5, 7, 6), None, _CONV, 5),
    # Of these each pixel has a range, unless pixels are left out.
    Hybrid("CONV_2D", (2, 5, 7, 9), (6, 1, 1, 9), (2, 5, 7, 6), 0, _CONV, 5),
    Hybrid("CONV_2D", (2, 6, 6, 9), (6, 1, 1, 9), (2, 3, 3, 6), 0, _CONV | {"stride_h": 2,
    "stride_w": 2}, 5),
    Hybrid("DEPTHWISE_CONV_2D", (2, 5, 7, 3), (1, 3, 3, 6), (2, 5, 7, 6), 3,
           {**_CONV, "depth_multiplier": 2}, 6),
    Hybrid("BATCH_MATMUL", (2, 5, 13), (2, 13, 3), (2, 5, 3)),
    Hybrid("BATCH_MATMUL", (2, 13, 5), (2, 3, 13), (2, 5, 3), None,
           {**_ASYMMETRIC, "adj_x": True, "adj_y": True}),
    # XNNPACK takes these rows, and no convolution.
    Hybrid("FULLY_CONNECTED", (5, 28), (7, 28), (5, 7), 0, {}, 9, DType.I4),
    Hybrid("CONV_2D", (2, 5, 7, 9), (6, 1, 1, 9), (2, 5, 7, 6), 0, _CONV, 5, DType.I4),
    Hybrid("CONV_2D", (2, 5, 7, 3), (6, 3, 3, 3), (2, 5, 7, 6), 0, _CONV, 5, DType.I4),
    Hybrid("CONV_2D", (2, 5, 7, 3), (6, 3, 3, 3), (2, 5, 7, 6), None, _CONV, 5, DType.I4),
    Hybrid("CONV_2D", (2, 5, 7, 3), (6, 3, 3, 3), (2, 5, 7, 6), 0, _CONV, 5, DType.I4, True),
    # Groups, and what XNNPACK takes for one.
    Hybrid("CONV_2D", (2, 5, 7, 6), (4, 3, 3, 3), (2, 5, 7, 4), 0, _CONV, 5, DType.I4, True),
    Hybrid("CONV_2D", (2, 5, 7, 6), (4, 1, 1, 3), (2, 5, 7, 4), 0, _CONV, 5),
    Hybrid("CONV_2D", (2, 5, 7, 1), (1, 1, 1, 1), (2, 5, 7, 1), None, _CONV, 5),
)  # fmt: skip


def make(models: Sequence[Hybrid], rng: np.random.Generator) -> bytes:
    """All of them beside each other, each with an input of its own."""
    tensors: list[TensorSpec] = []
    operators, inputs, outputs = [], [], []
    for case in models:
        first = len(tensors)
        count = 1 if case.axis is None else case.weights[case.axis]
        scales = tuple(float(np.float32(s)) for s in rng.uniform(0.002, 0.02, count))
        if case.same:
            scales = scales[:1] * count
        most = 7 if case.stored is DType.I4 else 127
        data = rng.integers(-most, most + 1, case.weights).astype(np.int8)
        quant = Quantization(scales, (0,) * count, case.axis or 0)
        tensors += [
            TensorSpec("x", case.x), TensorSpec("w", case.weights, case.stored, data, quant)
        ]  # fmt: skip
        if case.bias:
            bias = rng.normal(size=case.bias).astype(np.float32)
            tensors.append(TensorSpec("b", bias.shape, DType.F32, bias))
        operands = list(range(first, len(tensors)))
        outputs.append(len(tensors))
        tensors.append(TensorSpec("y", case.result))
        inputs.append(first)
        operators.append(
            OperatorSpec(case.op, case.fields, operands, [outputs[-1]], version=case.version)
        )
    return write_model(ModelSpec(tensors, operators, inputs, outputs))


def run(interpreter: Any, arrays: Sequence[Array]) -> list[Array]:
    allocate_and_run(interpreter, arrays)
    return outputs(interpreter)


def by_litert(content: bytes, arrays: Sequence[Array]) -> list[Array]:
    return run(litert.Interpreter(model_content=content), arrays)


def draw(rng: np.random.Generator, models: Sequence[Hybrid]) -> list[Array]:
    """Inputs with ranges of their own, one of them a row of zeros."""
    found = []
    for index, case in enumerate(models):
        x = rng.normal(size=case.x) * 10.0 ** (index % 3 - 1) + index % 2
        x.reshape(-1, case.x[-1])[0] = 0
        found.append(x.astype(np.float32))
    return found


@pytest.mark.parametrize(("backend", "index"), DEVICES, ids=[f"{b}{i}" for b, i in DEVICES])
def test_as_litert(backend: str, index: int) -> None:
    rng = np.random.default_rng(3)
    # Conformance has the kernels on every device; these two take long to compile.
    cases = CASES[2:3] if backend in {"opencl", "wgpu"} else CASES
    content, arrays = make(cases, rng), draw(rng, cases)
    wanted = by_litert(content, arrays)
    with tflgpu.GpuDelegate(backend=backend, device=index, allow_fallback=False) as delegate:
        interpreter = tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        found = run(interpreter, arrays)
        assert interpreter.report.fully_delegated
        interpreter.close()
    for case, got, want in zip(cases, found, wanted, strict=True):
        # A step of the data is 1/255 of its range, so that one that is rounded otherwise shows.
        np.testing.assert_allclose(
            got, want, rtol=0, atol=2e-6 * np.abs(want).max(), err_msg=case.op
        )


def stored_as(data: Array, quant: Quantization, op: str, x: Any, result: Any, bias: int) -> bytes:
    kind = DType.U8 if data.dtype == np.uint8 else DType.I8
    tensors = [TensorSpec("x", x), TensorSpec("w", data.shape, kind, data, quant)]
    tensors += [TensorSpec("b", (bias,), DType.F32, np.ones(bias, np.float32))]
    tensors.append(TensorSpec("y", result))
    fields = _CONV if op == "CONV_2D" else {}
    operator = OperatorSpec(op, fields, [0, 1, 2], [3], version=2)
    return write_model(ModelSpec(tensors, [operator], [0], [3]))


@pytest.mark.parametrize(
    ("op", "x", "weights", "result"),
    [("FULLY_CONNECTED", (3, 29), (7, 29), (3, 7)),
     ("CONV_2D", (1, 5, 7, 3), (6, 3, 3, 3), (1, 5, 7, 6))],
)  # fmt: skip
@pytest.mark.parametrize("rounds", [True, False])
def test_u8_weights_have_the_bits_of_i8(
    op: str, x: Any, weights: Any, result: Any, rounds: bool
) -> None:
    """As the first converters wrote them; whatever zero point the file says."""
    rng = np.random.default_rng(5)
    data = rng.integers(0, 256, weights).astype(np.uint8)
    data[data == 128] = 129  # -128 is no weight, and LiteRT's kernels for SSE take it for another
    old = stored_as(data, Quantization((0.01,), (128,)), op, x, result, result[-1])
    new = stored_as(data.view(np.int8), Quantization((0.01,), (0,)), op, x, result, result[-1])
    given = [rng.normal(size=x).astype(np.float32)]
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1, round_hybrid_inputs=rounds) as delegate:
        found = []
        for content in (old, new):
            with tflgpu.Interpreter(
                model_content=content, experimental_delegates=[delegate]
            ) as ours:
                found.append(run(ours, given)[0])
    if not rounds:
        np.testing.assert_array_equal(*found)
    for content, got in zip((old, new), found, strict=True):  # XNNPACK takes i8 alone
        wanted = by_litert(content, given)[0]
        np.testing.assert_allclose(
            got, wanted, rtol=0, atol=(2e-6 if rounds else 2e-2) * np.abs(wanted).max()
        )


def test_ends_as_far_below_0_as_above() -> None:
    """There 0 lies half way between two steps, and a wrong choice moves all others by one."""
    rng = np.random.default_rng(4)
    content = make(CASES, rng)
    arrays = [np.clip(rng.normal(size=c.x), -1, 1).astype(np.float32) for c in CASES]
    wanted = by_litert(content, arrays)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", allow_fallback=False) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        found = run(ours, arrays)
    for case, got, want in zip(CASES, found, wanted, strict=True):
        np.testing.assert_allclose(
            got, want, rtol=0, atol=2e-6 * np.abs(want).max(), err_msg=case.op
        )


@pytest.mark.parametrize("device", [0, 1])
def test_transposed_convolution(device: int) -> None:
    rng = np.random.default_rng(7)
    data = rng.integers(-127, 128, (5, 3, 3, 4)).astype(np.int8)
    quant = Quantization(tuple(0.01 * (1 + i) for i in range(5)), (0,) * 5, 0)
    shape = np.array([2, 8, 6, 5], np.int32)
    fields = {"padding": 0, "stride_h": 2, "stride_w": 2}
    content = small_model(
        {
            "s": tensor_of((4,), DType.I32, shape),
            "w": tensor_of(data.shape, DType.I8, data, quant),
            "x": (2, 4, 3, 4),
            "y": (2, 8, 6, 5),
        },
        ("y = TRANSPOSE_CONV(s, w, x)", fields, {"version": 2}),
    )
    given = [rng.normal(size=(2, 4, 3, 4)).astype(np.float32)]
    (wanted,) = by_litert(content, given)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=device, allow_fallback=False) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        (found,) = run(ours, given)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("scales", [1, 9])
def test_rows_of_an_8_bit_table_become_real_numbers(scales: int) -> None:
    rng = np.random.default_rng(6)
    quant = Quantization(tuple(0.01 * (1 + i) for i in range(scales)), (0,) * scales)
    table = rng.integers(-127, 128, (9, 5)).astype(np.int8)
    tensors = [TensorSpec("ids", (4,), DType.I32), TensorSpec("t", (9, 5), DType.I8, table, quant)]
    tensors.append(TensorSpec("y", (4, 5)))
    operator = OperatorSpec("EMBEDDING_LOOKUP", {}, [0, 1], [2], version=3)
    content = write_model(ModelSpec(tensors, [operator], [0], [2]))
    given = [np.array([8, 0, 3, 8], np.int32)]
    wanted = by_litert(content, given)[0]
    assert len(np.unique(wanted)) > 10
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1, allow_fallback=False) as delegate:
        for side, delegates in (("litert", []), ("cpu_ref", []), (None, [delegate])):
            interpreter = tflgpu.Interpreter(
                model_content=content, cpu_backend=side, experimental_delegates=delegates
            )
            np.testing.assert_array_equal(run(interpreter, given)[0], wanted)
            interpreter.close()


def test_weights_as_real_numbers() -> None:
    """What the option leaves out is to be seen in every result, and what is left is not far."""
    rng = np.random.default_rng(3)
    content, arrays = make(CASES, rng), draw(rng, CASES)
    wanted = by_litert(content, arrays)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, round_hybrid_inputs=False) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        found = run(ours, arrays)
    for case, got, want in zip(CASES, found, wanted, strict=True):
        off = np.abs(got - want).max() / np.abs(want).max()
        assert 2e-5 < off < 2e-2, f"{case.op}: {off}"


def test_data_read_twice_is_rounded_once() -> None:
    quant = Quantization((0.01,), (0,))
    weights = np.arange(-32, 32, dtype=np.int8).reshape(4, 16)
    tensors = [TensorSpec("x", (3, 16)), TensorSpec("w", (4, 16), DType.I8, weights, quant)]
    tensors += [TensorSpec(n, (3, 4)) for n in ("a", "b")]
    operators = [OperatorSpec("FULLY_CONNECTED", {}, [0, 1, -1], [i], version=4) for i in (2, 3)]
    content = write_model(ModelSpec(tensors, operators, [0], [2, 3]))
    view = float_view(build_graph(read_model(content), 0, builtin_ops()), builtin_ops())
    assert [n.op for n in view.graph] == ["QUANTIZE_ON_THE_FLY"] + 2 * ["FULLY_CONNECTED"]


def test_rows_and_images_of_the_same_data_are_rounded_apart() -> None:
    """A convolution rounds an image in steps of its own, a product each of its rows."""
    rng = np.random.default_rng(4)
    quant = Quantization((0.01,), (0,))
    tensors, operators = [TensorSpec("x", (2, 5, 7, 6))], []
    options: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
        ("CONV_2D", (5, 3, 3, 6), _CONV),
        ("FULLY_CONNECTED", (4, 6), {"keep_num_dims": True}),
    ]
    for op, shape, fields in options:
        weights = rng.integers(-127, 128, shape).astype(np.int8)
        bias = rng.normal(size=shape[0]).astype(np.float32)
        at = len(tensors)
        tensors += [
            TensorSpec("w", shape, DType.I8, weights, quant),
            TensorSpec("b", bias.shape, data=bias),
            TensorSpec("y", (2, 5, 7, shape[0])),
        ]
        operators.append(OperatorSpec(op, fields, [0, at, at + 1], [at + 2], version=5))
    content = write_model(ModelSpec(tensors, operators, [0], [3, 6]))
    x = (rng.normal(size=(2, 5, 7, 6)) * np.arange(1, 8)[:, None]).astype(np.float32)
    mine = tflgpu.Interpreter(None, content, [], cpu_backend="cpu_ref")
    for got, want in zip(run(mine, [x]), by_litert(content, [x]), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())
