"""Indices outside an operand that are only known while a model runs.

The references refuse them, as TFLite does. A kernel cannot: it must not pass off an element that
nobody asked for as the one that was.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from ai_edge_litert.interpreter import Interpreter
from tflgpu.errors import InputError, ModelError
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocated
from tests.small_models import small_model, tensor_of

BACKENDS = ("cpu_ref", "opencl", "vulkan", "wgpu")
_I32 = np.iinfo(np.int32)
BAD = (-1, 5, _I32.min, _I32.max)

#: Op, its fields, which operand holds the data, shapes of indices and result, the rows of the
#: result that index number n makes.
CASES: dict[str, tuple[str, dict[str, int], int, tuple[int, ...], tuple[int, ...], int]] = {
    "rows": ("GATHER", {"axis": 0, "batch_dims": 0}, 0, (3,), (3, 7), 0),
    "columns": ("GATHER", {"axis": 1, "batch_dims": 0}, 0, (3,), (5, 3), 1),
    "nd": ("GATHER_ND", {}, 0, (3, 1), (3, 7), 0),
    "lookup": ("EMBEDDING_LOOKUP", {}, 1, (3,), (3, 7), 0),
}


def _model(case: str, dtype: DType, const: Any = None) -> bytes:
    op, fields, data_at, indices_shape, out_shape, _ = CASES[case]
    shape = (7, 5) if case == "columns" else (5, 7)
    out_shape = (7, 3) if case == "columns" else out_shape
    tensors = [
        TensorSpec("data", shape, dtype),
        TensorSpec("indices", indices_shape, DType.I32, const),
        TensorSpec("result", out_shape, dtype),
    ]
    inputs = [0, 1] if const is None else [0]
    operands = [0, 1] if data_at == 0 else [1, 0]
    return write_model(ModelSpec(tensors, [OperatorSpec(op, fields, operands, [2])], inputs, [2]))


def _run(interpreter: Any, data: Any, indices: Any) -> Any:
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], data if detail["name"] == "data" else indices)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def _divided(op: str, const: Any = None) -> bytes:
    tensors = [
        TensorSpec("data", (4,), DType.I32),
        TensorSpec("indices", (4,), DType.I32, const),
        TensorSpec("y", (4,), DType.I32),
    ]
    inputs = [0, 1] if const is None else [0]
    return write_model(ModelSpec(tensors, [OperatorSpec(op, {}, [0, 1], [2])], inputs, [2]))


@pytest.mark.parametrize("side", ["litert", "cpu_ref"])
@pytest.mark.parametrize("case", [*CASES, "DIV", "FLOOR_DIV", "FLOOR_MOD"])
def test_strict_makes_it_an_error(case: str, side: str) -> None:
    """By the CPU, which the operator is left to; what is right still runs."""
    if case in CASES:
        content = _model(case, DType.F32)
        data, indices = _operands(case, DType.F32, 5)
        right = _operands(case, DType.F32, 2)[1]
    else:
        content, data = _divided(case), np.array([7, -7, 8, 1], np.int32)
        indices, right = (np.array([2, 3, n, 1], np.int32) for n in (0, -3))
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, strict=True, cpu_backend=side) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as interpreter,
    ):
        plain = Interpreter(model_content=content)
        np.testing.assert_array_equal(_run(interpreter, data, right), _run(plain, data, right))
        (refusal,) = interpreter.report.refusals
        assert "strict=True makes an error" in refusal.reason
        with pytest.raises(tflgpu.TflgpuError, match=r"(?i)outside|out of bounds|zero|by 0"):
            _run(interpreter, data, indices)


@pytest.mark.parametrize("side", ["litert", "cpu_ref"])
@pytest.mark.parametrize("op", ["DIV", "FLOOR_DIV", "FLOOR_MOD"])
def test_a_constant_divisor_with_a_zero_is_an_error(op: str, side: str) -> None:
    """On a device too, without being strict; others are taken."""
    data = np.array([7, -7, 8, 1], np.int32)
    for last in (-3, 0):
        content = _divided(op, np.array([2, 3, 5, last], np.int32))
        with (
            tflgpu.GpuDelegate(backend="cpu_ref", device=1, cpu_backend=side) as delegate,
            allocated(
                tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
            ) as interpreter,
        ):
            assert interpreter.report.delegated_nodes == bool(last)
            if last:
                wanted = _run(Interpreter(model_content=content), data, None)
                np.testing.assert_array_equal(_run(interpreter, data, None), wanted)
                continue
            (refusal,) = interpreter.report.refusals
            assert "a divisor with a 0" in refusal.reason
            for each in (interpreter, Interpreter(model_content=content)):
                with pytest.raises((RuntimeError, ValueError), match=r"(?i)zero|by 0"):
                    _run(each, data, None)


def test_segments_are_indices_too() -> None:
    content = small_model(
        {
            "data": (3, 2),
            "indices": tensor_of((3,), DType.I32),
            "n": tensor_of((), DType.I32, np.array(2, np.int32)),
            "y": (2, 2),
        },
        "y = UNSORTED_SEGMENT_SUM(data, indices, n)",
    )
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, strict=True) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as interpreter,
        pytest.raises(InputError, match="segment 2 of 2"),
    ):
        _run(interpreter, np.ones((3, 2), np.float32), np.array([0, 1, 2], np.int32))


def test_strict_leaves_constants_alone() -> None:
    content = _model("rows", DType.F32, [0, 2, 4])
    with (
        tflgpu.GpuDelegate(
            backend="cpu_ref", device=1, strict=True, allow_fallback=False
        ) as delegate,
        allocated(
            tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        ) as interpreter,
    ):
        assert not interpreter.report.refusals


def _operands(case: str, dtype: DType, bad: int) -> tuple[Any, Any]:
    shape = (7, 5) if case == "columns" else (5, 7)
    data = np.arange(1, 36).reshape(shape).astype(dtype.numpy)
    return data, np.array([1, bad, 4], np.int32).reshape(CASES[case][3])


@pytest.mark.parametrize("case", CASES)
def test_litert_and_the_references_refuse(case: str) -> None:
    content = _model(case, DType.F32)
    for bad in BAD:
        data, indices = _operands(case, DType.F32, bad)
        with pytest.raises(RuntimeError):
            _run(Interpreter(model_content=content), data, indices)
        with tflgpu.Interpreter(model_content=content) as ours, pytest.raises(InputError):
            _run(ours, data, indices)


@pytest.mark.parametrize("case", CASES)
def test_constant_indices_are_refused_when_a_model_is_opened(case: str) -> None:
    content = _model(case, DType.F32, _operands(case, DType.F32, -1)[1])
    with (
        pytest.raises(ModelError, match=r"index -1 is outside"),
        tflgpu.Interpreter(model_content=content) as interpreter,
    ):
        interpreter.allocate_tensors()


@pytest.mark.parametrize("dtype", [DType.F32, DType.I32, DType.BOOL], ids=lambda d: d.value)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_device_gives_no_element_that_nobody_asked_for(
    backend: str, case: str, dtype: DType
) -> None:
    content, axis = _model(case, dtype), CASES[case][5]
    nowhere: Any = {DType.F32: np.nan, DType.I32: _I32.min, DType.BOOL: False}[dtype]
    with tflgpu.GpuDelegate(backend=backend, device=int(backend == "cpu_ref")) as delegate:
        for bad in BAD:
            data, indices = _operands(case, dtype, bad)
            with tflgpu.Interpreter(
                model_content=content, experimental_delegates=[delegate]
            ) as interpreter:
                got = _run(interpreter, data, indices)
                assert interpreter.report.refusals == ()
            expected = np.array(np.take(data, [1, 0, 4], axis))
            expected[(slice(None),) * axis + (1,)] = nowhere
            np.testing.assert_array_equal(got, expected)
