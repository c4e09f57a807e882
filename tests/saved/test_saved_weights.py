"""Large weights of a saved model stay in the model's file."""

from __future__ import annotations

import numpy as np
import pytest
import tflgpu
from tflgpu.compiler.parts import Compiled
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.lowering.weights import Weights

from tests.running import allocate_and_run
from tests.saved.saved_models import bytes_of, compiled_small, through_bytes
from tests.small_models import small_model, tensor_of

UNITS = 300
RNG = np.random.default_rng(3)
HALVES = RNG.normal(size=(UNITS, UNITS)).astype(np.float16)
WHOLE = RNG.integers(-127, 128, (UNITS, UNITS)).astype(np.int8)
SCALES = Quantization(tuple(RNG.uniform(1e-3, 1e-2, UNITS)), (0,) * UNITS)


def halves() -> bytes:
    """Two products with the same f16 weights, which are two tensors."""
    shape = (UNITS, UNITS)
    return small_model(
        {
            "x": (1, UNITS), "a": tensor_of(shape, DType.F16, data=HALVES), "wa": shape,
            "b": tensor_of(shape, DType.F16, data=HALVES), "wb": shape,
            "y": (1, UNITS), "z": (1, UNITS),
        },
        "wa = DEQUANTIZE(a)", "wb = DEQUANTIZE(b)",
        "y = FULLY_CONNECTED(x, wa, -)", "z = FULLY_CONNECTED(y, wb, -)",
    )  # fmt: skip


def whole() -> bytes:
    """A product with 8-bit weights, a scale a row."""
    weights = tensor_of((UNITS, UNITS), DType.I8, data=WHOLE, quantization=SCALES)
    return small_model(
        {"x": (1, UNITS), "w": weights, "v": (UNITS, UNITS), "y": (1, UNITS)},
        "v = DEQUANTIZE(w)", "y = FULLY_CONNECTED(x, v, -)",
    )  # fmt: skip


def large(compiled: Compiled) -> list[Weights]:
    (plan,) = compiled.plans
    return [item for item in plan.constants.items if isinstance(item, Weights)]


@pytest.mark.parametrize(
    ("model", "real"),
    [(halves(), HALVES.astype(np.float32)), (whole(), SCALES.dequantize(WHOLE))],
    ids=["f16", "i8"],
)
def test_they_are_read_from_the_file_again(model: bytes, real: Array) -> None:
    graph, compiled, key = compiled_small(model)
    written = bytes_of(compiled, graph, key)
    assert len(written) < WHOLE.nbytes / 2
    found = through_bytes(compiled, graph, key)
    assert large(found)
    for mine in large(found):
        data = mine.array()
        np.testing.assert_array_equal(data.reshape(UNITS, UNITS), real.T)
        assert not data.flags.writeable and data.nbytes == mine.nbytes


def test_equal_ones_need_memory_once() -> None:
    _, compiled, _ = compiled_small(halves())
    (plan,) = compiled.plans
    assert len(large(compiled)) == 2
    alike = [i for i, item in enumerate(plan.constants.items) if isinstance(item, Weights)]
    assert [i in plan.own_constants for i in alike] == [True, False]
    _, other, _ = compiled_small(whole())
    assert large(other)[0].nbytes in (plan.constants.sizes[i] for i in alike)


def test_two_interpreters_share_them_on_a_device() -> None:
    x = RNG.normal(size=(1, UNITS)).astype(np.float32)
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        results, weights = [], []
        kept = []
        for _ in range(2):
            interpreter = tflgpu.Interpreter(
                model_content=halves(), experimental_delegates=[delegate]
            )
            allocate_and_run(interpreter, {interpreter.get_input_details()[0]["index"]: x})
            results.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))
            weights.append(delegate.memory.weights)
            kept.append(interpreter)
        assert weights[0] == weights[1] > HALVES.nbytes
        np.testing.assert_array_equal(*results)
        want = x @ HALVES.T.astype(np.float32) @ HALVES.T.astype(np.float32)
        np.testing.assert_allclose(results[0], want, rtol=1e-4, atol=1e-3)
