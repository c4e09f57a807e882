"""LSH_PROJECTION's hash, of items of every length for which it does something else, against
LiteRT."""

from __future__ import annotations

import numpy as np
import pytest
from tflgpu.ir.dtypes import DType
from tflgpu.ops.base import Fields
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

#: Of items; four bytes more are hashed.
WIDTHS = (1, 3, 4, 5, 11, 12, 13, 27, 28, 29, 45, 60, 61, 64, 123, 124, 125, 126, 188, 189, 260)


@pytest.mark.parametrize("width", WIDTHS)
def test_bits_as_litert(width: int) -> None:
    rng = np.random.default_rng(width)
    arrays = [
        rng.standard_normal((5, 8)).astype(np.float32),
        rng.integers(0, 256, (6, width)).astype(np.uint8),
        rng.standard_normal(6).astype(np.float32),
    ]
    tensors = [
        TensorSpec(f"i{i}", a.shape, DType.from_numpy(a.dtype)) for i, a in enumerate(arrays)
    ]
    tensors.append(TensorSpec("y", (40,), DType.I32))
    op = OperatorSpec("LSH_PROJECTION", {"type": 2}, [0, 1, 2], [3])
    theirs = litert.Interpreter(model_content=write_model(ModelSpec(tensors, [op], [0, 1, 2], [3])))
    theirs.allocate_tensors()
    for i, array in enumerate(arrays):
        theirs.set_tensor(i, array)
    theirs.invoke()
    definition = builtin_ops()["LSH_PROJECTION"]
    attributes = definition.parse(Fields("LSH_PROJECTION", {"type": 2}))
    (ours,) = definition.reference(attributes, arrays)
    assert 0 < int(ours.sum()) < 40
    np.testing.assert_array_equal(ours, theirs.get_tensor(3))
