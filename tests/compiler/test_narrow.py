"""Indices of 64 bits on a device: made 32-bit ones where that is never another element."""

from __future__ import annotations

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, outputs

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

I32, I64 = DType.I32, DType.I64


def gather() -> ModelSpec:
    """abs(x)[at], twice by the same indices."""
    tensors = [
        TensorSpec("x", (7, 6)), TensorSpec("at", (4,), I64), TensorSpec("a", (7, 6)),
        TensorSpec("y", (4, 6)), TensorSpec("z", (4, 6)),
    ]  # fmt: skip
    operators = [
        OperatorSpec("ABS", {}, [0], [2]), OperatorSpec("GATHER", {"axis": 0}, [2, 1], [3]),
        OperatorSpec("GATHER", {"axis": 0}, [0, 1], [4]),
    ]  # fmt: skip
    return ModelSpec(tensors, operators, [0, 1], [3, 4])


def largest(out: DType) -> ModelSpec:
    """The position of the largest of each row as i64, and as ``out``; and what is there."""
    tensors = [
        TensorSpec("x", (3, 6)), TensorSpec("axis", (), I32, 1), TensorSpec("at", (3,), I64),
        TensorSpec("y", (3,), out), TensorSpec("table", (6, 5), data=np.eye(6, 5,
        dtype=np.float32)),
        TensorSpec("z", (3, 5)),
    ]  # fmt: skip
    cast = {"in_data_type": I64.tflite, "out_data_type": out.tflite}
    operators = [
        OperatorSpec("ARG_MAX", {"output_type": I64.tflite}, [0, 1], [2]),
        OperatorSpec("CAST", cast, [2], [3]), OperatorSpec("GATHER", {"axis": 0}, [4, 2], [5]),
    ]  # fmt: skip
    return ModelSpec(tensors, operators, [0], [3, 5])


def scatter() -> ModelSpec:
    """Rows added where indices say, in a shape of i64 too."""
    tensors = [
        TensorSpec("at", (4, 1), I64), TensorSpec("x", (4, 3)), TensorSpec("shape", (2,), I64, [5,
        3]),
        TensorSpec("y", (5, 3)),
    ]  # fmt: skip
    return ModelSpec(tensors, [OperatorSpec("SCATTER_ND", {}, [0, 1, 2], [3])], [0, 1], [3])


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
