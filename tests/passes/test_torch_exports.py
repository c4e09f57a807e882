"""Layers as litert-torch writes them: how many kernels they are, with a pass and without it, and
that all give what LiteRT gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.devices import targets
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.read import read_model

from tests.compiler.test_found_attention import Building
from tests.running import allocate_and_run, outputs

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


def drawn(content: bytes) -> list[Array]:
    graph, rng = read_model(content).subgraphs[0], np.random.default_rng(5)
    shapes = [graph.tensors[i].shape for i in graph.inputs]
    return [rng.uniform(-2, 2, shape).astype(np.float32) for shape in shapes]


def ran(content: bytes, given: Sequence[Array], **options: Any) -> tuple[list[Array], int]:
    """Results of the NumPy interpreter of kernels, and how many kernels there were."""
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, enable_serialization=False) as delegate,
        tflgpu.Interpreter(
            model_content=content, experimental_delegates=[delegate], **options
        ) as interpreter,
    ):
        allocate_and_run(interpreter, given)
        assert interpreter.report.fully_delegated
        return outputs(interpreter), interpreter.report.dispatches


def without(patch: pytest.MonkeyPatch, name: str) -> None:
    """Compile without a pass."""
    every = targets.default_passes
    patch.setattr(
        targets, "default_passes", lambda more=(): [p for p in every(more) if p.name != name]
    )


def check(
    content: bytes, kernels: int, off: str, patch: pytest.MonkeyPatch, rtol: float = 3e-6
) -> None:
    """As many kernels, more without the pass ``off``, and results like LiteRT's with it and
    without."""
    given = drawn(content)
    theirs = litert.Interpreter(model_content=content)
    allocate_and_run(theirs, given)
    found, count = ran(content, given)
    assert count == kernels
    with patch.context() as here:
        without(here, off)
        plain, count = ran(content, given)
    assert count > kernels
    for expected, *ours in zip(outputs(theirs), found, plain, strict=True):
        for one in ours:
            scale = float(np.abs(expected).max())
            np.testing.assert_allclose(one, expected, rtol=0, atol=rtol * scale)


def mean(b: Building, x: int, *axes: int) -> int:
    """One that leaves out its axes."""
    shape = [size for axis, size in enumerate(b.shape(x)) if axis not in axes]
    return b.op("MEAN", [x, b.const(axes, DType.I32)], shape)


# Normalization


def rms(shape: tuple[int, ...] = (2, 5, 8), *, axis: int = 2, again: int | None = None) -> bytes:
    """T5's: the mean leaves out its axis, which comes back behind the epsilon."""
    b = Building()
    x = b.given(*shape)
    total = b.with_("ADD", mean(b, b.with_("MUL", x, x), axis), b.const(1e-5))
    kept = [1 if at == (axis if again is None else again) else s for at, s in enumerate(shape)]
    root = b.reshaped(total, *kept)
    y = b.with_("MUL", x, b.op("RSQRT", [root], kept))
    return b.model(b.with_("MUL", y, b.const(np.linspace(0.5, 2, shape[-1]))))


def layer(shape: tuple[int, ...] = (1, 5, 8)) -> bytes:
    """Moments over the first axis, of size 1, and the last one."""
    b = Building()
    x, kept = b.given(*shape), (*shape[:-1], 1)
    average = mean(b, x, 0, 2)
    squares = b.with_("SQUARED_DIFFERENCE", x, b.reshaped(average, *kept))
    total = b.with_("ADD", mean(b, squares, 0, 2), b.const(1e-5))
    root = b.op("RSQRT", [total], b.shape(total))
    shift = b.with_("SUB", b.const(0.0), b.with_("MUL", average, root))
    y = b.with_("MUL", x, b.reshaped(root, *kept))
    return b.model(b.with_("ADD", y, b.reshaped(shift, *kept)))


def test_rms_norm_whose_mean_leaves_out_its_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    check(rms(), 1, "keep_dims", monkeypatch)


def test_a_mean_of_another_axis_than_comes_back_stays() -> None:
    content = rms((2, 5, 5), axis=1, again=2)
    _, kernels = ran(content, drawn(content))
    assert kernels > 2


def test_layer_norm_over_an_axis_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    check(layer(), 1, "keep_dims", monkeypatch)


def test_layer_norm_of_several_items() -> None:
    content = layer()
    given = np.random.default_rng(1).normal(size=(3, 5, 8)).astype(np.float32)
    (found,), kernels = ran(content, [given], batch=3)
    assert kernels == 1
    for item, ours in zip(given, found, strict=True):
        theirs = litert.Interpreter(model_content=content)
        allocate_and_run(theirs, [item[None]])
        np.testing.assert_allclose(ours, outputs(theirs)[0][0], rtol=0, atol=1e-5)
