"""MediaPipe's custom ops for landmarks, and reading between pixels: LiteRT has no kernels of them,
so what they should give is worked out here in another way, in 64-bit floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.conformance.samples import materialize
from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.base import Fields
from tflgpu.ops.flexible import write_map
from tflgpu.ops.landmarks import MATRIX, TRANSFORM, Crop, RelativeCrop
from tflgpu.ops.registry import builtin_ops
from tflgpu.ops.sampling import BILINEAR, RESAMPLER, TENSOR
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, allocated, set_and_run

OPS = builtin_ops()
IMAGE = np.arange(24, dtype=np.float32).reshape(1, 4, 3, 2)


def turn(angle: float, size: int = 4) -> Array:
    found = np.eye(size)
    found[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return found


def shift(x: float, y: float, size: int = 4) -> Array:
    found = np.eye(size)
    found[:2, -1] = x, y
    return found


def matrix_of(crop: Crop, points: Array) -> Array:
    (dx, dy), subset = points[crop.right] - points[crop.left], points[list(crop.subset)]
    angle = crop.rotation - np.arctan2(dy, dx)
    turned = subset @ turn(angle)[:2, :2].T
    low, high = turned.min(axis=0), turned.max(axis=0)
    center = turn(-angle)[:2, :2] @ ((low + high) / 2)
    height, width = crop.size
    scale = (high - low) * crop.scale / (width, height)
    return np.asarray(
        shift(*center) @ turn(-angle) @ np.diag([*scale, 1, 1]) @ shift(-width / 2, -height / 2)
    )


def relative_matrix_of(crop: RelativeCrop, points: Array) -> Array:
    (dx, dy), subset = points[crop.right] - points[crop.left], points[list(crop.subset)]
    angle = -np.arctan(dy / dx)
    turned = subset @ turn(angle)[:2, :2].T
    low, high = turned.min(axis=0), turned.max(axis=0)
    center = turn(-angle)[:2, :2] @ ((low + high) / 2) / crop.most * 2 - 1
    scale = (high - low) * crop.multiplier / crop.most
    (height, width), (rows, columns) = crop.size, crop.image
    relative = shift(-1, -1, 3) @ np.diag([2 / (width - 1), 2 / (height - 1), 1])
    half = np.array([columns - 1, rows - 1]) / 2
    absolute = shift(*half, 3) @ np.diag([*half, 1])
    rotated = shift(*center, 3) @ turn(-angle, 3)
    whole = absolute @ rotated @ np.diag([*scale, 1]) @ relative
    found = np.eye(4)
    found[:2, :2], found[:2, 3] = whole[:2, :2], whole[:2, 2]
    return found


@pytest.mark.parametrize("sample", OPS[MATRIX].samples(), ids=lambda s: s.id)
def test_a_crop_is_steps_multiplied(sample: Any) -> None:
    case = materialize(OPS[MATRIX], sample)
    (x,) = case.arrays.values()
    points = x.reshape(-1, 3)[:, :2].astype(np.float64)
    crop = case.node.attrs
    wanted = (matrix_of if isinstance(crop, Crop) else relative_matrix_of)(crop, points)
    case.tolerance().check(case.expected[0], wanted[None].astype(np.float32))


def run(op: str, options: bytes, *arrays: Any, like: tuple[int, ...] | None = None) -> Array:
    """On the kernel interpreter, and by the reference, which must agree."""
    operands = [np.asarray(a, np.float32) for a in arrays]
    expected = OPS[op].reference(OPS[op].parse(Fields(op, {}, options)), operands)[0]
    tensors = [TensorSpec(f"x{i}", a.shape) for i, a in enumerate(operands)]
    inputs = list(range(len(operands)))
    tensors.append(TensorSpec("y", expected.shape))
    operator = OperatorSpec(op, {}, inputs, [len(inputs)], custom_options=options)
    content = write_model(ModelSpec(tensors, [operator], inputs, [len(inputs)]))
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, allow_fallback=False) as delegate,
        allocated(
            tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        ) as ours,
    ):
        for index, array in zip(inputs, operands, strict=True):
            ours.set_tensor(index, array)
        ours.invoke()
        found = np.array(ours.get_tensor(len(inputs)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    return found


def test_landmarks_move_and_keep_what_is_beyond_x_and_y() -> None:
    matrix = (shift(10, 20) @ turn(np.pi / 2))[None]
    found = run(TRANSFORM, b"", [[[1, 2, 3], [4, 5, 6]]], matrix)
    np.testing.assert_allclose(found, [[[8, 21, 3], [5, 24, 6]]], rtol=1e-6)
    options = write_map({"dimensions": 2, "scale": 2.0})
    found = run(TRANSFORM, options, [[[[1, 2, 3, 4]]]], matrix)
    np.testing.assert_allclose(found, [[[[18, 41, 16, 43]]]], rtol=1e-6)


@pytest.mark.parametrize("op", [BILINEAR, TENSOR])
def test_images_are_read_where_a_matrix_says(op: str) -> None:
    options = write_map(
        {"output_height": 4, "output_width": 3} if op == BILINEAR else {"output_size": [4, 3]}
    )
    np.testing.assert_array_equal(run(op, options, IMAGE, np.eye(4)[None]), IMAGE)
    found = run(op, options, IMAGE, shift(1, 2)[None])
    np.testing.assert_array_equal(found[:, :2, :2], IMAGE[:, 2:, 1:])
    assert not found[:, 2:].any() and not found[:, :, 2:].any()
    between = run(op, options, IMAGE, shift(0.5, 0)[None])
    np.testing.assert_array_equal(between[:, :, :2], (IMAGE[:, :, :2] + IMAGE[:, :, 1:]) / 2)
    assert np.isnan(run(op, options, IMAGE, np.full((1, 4, 4), np.nan))).all()


def test_versions_count_from_other_places() -> None:
    """Twice as large: from corners half a pixel is a quarter of one, and from centers a half."""
    matrix = np.diag([0.5, 0.5, 1, 1])[None]
    line = np.array([0, 1, 2, 3], np.float32).reshape(1, 1, 4, 1)
    corners = write_map({"output_height": 1, "output_width": 8})
    centers = write_map({"output_size": [1, 8]})
    line = np.repeat(line, 4, axis=1)
    np.testing.assert_allclose(
        run(TENSOR, centers, line, matrix)[0, 0, :, 0], [0, 0.5, 1, 1.5, 2, 2.5, 3, 0]
    )
    found = run(BILINEAR, corners, line, shift(0, 0.5)[None] @ matrix)[0, 0, :, 0]
    np.testing.assert_allclose(found, [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 0])


def test_a_resampler_fades_beyond_the_image() -> None:
    places = [[[[0, 0], [2, 3], [0.5, 1.5]], [[-0.5, 0], [2.5, 3.5], [-1, 0]]],
              [[[3, 0], [1, 4], [np.nan, 1]], [[1e30, 1], [1, -1e30], [1, 2]]]]  # fmt: skip
    (found,) = run(RESAMPLER, b"", IMAGE, np.reshape(places, (1, 4, 3, 2)))
    at = IMAGE[0]
    wanted = [at[0, 0], at[3, 2], (at[1, 0] + at[1, 1] + at[2, 0] + at[2, 1]) / 4]
    np.testing.assert_allclose(found[0], wanted)
    np.testing.assert_allclose(found[1], [at[0, 0] / 2, at[3, 2] / 4, [0, 0]])
    assert not found[2].any() and not found[3, :2].any()
    np.testing.assert_allclose(found[3, 2], at[2, 1])


@pytest.mark.parametrize(
    ("op", "options", "said"),
    [
        (MATRIX, {"subset_idxs": [], "output_height": 1, "output_width": 1, "scale_x": 1,
                  "scale_y": 1}, "a subset of landmarks"),
        (MATRIX, {"subset_idxs": [1], "output_height": 0, "output_width": 1, "scale_x": 1,
                  "scale_y": 1}, "must be positive"),
        (MATRIX, {"dimensions": 2}, "landmarks of 2 numbers"),
        (TRANSFORM, {"dimensions": 4}, "4 dimensions"),
        (TENSOR, {"output_size": [3, 3], "mode": "nearest"}, "'bilinear' only"),
        (TENSOR, {"output_size": [3]}, "not two numbers"),
        (BILINEAR, {"output_height": 3}, "3 x 0 pixels"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(op: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        OPS[op].parse(Fields(op, {}, write_map(options)))


def test_a_transposed_convolution_whose_shape_is_computed(litert: Any) -> None:
    """The output's height and width are twice those of the input, as exporters write it."""
    weights = np.random.default_rng(0).normal(0, 1, (3, 2, 2, 4)).astype(np.float32)

    def whole(name: str, *values: int) -> TensorSpec:
        return TensorSpec(name, (len(values),), DType.I32, np.array(values, np.int32))

    tensors = [
        TensorSpec("x", (1, 3, 5, 4)), TensorSpec("shape", (4,), DType.I32), whole("begin", 1),
        whole("end", 3), whole("step", 1), TensorSpec("side", (2,), DType.I32), whole("two", 2),
        TensorSpec("twice", (2,), DType.I32), whole("one", 1), whole("three", 3),
        TensorSpec("wanted", (4,), DType.I32), TensorSpec("w", weights.shape, data=weights),
        TensorSpec("y", (1, 6, 10, 3)),
    ]  # fmt: skip
    operators = [
        OperatorSpec("SHAPE", {"out_type": 2}, [0], [1]),
        OperatorSpec("STRIDED_SLICE", {}, [1, 2, 3, 4], [5]),
        OperatorSpec("MUL", {}, [5, 6], [7]),
        OperatorSpec("CONCATENATION", {"axis": 0}, [8, 7, 9], [10]),
        OperatorSpec("TRANSPOSE_CONV", {"stride_h": 2, "stride_w": 2}, [10, 11, 0], [12]),
    ]
    content = write_model(ModelSpec(tensors, operators, [0], [12]))
    plain = allocated(litert.Interpreter(model_content=content))
    x = np.random.default_rng(1).normal(0, 1, (1, 3, 5, 4)).astype(np.float32)
    set_and_run(plain, {0: x})
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, allow_fallback=False) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        for shape in ((1, 3, 5, 4), (1, 2, 4, 4)):
            ours.resize_tensor_input(0, shape)
            plain.resize_tensor_input(0, shape)
            for each in (ours, plain):
                allocate_and_run(each, {0: x[:, : shape[1], : shape[2]]})
            got, expected = (each.get_tensor(12) for each in (ours, plain))
            assert got.shape == (1, 2 * shape[1], 2 * shape[2], 3)
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
