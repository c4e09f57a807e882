"""DENSIFY of a sparse constant, which a sample cannot have: held against LiteRT."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.sparsity import Level, Sparsity
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

SHAPE = (5, 6)


def model(dtype: DType) -> bytes:
    """``x + densified``, and the densified constant itself."""
    # Rows in compressed form: 2, 0, 1, 3 and 1 numbers, in these columns.
    segments = np.array([0, 2, 2, 3, 6, 7], np.uint8)
    columns = np.array([0, 5, 3, 1, 2, 4, 0], np.uint8)
    rows = Sparsity((0, 1), (), (Level(5), Level(None, segments, columns)))
    values = np.arange(1, 8).astype(dtype.numpy)
    tensors = [
        TensorSpec("s", SHAPE, dtype, values, sparsity=rows), TensorSpec("d", SHAPE, dtype),
        TensorSpec("x", SHAPE), TensorSpec("y", SHAPE), TensorSpec("f", SHAPE),
    ]  # fmt: skip
    cast = OperatorSpec("CAST", {"in_data_type": dtype.tflite, "out_data_type": 0}, [1], [4])
    ops = [OperatorSpec("DENSIFY", {}, [0], [1]), cast, OperatorSpec("ADD", {}, [2, 4], [3])]
    return write_model(ModelSpec(tensors, ops, [2], [3, 1]))


@pytest.mark.parametrize("dtype", [DType.F32, DType.I8])
@pytest.mark.parametrize("backend", ["none", "opencl"])
def test_as_litert(backend: str, dtype: DType, require_backend: Callable[[str], object]) -> None:
    content = model(dtype)
    x = np.random.default_rng(1).uniform(-1, 1, SHAPE).astype(np.float32)
    found = []
    delegates = []
    if backend != "none":
        require_backend(backend)
        delegates = [tflgpu.GpuDelegate(backend=backend)]
    ours = tflgpu.Interpreter(model_content=content, experimental_delegates=delegates)
    for interpreter in (ours, litert.Interpreter(model_content=content)):
        interpreter.allocate_tensors()
        interpreter.set_tensor(2, x)
        interpreter.invoke()
        found.append([interpreter.get_tensor(i) for i in (3, 1)])
    ours.close()
    for delegate in delegates:
        delegate.close()
    assert np.count_nonzero(found[1][1]) == 7
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, theirs)
