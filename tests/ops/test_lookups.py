"""EMBEDDING_LOOKUP_SPARSE and HASHTABLE_LOOKUP, beyond their samples: what only a run tells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tflgpu import Interpreter
from tflgpu.errors import InputError, TflgpuError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run
from tests.small_models import small_model, tensor_of

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


def _i32(*data: Any) -> Array:
    return np.array(data, np.int32)


TABLE = np.arange(12, dtype=np.float32).reshape(4, 3) - 5


def _sparse(count: int, rank: int, kind: int) -> bytes:
    """All operands but the table are inputs."""
    shapes = [(count,), (count, rank), (rank,), (count,)]
    types = [DType.I32, DType.I32, DType.I32, DType.F32]
    tensors = [
        TensorSpec(f"i{i}", s, t) for i, (s, t) in enumerate(zip(shapes, types, strict=True))
    ]
    tensors += [TensorSpec("table", TABLE.shape, DType.F32, TABLE), TensorSpec("y", (1, 3))]
    op = OperatorSpec("EMBEDDING_LOOKUP_SPARSE", {"combiner": kind}, range(5), (5,))
    return write_model(ModelSpec(tensors, [op], range(4), (5,)))


def _run(make: Any, content: bytes, feeds: list[Array]) -> Array:
    interpreter = make(model_content=content)
    allocate_and_run(interpreter, feeds)
    return interpreter.get_tensor(len(feeds) + 1)


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_dense_shape_that_is_computed(kind: int) -> None:
    feeds = [
        _i32(1, 3, 0), _i32([0, 0], [2, 0], [2, 1]), _i32(4, 2), np.array([1, 2, 0.5], np.float32)
    ]  # fmt: skip
    content = _sparse(3, 2, kind)
    mine, wanted = (_run(i, content, feeds) for i in (Interpreter, litert.Interpreter))
    assert mine.shape == wanted.shape == (4, 3)
    np.testing.assert_allclose(mine, wanted, rtol=1e-6)


def test_no_lookups() -> None:
    feeds = [_i32(), _i32().reshape(0, 2), _i32(2, 5), np.empty(0, np.float32)]
    mine, wanted = (_run(i, _sparse(0, 2, 1), feeds) for i in (Interpreter, litert.Interpreter))
    assert mine.tolist() == wanted.tolist() == np.zeros((2, 3)).tolist()


@pytest.mark.parametrize(
    ("ids", "rows", "message"),
    [(4, 0, r"id 4 is outside \[0, 4\)"), (-1, 0, "id -1"), (0, 2, r"dense shape of \[2\]")],
)
def test_an_index_outside(ids: int, rows: int, message: str) -> None:
    feeds = [_i32(ids), _i32([rows, 0]), _i32(2, 2), np.ones(1, np.float32)]
    with pytest.raises(TflgpuError, match=message) as raised:
        _run(Interpreter, _sparse(1, 2, 0), feeds)
    assert "EMBEDDING_LOOKUP_SPARSE" in str(raised.value)
    assert isinstance(raised.value, (InputError, RuntimeError))


def test_keys_whose_difference_32_bits_do_not_hold() -> None:
    keys = _i32(-(2**31), 5, 2**31 - 1)
    asked = _i32(-(2**31), 2**31 - 1, 5, 0)
    content = small_model(
        {
            "q": tensor_of((4,), DType.I32),
            "k": tensor_of((3,), DType.I32, keys),
            "v": tensor_of((3,), DType.F32, np.array([1, 2, 3], np.float32)),
            "y": (4,),
            "hits": tensor_of((4,), DType.U8),
        },
        "y, hits = HASHTABLE_LOOKUP(q, k, v)",
    )
    found = []
    for make in (Interpreter, litert.Interpreter):
        interpreter = make(model_content=content)
        allocate_and_run(interpreter, {0: asked})
        found.append([interpreter.get_tensor(i).tolist() for i in (3, 4)])
    assert found[0] == found[1]
