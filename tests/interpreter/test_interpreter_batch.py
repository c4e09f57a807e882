"""``batch=N``: a batch of a model for one item, held against as many runs of one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run
from tests.small_models import small_model, tensor_of

HEIGHT, WIDTH, CHANNELS = 5, 6, 3
CONV = {"stride_h": 1, "stride_w": 1, "padding": 0, "fused_activation_function": 1}


def classifier(*, dtype: DType = DType.F32, open_height: bool = False) -> bytes:
    """CONV_2D, MEAN, a RESHAPE to [1, 4], SOFTMAX; of 8 bits where ``dtype`` says so."""
    rng = np.random.default_rng(3)
    whole = dtype is DType.I8

    def scale(value: float, zero: int = 0) -> Quantization | None:
        return Quantization((value,), (zero,)) if whole else None

    weights = rng.uniform(-1, 1, (4, 3, 3, CHANNELS))
    bias = rng.uniform(-0.5, 0.5, 4)
    signature = (1, -1, WIDTH, CHANNELS) if open_height else None
    return small_model(
        {
            "image": tensor_of(
                (1, HEIGHT, WIDTH, CHANNELS),
                dtype,
                quantization=scale(1 / 127),
                shape_signature=signature,
            ),
            "weights": tensor_of(
                weights.shape,
                dtype,
                quantization=scale(1 / 127),
                data=(weights * 127).astype(np.int8) if whole else weights.astype(np.float32),
            ),
            "bias": tensor_of(
                (4,),
                DType.I32 if whole else DType.F32,
                quantization=scale(127**-2),
                data=(bias * 127**2).astype(np.int32) if whole else bias.astype(np.float32),
            ),
            "features": tensor_of((1, HEIGHT, WIDTH, 4), dtype, quantization=scale(1 / 32)),
            "axes": tensor_of((2,), DType.I32, data=np.array([1, 2], np.int32)),
            "mean": tensor_of((1, 1, 1, 4), dtype, quantization=scale(1 / 64)),
            "shape": tensor_of((2,), DType.I32, data=np.array([1, 4], np.int32)),
            "row": tensor_of((1, 4), dtype, quantization=scale(1 / 64)),
            "scores": tensor_of((1, 4), dtype, quantization=scale(1 / 256, -128)),
        },
        ("features = CONV_2D(image, weights, bias)", CONV, {"version": 3 if whole else 1}),
        ("mean = MEAN(features, axes)", {"keep_dims": True}, {"version": 2 if whole else 1}),
        ("row = RESHAPE(mean, shape)", {"new_shape": (1, 4)}),
        ("scores = SOFTMAX(row)", {"beta": 1.0}, {"version": 2 if whole else 1}),
        outputs="features scores",
    )


def gather() -> bytes:
    """Two inputs, one of indices; a RESHAPE whose shape is only in the options."""
    table = np.random.default_rng(4).standard_normal((9, 4)).astype(np.float32)
    return small_model(
        {
            "words": tensor_of((1, 5), DType.I32),
            "table": tensor_of((9, 4), data=table),
            "found": (1, 5, 4),
            "flat": (1, 20),
            "factor": (1, 1),
            "out": (1, 20),
        },
        ("found = GATHER(table, words)", {"axis": 0}),
        ("flat = RESHAPE(found)", {"new_shape": (1, 20)}),
        "out = MUL(flat, factor)",
    )


def stateful() -> bytes:
    """SVDF, which remembers."""
    rng = np.random.default_rng(0)
    fields = {"rank": 1, "fused_activation_function": 0}
    return small_model(
        {
            "x": (1, 3),
            "features": tensor_of((4, 3), data=rng.standard_normal((4, 3)).astype(np.float32)),
            "time": tensor_of((4, 2), data=rng.standard_normal((4, 2)).astype(np.float32)),
            "memory": tensor_of((1, 8), is_variable=True),
            "y": (1, 4),
        },
        ("y = SVDF(x, features, time, -, memory)", fields),
    )


MODELS = {
    "floats": classifier(), "8 bits": classifier(dtype=DType.I8), "two inputs": gather(),
}  # fmt: skip
WHERE: dict[str, Mapping[str, Any]] = {
    "numpy": {"backend": "cpu_ref"},
    "kernels": {"backend": "cpu_ref", "device": 1},
    "vulkan": {"backend": "vulkan"},
    "cpu": {},
}


def inputs(content: bytes, count: int, seed: int = 1) -> list[Array]:
    rng = np.random.default_rng(seed)
    found = []
    with tflgpu.Interpreter(model_content=content, experimental_delegates=[]) as one:
        for detail in one.get_input_details():
            shape = (count, *detail["shape"][1:])
            if detail["dtype"] is np.int32:
                found.append(rng.integers(0, 9, shape, np.int32))
            elif detail["dtype"] is np.int8:
                found.append(rng.integers(-127, 128, shape, np.int8))
            else:
                found.append(rng.standard_normal(shape).astype(np.float32))
    return found


def model_of(content: bytes, where: str, **more: Any) -> tflgpu.Model:
    if where == "vulkan":
        pytest.importorskip("tflgpu_vulkan")
    return tflgpu.Model(content, **{**WHERE[where], **more})


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", MODELS)
def test_a_batch_gives_what_runs_of_one_give(name: str, where: str) -> None:
    arrays = inputs(MODELS[name], 3)
    with model_of(MODELS[name], where) as one, model_of(MODELS[name], where, batch=3) as three:
        assert three.report.total_nodes == one.report.total_nodes
        assert three.report.partitions == one.report.partitions
        alone, together = one(*arrays), three(*arrays)
    for mine, theirs in zip(together, alone, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        if mine.dtype == np.float32:
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(mine, theirs)
        assert not np.array_equal(mine[0], mine[1])


def test_details_and_signatures_say_the_batch() -> None:
    with tflgpu.Interpreter(
        model_content=MODELS["floats"], experimental_delegates=[], batch=4
    ) as interpreter:
        (source,) = interpreter.get_input_details()
        assert source["shape"].tolist() == source["shape_signature"].tolist() == [4, 5, 6, 3]
        assert [d["shape"].tolist() for d in interpreter.get_output_details()] == [
            [4, HEIGHT, WIDTH, 4], [4, 4],
        ]  # fmt: skip
        assert interpreter.get_tensor_details()[7]["shape"].tolist() == [4, 4]
        interpreter.allocate_tensors()
        with pytest.raises(tflgpu.InputError, match=r"has shape \[4, 5, 6, 3\]"):
            interpreter.set_tensor(0, np.zeros((1, 5, 6, 3), np.float32))
        flying = interpreter.invoke_async({0: np.ones((4, 5, 6, 3), np.float32)})
        assert flying.results()[1].shape == (4, 4)


def test_other_batches_by_resizing() -> None:
    """And other heights, where the model has an open one."""
    content = classifier(open_height=True)
    (image,) = inputs(content, 2)
    taller = np.concatenate([image, image], axis=1)
    with (
        tflgpu.Interpreter(
            model_content=content, experimental_delegates=[], batch=4
        ) as interpreter,
        tflgpu.Model(content, backend="cpu_ref") as one,
    ):
        interpreter.resize_tensor_input(0, taller.shape)
        allocate_and_run(interpreter, {0: taller})
        scores = interpreter.get_tensor(interpreter.get_output_details()[1]["index"])
        np.testing.assert_allclose(scores, one(taller)["scores"], rtol=1e-5, atol=1e-6)
        for shape, why in (((0, 5, 6, 3), "number of items, from 1"), ((2, 5, 6), "CONV_2D")):
            interpreter.resize_tensor_input(0, shape)
            with pytest.raises(tflgpu.AllocationError, match=why):
                interpreter.allocate_tensors()


def test_inputs_of_different_batches_do_not_fit() -> None:
    with tflgpu.Interpreter(
        model_content=MODELS["two inputs"], experimental_delegates=[], batch=2
    ) as interpreter:
        interpreter.resize_tensor_input(0, (3, 5))
        with pytest.raises(tflgpu.AllocationError, match=r"'words'\): 3, .*'factor'\): 2"):
            interpreter.allocate_tensors()


@pytest.mark.parametrize("total", [0, 1, 3, 4, 7, 8])
def test_a_model_takes_any_number_of_items(total: int) -> None:
    words, factor = inputs(MODELS["two inputs"], total)
    with (
        tflgpu.Model(MODELS["two inputs"], backend="cpu_ref") as one,
        tflgpu.Model(MODELS["two inputs"], backend="cpu_ref", batch=4) as four,
    ):
        np.testing.assert_array_equal(four(words, factor)[0], one(words, factor)[0])
        # An array with a single item is for each of the others.
        same = np.full((1, 1), 2, np.float32)
        np.testing.assert_array_equal(four(words, same)[0], one(words, same)[0])


def test_a_model_says_what_does_not_fit() -> None:
    words, factor = inputs(MODELS["two inputs"], 3)
    with tflgpu.Model(MODELS["two inputs"], backend="cpu_ref", batch=2) as model:
        with pytest.raises(tflgpu.InputError, match=r"different sizes: \[2, 3\]"):
            model(words, factor[:2])
        with pytest.raises(tflgpu.InputError, match=r"shape \[3, 4\] for input 'words'"):
            model(words[:, :4], factor)
        assert model(words, factor)[0].shape == (3, 20)


def test_a_shape_that_is_a_number_is_of_one_item() -> None:
    """y = x * (the batch, as the model sees it): 1 of each item, however many are computed at once.
    By resizing its input the same file gives another answer."""

    def ints(name: str, *values: int) -> TensorSpec:
        return TensorSpec(name, (len(values),), DType.I32, data=np.array(values, np.int32))

    tensors = [
        TensorSpec("x", (1, 3), shape_signature=(-1, 3)), TensorSpec("shape", (2,), DType.I32),
        ints("begin", 0), ints("end", 1), ints("step", 1), TensorSpec("first", (1,), DType.I32),
        TensorSpec("number", (1,)), TensorSpec("y", (1, 3), shape_signature=(-1, 3)),
    ]  # fmt: skip
    steps = [
        OperatorSpec("SHAPE", {"out_type": DType.I32.tflite}, [0], [1]),
        OperatorSpec("STRIDED_SLICE", {}, [1, 2, 3, 4], [5]),
        OperatorSpec("CAST", {}, [5], [6]),
        OperatorSpec("MUL", {}, [0, 6], [7]),
    ]
    content = write_model(ModelSpec(tensors, steps, [0], [7]))
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    with (
        tflgpu.Interpreter(model_content=content, experimental_delegates=[], batch=4) as batch,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[]) as resized,
    ):
        resized.resize_tensor_input(0, x.shape)
        for interpreter, factor in ((batch, 1), (resized, 4)):
            allocate_and_run(interpreter, {0: x})
            np.testing.assert_array_equal(interpreter.get_tensor(7), factor * x)


def test_every_tensor_of_a_batch_can_be_read() -> None:
    (image,) = inputs(MODELS["floats"], 3)
    with tflgpu.Interpreter(
        model_content=MODELS["floats"], experimental_delegates=[], batch=3,
        experimental_preserve_all_tensors=True,
    ) as interpreter:  # fmt: skip
        allocate_and_run(interpreter, {0: image})
        mean, row = interpreter.get_tensor(5), interpreter.get_tensor(7)
        assert (mean.shape, row.shape) == ((3, 1, 1, 4), (3, 4))
        np.testing.assert_array_equal(mean.reshape(3, 4), row)
        features = interpreter.get_tensor(3)
        np.testing.assert_allclose(features.mean((1, 2)), row, rtol=1e-5)


def test_batches_are_kept_apart_in_folders_of_compiled_models(tmp_path: Path) -> None:
    """What was compiled for one batch is not taken for another, nor for the file as it is."""
    (image,) = inputs(MODELS["floats"], 3)
    kept: dict[str, Any] = {
        "backend": "cpu_ref", "device": 1, "serialization_dir": tmp_path, "model_token": "scores",
    }  # fmt: skip
    with tflgpu.Model(MODELS["floats"], backend="cpu_ref") as one:
        wanted = one(image)["scores"]
    for batch in (1, 2, 3, 2, 1):
        with tflgpu.Model(MODELS["floats"], batch=batch, **kept) as model:
            found = model(image)["scores"]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert len(list((tmp_path / "scores" / "models").glob("*.tflgpu"))) == 3


def test_state_is_refused_by_name() -> None:
    with pytest.raises(tflgpu.UnsupportedError, match=r"batch=2 .*'memory'\) is state"):
        tflgpu.Interpreter(model_content=stateful(), batch=2)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "two"])
def test_a_batch_is_a_whole_number(wrong: Any) -> None:
    with pytest.raises(tflgpu.OptionError, match="batch"):
        tflgpu.Interpreter(model_content=MODELS["floats"], batch=wrong)
