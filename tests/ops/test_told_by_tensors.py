"""What the types of a file's tensors decide, and no option: positions of TOPK_V2, steps of
RESIZE_BILINEAR."""

from __future__ import annotations

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.quant import Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


def both(content: bytes, x: Array, results: list[int], device: int) -> list[tuple[Array, Array]]:
    """LiteRT's results and ours."""
    found = []
    with tflgpu.GpuDelegate(backend="cpu_ref", device=device) as delegate:
        ours = tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        for it in (litert.Interpreter(model_content=content), ours):
            it.allocate_tensors()
            it.set_tensor(0, x)
            it.invoke()
            found.append([np.array(it.get_tensor(i)) for i in results])
        ours.close()
    return list(zip(*found, strict=True))


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("index", [DType.I16, DType.I32])
def test_positions(index: DType, device: int) -> None:
    tensors = [
        TensorSpec("x", (3, 7)), TensorSpec("k", (), DType.I32, np.int32(4)),
        TensorSpec("values", (3, 4)), TensorSpec("places", (3, 4), index),
    ]  # fmt: skip
    content = write_model(
        ModelSpec(tensors, [OperatorSpec("TOPK_V2", {}, [0, 1], [2, 3], version=3)], [0], [2, 3])
    )
    x = np.random.default_rng(3).uniform(-3, 3, (3, 7)).astype(np.float32)
    for wanted, got in both(content, x, [2, 3], device):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("fields", [{}, {"align_corners": True}, {"half_pixel_centers": True}])
def test_places_between_pixels(fields: dict[str, bool], device: int) -> None:
    """Rounded to 1/1024 of a pixel, which is up to 50 steps of 16 bits in these images."""
    quant = Quantization((0.25 / 4096,), (0,), 0)
    tensors = [
        TensorSpec("x", (2, 3, 3, 5), DType.I16, quantization=quant),
        TensorSpec("size", (2,), DType.I32, np.int32([7, 9])),
        TensorSpec("y", (2, 7, 9, 5), DType.I16, quantization=quant),
    ]
    operator = OperatorSpec("RESIZE_BILINEAR", fields, [0, 1], [2], version=4)
    content = write_model(ModelSpec(tensors, [operator], [0], [2]))
    x = np.random.default_rng(3).integers(-30000, 30000, (2, 3, 3, 5)).astype(np.int16)
    ((wanted, got),) = both(content, x, [2], device)
    assert np.abs(got.astype(np.int64) - wanted).max() <= 1
