"""Indices of 64 bits on a device: made 32-bit ones where that is never another element."""

from __future__ import annotations

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.spec import ModelSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, outputs
from tests.small_models import small_spec, tensor_of

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

I32, I64 = DType.I32, DType.I64


def gather() -> ModelSpec:
    """abs(x)[at], twice by the same indices."""
    return small_spec(
        {"x": (7, 6), "at": tensor_of((4,), I64), "a": (7, 6), "y": (4, 6), "z": (4, 6)},
        "a = ABS(x)",
        ("y = GATHER(a, at)", {"axis": 0}),
        ("z = GATHER(x, at)", {"axis": 0}),
    )


def largest(out: DType) -> ModelSpec:
    """The position of the largest of each row as i64, and as ``out``; and what is there."""
    cast = {"in_data_type": I64.tflite, "out_data_type": out.tflite}
    return small_spec(
        {
            "x": (3, 6),
            "axis": tensor_of((), I32, 1),
            "at": tensor_of((3,), I64),
            "y": tensor_of((3,), out),
            "table": tensor_of((6, 5), data=np.eye(6, 5, dtype=np.float32)),
            "z": (3, 5),
        },
        ("at = ARG_MAX(x, axis)", {"output_type": I64.tflite}),
        ("y = CAST(at)", cast),
        ("z = GATHER(table, at)", {"axis": 0}),
    )


def scatter() -> ModelSpec:
    """Rows added where indices say, in a shape of i64 too."""
    return small_spec(
        {
            "at": tensor_of((4, 1), I64),
            "x": (4, 3),
            "shape": tensor_of((2,), I64, [5, 3]),
            "y": (5, 3),
        },
        "y = SCATTER_ND(at, x, shape)",
    )


def run(interpreter: object, given: list[Array]) -> list[Array]:
    allocate_and_run(interpreter, given)
    return outputs(interpreter)


def drawn(spec: ModelSpec, high: int) -> list[Array]:
    rng = np.random.default_rng(3)
    tensors = [spec.tensors[i] for i in spec.inputs]
    return [
        rng.integers(0, high, t.shape) if t.dtype is I64
        else rng.uniform(-2, 2, t.shape).astype(np.float32)
        for t in tensors
    ]  # fmt: skip


CASES = {
    "gather": gather(),
    "to i32": largest(I32),
    "to f32": largest(DType.F32),
    "scatter": scatter(),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", ["opencl", "cpu_ref"])
def test_results_are_those_of_litert(name: str, device: str) -> None:
    spec = CASES[name]
    content, given = write_model(spec), drawn(spec, 5)
    if name == "scatter":  # LiteRT's kernel takes indices of 32 bits only
        plain = tflgpu.Interpreter(
            model_content=content, experimental_delegates=[], cpu_backend="cpu_ref"
        )
        with plain:
            wanted = run(plain, given)
    else:
        wanted = run(litert.Interpreter(model_content=content), given)
    chosen = {"backend": "cpu_ref", "device": 1} if device == "cpu_ref" else {"backend": device}
    with (
        tflgpu.GpuDelegate(**chosen) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as interpreter,
    ):
        found = run(interpreter, given)
        report = interpreter.report
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert report.delegated_nodes == report.total_nodes == len(spec.operators)
    assert not report.refusals


@pytest.mark.parametrize("index", [2**32 + 1, -(2**32) + 1, 2**62, 7, -1])
def test_an_index_that_32_bits_do_not_hold_is_outside(index: int) -> None:
    """Cut to its lower bits, the first two would be an element's."""
    given = [np.ones((7, 6), np.float32), np.array([0, index, 1, 2])]
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
        tflgpu.Interpreter(
            model_content=write_model(gather()), experimental_delegates=[delegate]
        ) as interpreter,
    ):
        found, _ = run(interpreter, given)
    assert np.isnan(found[1]).all()
    assert (found[[0, 2, 3]] == 1).all()
