"""One kernel resizes a part of an image of bytes; its neighbours are left as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import first_results

X = np.random.default_rng(0).integers(0, 256, (2, 11, 13, 7)).astype(np.uint8)
TO_F32 = {"in_data_type": DType.U8.tflite, "out_data_type": DType.F32.tflite}


def model(
    begin: Sequence[int] = (0, 2, 3, 0),
    size: Sequence[int] = (2, 6, 9, 5),
    *,
    cast: bool = True,
    cut: bool = True,
    also: Sequence[int] = (),
) -> bytes:
    """CAST, SLICE and RESIZE_BILINEAR; ``also`` are further outputs, 1 of CAST and 2 of SLICE."""
    shape = tuple(size) if cut else X.shape
    tensors = [
        TensorSpec("x", X.shape, DType.U8 if cast else DType.F32), TensorSpec("f", X.shape),
        TensorSpec("part", shape), TensorSpec("y", (shape[0], 5, 17, shape[3])),
        TensorSpec("begin", (4,), DType.I32, begin), TensorSpec("size", (4,), DType.I32, size),
        TensorSpec("sides", (2,), DType.I32, [5, 17]),
    ]  # fmt: skip
    operators = [OperatorSpec("CAST", TO_F32, (0,), (1,))] if cast else []
    source = 1 if cast else 0
    if cut:
        operators.append(OperatorSpec("SLICE", {}, (source, 4, 5), (2,)))
        source = 2
    operators.append(
        OperatorSpec("RESIZE_BILINEAR", {"half_pixel_centers": True}, (source, 6), (3,))
    )
    return write_model(ModelSpec(tensors, operators, (0,), (3, *also)))


def results(content: bytes, delegate: Any, x: Any) -> tuple[list[Any], int]:
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=[delegate] if delegate else []
    ) as one:
        found = first_results(one, {0: x})
        return found, one.report.dispatches


@pytest.fixture(scope="module")
def interpreted() -> Any:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as made:
        yield made


@pytest.mark.parametrize(
    ("options", "kernels"),
    [
        ({}, 1),
        ({"cut": False}, 1),
        ({"cast": False}, 1),
        ({"size": (2, 9, 10, 7)}, 1),
        # What somebody else needs is made.
        ({"also": (2,)}, 2),
        ({"also": (1,)}, 2),
        ({"begin": (0, 2, 3, 1)}, 2),
        ({"begin": (1, 0, 0, 0), "size": (1, 6, 9, 5)}, 1),
    ],
)
def test_as_the_references(interpreted: Any, options: dict[str, Any], kernels: int) -> None:
    content = model(**options)
    x = X if options.get("cast", True) else X.astype(np.float32)
    want, _ = results(content, None, x)
    found, dispatches = results(content, interpreted, x)
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)
    assert dispatches == kernels
