"""What the tests of layers as litert-torch writes them have in common: they are compiled and run
with a pass and without it, and held against LiteRT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.devices import targets
from tflgpu.ir.dtypes import Array, DType
from tflgpu.passes import find_attention
from tflgpu.runtime.opening import compiled_on
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model

from tests.compiler.test_found_attention import Building
from tests.running import allocate_and_run, outputs

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


def drawn(content: bytes) -> list[Array]:
    graph, rng = read_model(content).subgraphs[0], np.random.default_rng(5)
    shapes = [graph.tensors[i].shape for i in graph.inputs]
    return [rng.uniform(-2, 2, shape).astype(np.float32) for shape in shapes]


def ops(content: bytes) -> list[str]:
    """The operators that are left."""
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1, enable_serialization=False) as delegate:
        graph = build_graph(read_model(content), 0, delegate.provider.ops)
        return [node.op for node in compiled_on(graph, delegate.provider).graph]


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
    if name == "find_attention":
        patch.setattr(find_attention, "run", lambda *_: frozenset())
        return
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


def dense(b: Building, x: int, units: int) -> int:
    rng = np.random.default_rng(4)
    weights = b.const(rng.normal(size=(units, b.shape(x)[-1])))
    made = (int(np.prod(b.shape(x)[:-1])), units)
    return b.op("FULLY_CONNECTED", [x, weights, b.const(rng.normal(size=units))], made)


def mean(b: Building, x: int, *axes: int) -> int:
    """One that leaves out its axes."""
    shape = [size for axis, size in enumerate(b.shape(x)) if axis not in axes]
    return b.op("MEAN", [x, b.const(axes, DType.I32)], shape)
