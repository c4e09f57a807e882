"""A kernel that turns out to be over a limit of the device sends its node, alone, to the CPU."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocated, set_and_run


def _model() -> bytes:
    shape = (1, 40, 5, 300)
    names = ("x", "squares", "sums", "y")
    shapes = (shape, shape, (1, 40, 5, 1), shape)
    tensors = [TensorSpec(n, s, DType.F32) for n, s in zip(names, shapes, strict=True)]
    tensors.append(TensorSpec("axis", (1,), DType.I32, np.array([3], np.int32)))
    return write_model(
        ModelSpec(
            tensors,
            [
                OperatorSpec("SQUARE", {}, (0,), (1,)),
                OperatorSpec("SUM", {"keep_dims": True}, (1, 4), (2,)),
                OperatorSpec("SUB", {}, (0, 2), (3,)),
            ],
            (0,),
            (3,),
        )
    )


def test_only_that_node_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    delegate = tflgpu.GpuDelegate(backend="cpu_ref", device=1)
    caps: Any = attrs.evolve(delegate.caps, shared_bytes=16)
    monkeypatch.setattr(type(delegate.provider.opened), "caps", caps)
    with allocated(
        tflgpu.Interpreter(model_content=_model(), experimental_delegates=[delegate])
    ) as interpreter:
        report = interpreter.report
        assert [(r.node, r.op) for r in report.refusals] == [(1, "SUM")]
        assert "bytes shared of 16 that the device has" in report.refusals[0].reason
        x = np.random.default_rng(0).random((1, 40, 5, 300), np.float32)
        set_and_run(interpreter, {0: x})
        expected = x - (x * x).sum(3, keepdims=True)
        np.testing.assert_allclose(interpreter.get_tensor(3), expected, rtol=1e-5)
