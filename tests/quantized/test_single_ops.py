"""Quantized operators one at a time: at most one step from what LiteRT's kernels compute by
default."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType

sys.path.insert(0, str(Path(__file__).parent))
from quantized_cases import CASES, Built, Case, build

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install tflgpu[litert]")

DTYPES = (DType.I8, DType.U8)
#: Ops that only move or choose elements, or follow TFLite's arithmetic: not one step is allowed.
EXACT = frozenset(
    {"ADD", "SUB", "MUL", "SQUARED_DIFFERENCE", "PRELU", "RESIZE_BILINEAR", "AVERAGE_POOL_2D",
    "CONCATENATION", "MAX_POOL_2D", "RESHAPE", "TRANSPOSE", "STRIDED_SLICE", "SPLIT", "PAD",
     "MAXIMUM", "RESIZE_NEAREST_NEIGHBOR"}
)  # fmt: skip


def _run(interpreter: Any, built: Built) -> list[Array]:
    interpreter.allocate_tensors()
    for index, data in built.inputs.items():
        interpreter.set_tensor(index, data)
    interpreter.invoke()
    return [interpreter.get_tensor(index) for index in built.outputs]


def _litert(built: Built) -> list[Array]:
    return _run(litert.Interpreter(model_content=built.content), built)


def _check(case: Case, got: list[Array], expected: list[Array]) -> None:
    most = 0 if case.op in EXACT else 1
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        steps = np.abs(ours.astype(np.int32) - theirs.astype(np.int32))
        assert steps.max() <= most, f"{steps.max()} steps; {(steps > most).sum()} of {steps.size}"
        assert len(np.unique(theirs)) > 3, "the results say nothing"


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d.value))
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_on_the_cpu(case: Case, dtype: DType) -> None:
    built = build(case, dtype)
    interpreter = tflgpu.Interpreter(model_content=built.content)
    _check(case, _run(interpreter, built), _litert(built))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d.value))
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
@pytest.mark.parametrize("backend", ["vulkan"])  # PoCL takes three times as long to compile them
def test_on_a_device(
    case: Case, dtype: DType, backend: str, require_backend: Callable[[str], Any]
) -> None:
    require_backend(backend)
    built = build(case, dtype, seed=1)
    with tflgpu.GpuDelegate(backend=backend) as delegate:
        interpreter = tflgpu.Interpreter(
            model_content=built.content, experimental_delegates=[delegate]
        )
        got = _run(interpreter, built)
        report = interpreter.report
        interpreter.close()
    assert report.fully_delegated, str(report)
    _check(case, got, _litert(built))
