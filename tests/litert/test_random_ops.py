"""Random numbers are those of LiteRT's own generators: of one seed the same, and going on from run
to run as there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.litert.litert_models import LITERT
from tests.running import allocate_and_run, allocated, set_and_run
from tests.small_models import small_model, tensor_of

SEEDS = {"seed": 1234, "seed2": 7}
SHAPE = np.array([3, 5], np.int32)


def drawn(name: str, fields: dict[str, int]) -> bytes:
    """``x + numbers``, so that a device has something to do as well."""
    shape = TensorSpec("shape", (2,), DType.I32, SHAPE)
    tensors = [TensorSpec("x", (3, 5)), shape, TensorSpec("r", (3, 5)), TensorSpec("y", (3, 5))]
    ops = [OperatorSpec(name, fields, [1], [2]), OperatorSpec("ADD", {}, [0, 2], [3])]
    return write_model(ModelSpec(tensors, ops, [0], [3]))


def chosen(fields: dict[str, int]) -> bytes:
    """Classes by the logarithms of their odds."""
    return small_model(
        {
            "x": (3, 5),
            "n": tensor_of((), DType.I32, np.array(11, np.int32)),
            "y": tensor_of((3, 11), DType.I32),
        },
        ("y = MULTINOMIAL(x, n)", fields),
    )


def model(name: str, fields: dict[str, int]) -> bytes:
    return chosen(fields) if name == "MULTINOMIAL" else drawn(name, fields)


def runs(interpreter: Any, count: int = 3) -> list[Any]:
    interpreter.allocate_tensors()
    (x,), (y,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.set_tensor(x["index"], np.linspace(-2, 2, 15, dtype=np.float32).reshape(3, 5))
    found = []
    for _ in range(count):
        interpreter.invoke()
        found.append(interpreter.get_tensor(y["index"]))
    return found


NAMES = ["RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL"]


@pytest.mark.parametrize("name", NAMES)
def test_of_one_seed_as_litert_run_after_run(name: str, delegate: tflgpu.GpuDelegate) -> None:
    from ai_edge_litert.interpreter import Interpreter as LiteRT

    content = model(name, SEEDS)
    with tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours:
        found = runs(ours)
        (refusal,) = [r for r in ours.report.refusals if r.op == name]
    assert refusal.runs_on.startswith(LITERT)
    wanted = runs(LiteRT(model_content=content))
    assert not np.array_equal(wanted[0], wanted[1]), "the generator does not go on"
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "state", "dtype"),
    [
        (0, (0xFEDCBA9876543210, 5), DType.U32),
        (1, (0xFEDCBA9876543210, 7, 0x1234567890ABCDEF), DType.I32),
        (1, (3, 0xFFFFFFFE), DType.U32),
        (2, (0xFEDCBA9876543210, 0xFFFFFFFF), DType.I32),
    ],
)
def test_random_bits_as_litert(
    algorithm: int, state: tuple[int, ...], dtype: DType, delegate: tflgpu.GpuDelegate
) -> None:
    """The numbers of a state are LiteRT's, and the device computes with them."""
    from ai_edge_litert.interpreter import Interpreter as LiteRT

    name, u64 = "STABLEHLO_RNG_BIT_GENERATOR", DType.U64
    content = small_model(
        {
            "state": tensor_of((len(state),), u64),
            "after": tensor_of((len(state),), u64),
            "bits": tensor_of((3, 5), dtype),
            "r": (3, 5),
            "x": (3, 5),
            "y": (3, 5),
        },
        (f"after, bits = {name}(state)", {"algorithm": algorithm}),
        "r = CAST(bits)",
        "y = ADD(r, x)",
    )
    given = [np.array(state, np.uint64), np.linspace(-2, 2, 15, dtype=np.float32).reshape(3, 5)]
    found = []
    with tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours:
        for interpreter in (ours, LiteRT(model_content=content)):
            interpreter.allocate_tensors()
            for detail, array in zip(interpreter.get_input_details(), given, strict=True):
                interpreter.set_tensor(detail["index"], array)
            interpreter.invoke()
            found.append(
                [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
            )
        (refusal,) = [r for r in ours.report.refusals if r.op == name]
    assert refusal.runs_on.startswith(LITERT)
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert (found[0][0] != given[0]).any()


def test_without_litert_they_are_refused() -> None:
    """Other numbers than LiteRT's would be something else than the model says."""
    content = model("RANDOM_UNIFORM", SEEDS)
    interpreter = tflgpu.Interpreter(
        model_content=content, experimental_delegates=[], cpu_backend="cpu_ref"
    )
    with interpreter, pytest.raises(tflgpu.UnsupportedError, match="RANDOM_UNIFORM is not defined"):
        interpreter.allocate_tensors()


def drawn_late(name: str, seeds: dict[str, int]) -> bytes:
    """Numbers of a shape, or as many as, an input says."""
    if name == "MULTINOMIAL":
        tensors = [
            TensorSpec("x", (3, 5)),
            TensorSpec("n", (), DType.I32),
            TensorSpec("y", (3, 4), DType.I32),
        ]
        return write_model(
            ModelSpec(tensors, [OperatorSpec(name, seeds, [0, 1], [2])], [0, 1], [2])
        )
    tensors = [TensorSpec("n", (2,), DType.I32), TensorSpec("r", (1, 1)), TensorSpec("y", (1, 1))]
    ops = [OperatorSpec(name, seeds, [0], [1]), OperatorSpec("ABS", {}, [1], [2])]
    return write_model(ModelSpec(tensors, ops, [0], [2]))


@pytest.mark.parametrize("name", NAMES)
def test_a_shape_that_comes_at_run_time(name: str) -> None:
    """What is compiled for each shape begins with its seeds anew, so fixed ones are refused."""
    few = np.array(7, np.int32) if name == "MULTINOMIAL" else np.array([2, 3], np.int32)

    def ready(seeds: dict[str, int]) -> Any:
        found = allocated(tflgpu.Interpreter(model_content=drawn_late(name, seeds)))
        details = {d["name"]: d["index"] for d in found.get_input_details()}
        if "x" in details:
            found.set_tensor(details["x"], np.zeros((3, 5), np.float32))
        return found, details["n"]

    interpreter, number = ready({})
    output, found = interpreter.get_output_details()[0]["index"], []
    with interpreter:
        for count in (few, few, few + 1, few):
            set_and_run(interpreter, {number: count})
            found.append(interpreter.get_tensor(output))
            rows = (3, int(count)) if name == "MULTINOMIAL" else tuple(count)
            assert found[-1].shape == rows
        interpreter.set_tensor(number, -few)
        with pytest.raises(tflgpu.TflgpuError):
            interpreter.invoke()
    assert not np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[3])
    interpreter, number = ready(SEEDS)
    interpreter.set_tensor(number, few)
    with interpreter, pytest.raises(tflgpu.UnsupportedError, match="fixed seeds"):
        interpreter.invoke()


def test_without_seeds_two_draw_different_numbers() -> None:
    tensors = [TensorSpec("n", (1,), DType.I32), TensorSpec("r", (1,))]
    content = write_model(ModelSpec(tensors, [OperatorSpec(NAMES[0], {}, [0], [1])], [0], [1]))
    found = []
    for _ in range(2):
        with tflgpu.Interpreter(model_content=content) as interpreter:
            allocate_and_run(interpreter, {0: np.array([500], np.int32)})
            found.append(interpreter.get_tensor(1))
    assert not np.array_equal(*found)
    for numbers in found:
        assert numbers.min() >= 0
        assert numbers.max() < 1
        assert abs(float(numbers.mean()) - 0.5) < 0.1  # eight deviations
