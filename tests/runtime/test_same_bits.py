"""The same model, options and device give the same bits: in every run and process, and for an item
of a batch, whatever the others are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflgpu import GpuDelegate, Interpreter
from tflgpu.ir.dtypes import DType
from tflgpu.plugins.registry import registry

from tests.running import allocated, results
from tests.small_models import small_model, tensor_of

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "core" / "tflgpu" / "demo" / "digits.tflite"
#: The first compiles, and the second finds its programs kept.
PROCESSES = 20 if os.environ.get("TFLGPU_TEST_EVERYTHING") else 2
CONV = {"stride_h": 1, "stride_w": 1, "padding": 0, "fused_activation_function": 1}


def sums() -> bytes:
    """Sums long enough that several threads share one: of a convolution, a mean, a matrix product
    and a softmax."""
    rng = np.random.default_rng(1)

    def drawn(*shape: int) -> Any:
        return tensor_of(shape, data=rng.standard_normal(shape).astype(np.float32))

    return small_model(
        {
            "image": (1, 9, 9, 37),
            "filter": drawn(24, 3, 3, 37),
            "features": (1, 9, 9, 24),
            "axes": tensor_of((2,), DType.I32, data=np.array([1, 2], np.int32)),
            "means": (1, 24),
            "flat": (1, 1944),
            "weights": drawn(50, 1944),
            "logits": (1, 50),
            "scores": (1, 50),
        },
        ("features = CONV_2D(image, filter, -)", CONV),
        ("means = MEAN(features, axes)", {"keep_dims": False}),
        ("flat = RESHAPE(features)", {"new_shape": (1, 1944)}),
        "logits = FULLY_CONNECTED(flat, weights, -)",
        ("scores = SOFTMAX(logits)", {"beta": 0.01}),
        outputs="means logits scores",
    )


def test_in_every_process(tmp_path: Path) -> None:
    names = ("vulkan", "opencl", "wgpu", "cpu_ref", "litert")
    backends = [name for name in names if registry().probe(name).available]
    (tmp_path / "sums.tflite").write_bytes(sums())
    command = [sys.executable, "-m", "benchmarks.same_bits", "--processes", str(PROCESSES)]
    command += ["--precision", "f16", "--backends", *backends]
    command += ["--models", str(tmp_path / "sums.tflite"), str(DIGITS)]
    env = {**os.environ, "TFLGPU_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the same bits") == 2 * len(backends), done.stdout


@pytest.mark.parametrize("backend", ["vulkan", "opencl", "wgpu", "cpu_ref"])
@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_an_item_beside_others(backend: str, precision: Any) -> None:
    """Also beside items that are not numbers."""
    rng = np.random.default_rng(2)
    items = rng.standard_normal((4, 9, 9, 37)).astype(np.float32)
    with (
        GpuDelegate(backend=backend, precision=precision) as delegate,
        Interpreter(
            model_content=sums(), experimental_delegates=[delegate], batch=4
        ) as interpreter,
    ):
        allocated(interpreter)
        found = results(interpreter, [items])
        for place in range(4):
            for others in (rng.standard_normal(items.shape), np.full(items.shape, np.nan)):
                batch = others.astype(np.float32)
                batch[place] = items[place]
                for mine, alike in zip(results(interpreter, [batch]), found, strict=True):
                    np.testing.assert_array_equal(mine[place], alike[place])
