"""Converters at a model's edges: by LiteRT, and by every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import InputError, ModelError, OptionError
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.converters import (
    FromBytes,
    FromFloats,
    FromImage,
    FromLayout,
    ToBytes,
    ToClasses,
    ToFloats,
    ToLayout,
    converted,
)
from tflgpu.tflite.model_file import SignatureInfo
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocated, results, set_and_run
from tests.small_models import small_model, tensor_of

RNG = np.random.default_rng(0)
MEAN, SCALE = (120.0, 110.5, 100.0), (1 / 64, 1 / 32, 1 / 128)
PLACE = np.array([[1, -2, 0.5], [0, 1, -1], [2, 0, 1]], np.float32)


def model(shape: tuple[int, ...] = (1, 5, 7, 3)) -> bytes:
    """``y = x @ PLACE`` at each pixel."""
    fields = {"padding": 0, "stride_h": 1, "stride_w": 1}
    signature = SignatureInfo("serve", 0, {"x": 0}, {"y": 3})
    return small_model(
        {
            "image": shape,
            "w": tensor_of((3, 1, 1, 3), data=PLACE.T.reshape(3, 1, 1, 3)),
            "b": tensor_of((3,), data=np.zeros(3, np.float32)),
            "scores": shape,
        },
        ("scores = CONV_2D(image, w, b)", fields),
        signatures=(signature,),
    )


def run(content: bytes, x: Any, **delegate: Any) -> Any:
    """By LiteRT, or by a delegate."""
    if delegate:
        with (
            tflgpu.GpuDelegate(**delegate) as made,
            tflgpu.Interpreter(model_content=content, experimental_delegates=[made]) as one,
        ):
            return ran(one, x)
    litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")
    return ran(litert.Interpreter(model_content=content), x)


def ran(one: Any, x: Any) -> Any:
    one.allocate_tensors()
    (given,), (found,) = one.get_input_details(), one.get_output_details()
    assert (given["name"], found["name"]) == ("image", "scores")
    set_and_run(one, {given["index"]: x})
    return one.get_tensor(found["index"])


def bytes_of(*shape: int) -> Any:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def sliced(x: Any) -> Any:
    """BHWC as DHWC4, with zeros in what is left."""
    _, height, width, channels = x.shape
    padded = np.pad(x[0], ((0, 0), (0, 0), (0, -channels % 4)))
    return padded.reshape(height, width, -1, 4).transpose(2, 0, 1, 3)


IMAGE = bytes_of(1, 5, 7, 3)
REAL = ((IMAGE - np.float32(MEAN)) * np.float32(SCALE)).astype(np.float32)
RGBA = bytes_of(1, 11, 17, 4)
FLOATS = RNG.standard_normal((1, 5, 7, 3)).astype(np.float32)


def resized(x: Any, height: int, width: int) -> Any:
    """Bilinear, pixels' centres on each other, by the book."""
    for axis, size in ((1, height), (2, width)):
        at = np.clip((np.arange(size) + 0.5) * x.shape[axis] / size - 0.5, 0, x.shape[axis] - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, x.shape[axis] - 1)
        part = (at - low).reshape([-1 if i == axis else 1 for i in range(4)])
        x = np.take(x, low, axis) * (1 - part) + np.take(x, high, axis) * part
    return x.astype(np.float32)


CROPPED = resized(RGBA[:, 2:10, 3:15, :3].astype(np.float64), 5, 7)
#: Converters, what is given, and what comes out, as NumPy computes it.
CASES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "bytes": ({"inputs": {"x": FromBytes(MEAN, SCALE)}}, IMAGE, REAL @ PLACE),
    "bytes, plain": ({"inputs": {0: FromBytes()}}, IMAGE, IMAGE.astype(np.float32) @ PLACE),
    "classes": ({"outputs": {"scores": ToClasses()}}, FLOATS, (FLOATS @ PLACE).argmax(-1)),
    "classes, i32": (
        {"outputs": {"y": ToClasses(1, "i32")}}, FLOATS, (FLOATS @ PLACE).argmax(1),
    ),
    "to bytes": (
        {"outputs": {"y": ToBytes(0.25, 100)}}, FLOATS,
        np.clip(np.rint(FLOATS @ PLACE / 0.25) + 100, 0, 255),
    ),
    "bytes, classes": (
        {"inputs": {"x": FromBytes(MEAN, SCALE)}, "outputs": {"y": ToClasses()}}, IMAGE,
        (REAL @ PLACE).argmax(-1),
    ),
    "layouts": (
        {"inputs": {"x": FromLayout("PHWC4")}, "outputs": {"y": ToLayout()}},
        np.where(sliced(np.ones_like(FLOATS)) == 0, np.float32(np.nan), sliced(FLOATS)),
        sliced(FLOATS @ PLACE),
    ),
    "image": (
        {"inputs": {"x": FromImage(11, 17, crop=(2, 3, 8, 12), mean=50, scale=0.02)}}, RGBA,
        ((CROPPED - 50) * np.float32(0.02)) @ PLACE,
    ),
}  # fmt: skip


def check(name: str, found: Any) -> None:
    want = CASES[name][2]
    if found.dtype == np.float32:
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=2e-4)
    else:
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("name", CASES)
def test_by_litert(name: str) -> None:
    options, x, _ = CASES[name]
    found = run(converted(model(), **options), x)
    assert found.dtype == (np.uint8 if "byte" in name and "to" in name else found.dtype)
    check(name, found)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ["cpu_ref", "opencl", "vulkan", "wgpu"])
def test_by_a_device(backend: str, name: str) -> None:
    options, x, _ = CASES[name]
    device = 1 if backend == "cpu_ref" else 0
    check(name, run(converted(model(), **options), x, backend=backend, device=device))


@pytest.mark.parametrize("backend", ["cpu_ref", "opencl", "vulkan", "wgpu"])
def test_on_the_device_and_without_a_copy(backend: str) -> None:
    content = converted(model(), inputs={"x": FromBytes(MEAN, SCALE)}, outputs={"y": ToClasses()})
    with (
        tflgpu.GpuDelegate(backend=backend, device=1 if backend == "cpu_ref" else 0) as delegate,
        allocated(
            tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        ) as one,
    ):
        assert one.report.fully_delegated
        with one.allocate_buffer("x") as x, one.allocate_buffer("y") as y:
            assert (x.dtype, y.dtype, y.shape) == (np.uint8, np.uint8, (1, 5, 7))
            one.bind_input("x", x)
            one.bind_output("y", y)
            x.write(IMAGE)
            one.invoke()
            np.testing.assert_array_equal(y.read(), CASES["bytes, classes"][2])


def quantized_model(dtype: DType = DType.I8) -> bytes:
    """``y = max(x, 0)`` of quantized numbers."""
    scale = Quantization((0.05,), (0 if dtype is DType.I16 else 3,))
    return small_model(
        dict.fromkeys(("image", "scores"), tensor_of((1, 5, 7, 3), dtype, quantization=scale)),
        "scores = RELU(image)",
    )


OF_QUANTIZED: dict[str, tuple[dict[str, Any], Any]] = {
    "floats": ({"inputs": {0: FromFloats()}, "outputs": {1: ToFloats()}}, FLOATS * 4),
    "bytes": ({"inputs": {0: FromBytes(128, 0.02)}}, IMAGE),
    "classes": ({"inputs": {0: FromFloats()}, "outputs": {1: ToClasses()}}, FLOATS),
    "layouts": (
        {"inputs": {0: FromLayout()}, "outputs": {1: ToLayout()}}, sliced(FLOATS),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_QUANTIZED)
@pytest.mark.parametrize("backend", ["cpu_ref", "opencl", "vulkan", "wgpu"])
@pytest.mark.parametrize("dtype", [DType.I8, DType.U8, DType.I16], ids=lambda d: d.value)
def test_of_quantized_tensors_as_by_litert(backend: str, name: str, dtype: DType) -> None:
    options, x = OF_QUANTIZED[name]
    content = converted(quantized_model(dtype), **options)
    want = run(content, x)
    found = run(content, x, backend=backend, device=1 if backend == "cpu_ref" else 0)
    assert found.dtype == want.dtype
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_buffers_of_floats_at_a_quantized_model() -> None:
    ends = {"inputs": {0: FromFloats()}, "outputs": {1: ToFloats()}}
    content = converted(quantized_model(), **ends)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
        allocated(
            tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        ) as one,
        one.allocate_buffer("image") as x,
        one.allocate_buffer("scores") as y,
    ):
        assert (x.dtype, y.dtype) == (np.float32, np.float32)
        one.bind_input("image", x)
        one.bind_output("scores", y)
        x.write(FLOATS)
        one.invoke()
        assert one.copied.total == 0
        rounded = np.round(np.clip(FLOATS, -6.55, 6.2) / np.float32(0.05)) * np.float32(0.05)
        np.testing.assert_allclose(y.read(), np.maximum(rounded, 0), atol=1e-6)


def test_open_dimensions_stay_open() -> None:
    shape = (1, 5)
    plain = small_model(
        dict.fromkeys(("x", "y"), tensor_of(shape, shape_signature=(-1, 5))), "y = RELU(x)"
    )
    content = converted(plain, inputs={0: FromBytes(2)}, outputs={1: ToBytes()})
    with tflgpu.Interpreter(model_content=content) as one:
        given = one.get_input_details()[0]
        assert given["shape_signature"].tolist() == [-1, 5]
        one.resize_tensor_input(given["index"], (3, 5), strict=True)
        one.allocate_tensors()
        x = bytes_of(3, 5)
        found = results(one, {given["index"]: x})[0]
        np.testing.assert_array_equal(found, np.maximum(x.astype(int) - 2, 0))


def test_nothing_asked_for_changes_nothing() -> None:
    content = model()
    again = read_model(converted(content))
    assert [o.name for o in again.subgraphs[0].operators] == ["CONV_2D"]
    np.testing.assert_array_equal(run(converted(content), FLOATS), run(content, FLOATS))


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no such input": ({"inputs": {"z": FromBytes()}}, InputError, r"none is the input 'z'"),
    "no such output": ({"outputs": {0: ToClasses()}}, InputError, r"there are 3 \('scores'\)"),
    "twice": ({"inputs": {"x": FromBytes(), 0: FromBytes()}}, InputError, "converted twice"),
    "no finite mean": ({"inputs": {0: FromBytes(np.nan)}}, OptionError, "finite number"),
    "no number": ({"inputs": {0: FromBytes("x")}}, OptionError, "mean is a finite number"),
    "means of other channels": ({"inputs": {0: FromBytes((1, 2))}}, OptionError, "one number or 3"),
    "no scale": ({"outputs": {3: ToBytes(0)}}, OptionError, "above 0"),
    "no zero point": ({"outputs": {3: ToBytes(1, 256)}}, OptionError, "from 0 to 255"),
    "no such axis": ({"outputs": {3: ToClasses(4)}}, OptionError, "no dimension 4"),
    "no such type": ({"outputs": {3: ToClasses(dtype="f32")}}, OptionError, "'u8' or 'i32'"),
    "no such layout": ({"inputs": {0: FromLayout("CHW")}}, OptionError, "DHWC4, PHWC4"),
    "a crop outside": (
        {"inputs": {0: FromImage(5, 7, crop=(0, 1, 5, 7))}}, OptionError, "not inside an image",
    ),
    "too few channels": ({"inputs": {0: FromImage(5, 7, 2)}}, OptionError, "2 channels for"),
    "half a pixel": ({"inputs": {0: FromImage(5.5, 7)}}, OptionError, "whole numbers"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_makes_no_sense(what: str) -> None:
    options, error, message = WRONG[what]
    with pytest.raises(error, match=message):
        converted(model(), **options)


def test_models_that_it_is_not_for() -> None:
    with pytest.raises(InputError, match="batch of 1"):
        converted(model((2, 5, 7, 3)), inputs={0: FromLayout()})
    tensors = [TensorSpec("x", (300,)), TensorSpec("y", (300,))]
    flat = write_model(ModelSpec(tensors, [OperatorSpec("RELU", {}, (0,), (1,))], (0,), (1,)))
    with pytest.raises(OptionError, match="300 classes are too many"):
        converted(flat, outputs={1: ToClasses()})
    with pytest.raises(InputError, match="images of 4 dimensions"):
        converted(flat, inputs={0: FromImage(5, 7)})
    tensors = [TensorSpec(n, (3,), DType.I32) for n in "xy"]
    whole = write_model(ModelSpec(tensors, [OperatorSpec("ABS", {}, (0,), (1,))], (0,), (1,)))
    with pytest.raises(InputError, match="is i32 without one scale; converters are for f32"):
        converted(whole, inputs={0: FromBytes()})
    with pytest.raises(InputError, match="FromFloats: 'image' is f32 as it is"):
        converted(model(), inputs={0: FromFloats()})
    with pytest.raises(InputError, match="ToFloats: 'scores' is f32 as it is"):
        converted(model(), outputs={3: ToFloats()})
    with pytest.raises(ModelError):
        converted(b"nothing", inputs={0: FromBytes()})
