"""What f16 cannot hold is said, and mended where that is asked for; and operators that other GPU
runtimes have computed wrong are right here: a sum beyond f16, PAD of three dimensions, and the
attention and the products of a mask decoder."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import OptionError
from tflgpu.ir.dtypes import DType
from tflgpu.options.accuracy import AccuracyGuard, GuardSetting
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, outputs

#: Sums of 256 of these are 76800, 38400, 69120, 7680 and 84480; f16 ends at 65504.
LEVELS = np.array([300, 150, 270, 30, 330], np.float32)
X = np.broadcast_to(LEVELS, (1, 16, 16, 5)).copy()
DEVICES = {"cpu_ref": 1, "vulkan": 0, "wgpu": 0, "opencl": 0}


def mean() -> bytes:
    """The mean over an image as SUM and MUL, as squeeze-and-excite blocks are exported."""
    tensors = [
        TensorSpec("x", X.shape),
        TensorSpec("axes", (2,), DType.I32, np.array([1, 2], np.int32)),
        TensorSpec("sum", (1, 5)),
        TensorSpec("share", (), data=np.float32(1 / 256)),
        TensorSpec("y", (1, 5)),
    ]
    operators = [OperatorSpec("SUM", {}, (0, 1), (2,)), OperatorSpec("MUL", {}, (2, 3), (4,))]
    return write_model(ModelSpec(tensors, operators, (0,), (4,)))


def on_a_device(content: bytes, inputs: Any, **options: Any) -> tuple[Any, Any]:
    """Outputs, and the report after the run."""
    with (
        tflgpu.GpuDelegate(**options) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as one,
    ):
        allocate_and_run(one, inputs)
        return outputs(one), one.report


# A sum beyond f16


def test_a_sum_that_overflows_is_found_and_mended(caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"backend": "cpu_ref", "device": 1, "precision": "f16"}
    (plain,), _ = on_a_device(mean(), [X], **options)
    np.testing.assert_array_equal(np.isinf(plain[0]), [True, False, True, False, True])
    with caplog.at_level(logging.WARNING, "tflgpu"):
        (mended,), report = on_a_device(mean(), [X], **options, accuracy_guard="overflow")
    np.testing.assert_allclose(mended[0], LEVELS, rtol=2e-3)
    assert "3 of 5 values are NaN or infinite" in caplog.text
    assert "#0 SUM" in caplog.text
    assert report.accuracy.outcome.value == "redone"
    (exact,), report = on_a_device(mean(), [X], backend="cpu_ref", device=1, precision="f32")
    np.testing.assert_allclose(exact[0], LEVELS, rtol=1e-6)


def test_finite_results_are_not_compared(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tflgpu.runtime.guard.guard import Guard

    monkeypatch.delattr(Guard, "_run_reference")  # no run on the CPU
    options: dict[str, Any] = {"backend": "cpu_ref", "device": 1, "precision": "f16"}
    with caplog.at_level(logging.WARNING, "tflgpu"):
        (found,), report = on_a_device(mean(), [X / 4], **options, accuracy_guard="overflow")
    np.testing.assert_allclose(found[0], LEVELS / 4, rtol=2e-3)
    assert not caplog.records
    assert (report.accuracy.outcome.value, report.accuracy.runs) == ("unchecked", 1)
    assert "no result is infinite or NaN" in report.accuracy.story


def test_infinities_that_the_cpu_has_too_are_none_of_f16(caplog: pytest.LogCaptureFixture) -> None:
    x = X.copy()
    x[0, 0, 0, 1] = np.inf
    options: dict[str, Any] = {"backend": "cpu_ref", "device": 1, "precision": "f16"}
    with caplog.at_level(logging.WARNING, "tflgpu"):
        (found,), report = on_a_device(mean(), [x / 8], **options, accuracy_guard="overflow")
    assert np.isinf(found[0, 1])
    assert report.accuracy.outcome.value == "accurate"
    assert not caplog.records


def test_check_says_so_by_itself() -> None:
    result = tflgpu.check(mean(), [X], backend="cpu_ref", device=1, precision="f16")
    assert not result.agrees
    assert "3 values are NaN or infinite, and finite on the CPU; f16 ends at 65504" in str(result)
    assert "accuracy_guard=overflow" in str(result)
    assert result.layer is not None
    assert result.layer.op == "SUM"


def test_the_option_as_text() -> None:
    kind = GuardSetting()
    guard = kind.read("accuracy_guard", "Overflow")
    assert guard == AccuracyGuard(only_overflow=True)
    shown = "runs=1,tolerance=0.05,on_failure=cpu,only_overflow=true"
    assert kind.shown(guard) == shown
    assert kind.read("accuracy_guard", shown) == guard
    with pytest.raises(OptionError, match="only_overflow"):
        AccuracyGuard(only_overflow="perhaps")  # type: ignore[arg-type]


# PAD of three dimensions


@pytest.mark.parametrize("backend", DEVICES)
@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize(
    ("shape", "axis", "pad"),
    [((16, 32, 1), 1, (0, 32)), ((16, 32, 8), 0, (0, 4)), ((1, 61, 32), 2, (4, 0))],
)
def test_pad_of_three_dimensions(
    require_backend: Any, backend: str, precision: str, shape: Any, axis: int, pad: Any
) -> None:
    require_backend(backend)
    widths = np.zeros((3, 2), np.int32)
    widths[axis] = pad
    x = (np.arange(np.prod(shape), dtype=np.float32) % 1000 + 1).reshape(shape)
    wanted = np.pad(x, [tuple(row) for row in widths.tolist()])
    tensors = [TensorSpec("x", shape), TensorSpec("p", (3, 2), DType.I32, widths)]
    tensors.append(TensorSpec("y", wanted.shape))
    content = write_model(ModelSpec(tensors, [OperatorSpec("PAD", {}, (0, 1), (2,))], (0,), (2,)))
    options = {"backend": backend, "device": DEVICES[backend], "precision": precision}
    (found,), report = on_a_device(content, [x], **options)
    assert report.fully_delegated
    np.testing.assert_array_equal(found, wanted)


# A mask decoder

TOKENS, PIXELS, HEADS, WIDTH = 7, 150, 4, 32


def mask_decoder() -> bytes:
    """Tokens attend to the pixels of an image, with heads along the first of three dimensions, and
    are multiplied by the pixels: masks."""
    rng = np.random.default_rng(0)
    tensors: list[TensorSpec] = []
    operators: list[OperatorSpec] = []
    depth = WIDTH // HEADS

    def tensor(
        name: str, shape: tuple[int, ...], data: Any = None, dtype: DType = DType.F32
    ) -> int:
        tensors.append(TensorSpec(name, shape, dtype, data))
        return len(tensors) - 1

    def op(name: str, inputs: tuple[int, ...], shape: tuple[int, ...], **fields: Any) -> int:
        made = tensor(f"t{len(tensors)}", shape)
        operators.append(OperatorSpec(name, fields, inputs, (made,)))
        return made

    def ints(*values: int) -> int:
        return tensor(f"i{len(tensors)}", (len(values),), np.array(values, np.int32), DType.I32)

    def linear(x: int, count: int) -> int:
        weights = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
        bias = rng.standard_normal(WIDTH).astype(np.float32)
        made = (tensor("w", weights.shape, weights), tensor("b", (WIDTH,), bias))
        return op("FULLY_CONNECTED", (x, *made), (1, count, WIDTH), keep_num_dims=True)

    def heads(x: int, count: int) -> int:
        x = op("RESHAPE", (x, ints(count, HEADS, depth)), (count, HEADS, depth))
        return op("TRANSPOSE", (x, ints(1, 0, 2)), (HEADS, count, depth))

    tokens, image = tensor("tokens", (1, TOKENS, WIDTH)), tensor("image", (1, PIXELS, WIDTH))
    q, k, v = (
        heads(linear(x, n), n) for x, n in ((tokens, TOKENS), (image, PIXELS), (image, PIXELS))
    )
    scores = op("BATCH_MATMUL", (q, k), (HEADS, TOKENS, PIXELS), adj_y=True)
    scale = tensor("scale", (), np.float32(depth**-0.5))
    scores = op("MUL", (scores, scale), (HEADS, TOKENS, PIXELS))
    shares = op("SOFTMAX", (scores,), (HEADS, TOKENS, PIXELS), beta=1.0)
    mixed = op("BATCH_MATMUL", (shares, v), (HEADS, TOKENS, depth))
    mixed = op("TRANSPOSE", (mixed, ints(1, 0, 2)), (TOKENS, HEADS, depth))
    mixed = op("RESHAPE", (mixed, ints(1, TOKENS, WIDTH)), (1, TOKENS, WIDTH))
    mixed = op("ADD", (linear(mixed, TOKENS), tokens), (1, TOKENS, WIDTH))
    masks = op("BATCH_MATMUL", (mixed, image), (1, TOKENS, PIXELS), adj_y=True)
    return write_model(ModelSpec(tensors, operators, (tokens, image), (mixed, masks)))


@pytest.mark.parametrize("backend", DEVICES)
@pytest.mark.parametrize(("precision", "limit"), [("f32", 1e-5), ("f16", 1e-2)])
def test_a_mask_decoder(require_backend: Any, backend: str, precision: str, limit: float) -> None:
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    require_backend(backend)
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal((1, n, WIDTH)).astype(np.float32) for n in (TOKENS, PIXELS)]
    theirs = litert.Interpreter(model_content=mask_decoder())
    allocate_and_run(theirs, inputs)
    options = {"backend": backend, "device": DEVICES[backend], "precision": precision}
    found, report = on_a_device(mask_decoder(), inputs, **options)
    assert report.fully_delegated
    for mine, its in zip(found, outputs(theirs), strict=True):
        assert np.corrcoef(mine.ravel(), its.ravel())[0, 1] > 0.9999
        assert np.abs(mine - its).max() < limit * np.abs(its).max()
