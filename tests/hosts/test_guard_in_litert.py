"""The accuracy guard where LiteRT's interpreter is the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from host_models import chain, host, run
from tflgpu.compiler.accuracy import AccuracyOutcome

SHAPE = (2, 5)
X = np.linspace(300, 3000, 10, dtype=np.float32).reshape(SHAPE)


def delegate(**options: Any) -> tflgpu.GpuDelegate:
    return tflgpu.GpuDelegate(backend="cpu_ref", device=1, precision="f16", **options)


@pytest.mark.parametrize("runs", [1, 2])
def test_what_f16_spoils_is_redone(runs: int) -> None:
    model = chain("NEG", "SQUARE", "SQRT")
    with delegate() as plain:
        inside = host(model, plain)
        assert not np.isfinite(run(inside, X)[0]).any()
        del inside
    with delegate(accuracy_guard=runs) as gpu:
        inside = host(model, gpu)
        for factor in (1, 2, 3):  # the session moved to other memory in the first
            np.testing.assert_allclose(run(inside, factor * X)[0], factor * X, rtol=1e-3)
        (check,) = gpu.accuracy_checks
        del inside
    assert check.outcome is AccuracyOutcome.REDONE
    assert check.runs == runs
    assert check.redone == (1, 2)  # as LiteRT numbers them


def test_another_shape_is_checked_anew() -> None:
    model = chain("SQUARE", "SQRT", signature=(-1, 5))
    with delegate(accuracy_guard=1) as gpu:
        inside = host(model, gpu)
        run(inside, np.ones(SHAPE, np.float32))
        inside.resize_tensor_input(0, (3, 5))
        inside.allocate_tensors()
        x = np.full((3, 5), 1000, np.float32)
        np.testing.assert_allclose(run(inside, x)[0], x, rtol=1e-3)
        outcomes = [check.outcome for check in gpu.accuracy_checks]
        del inside
    assert outcomes == [AccuracyOutcome.ACCURATE, AccuracyOutcome.REDONE]


class Wrong:
    """A device that doubles every result."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def load(self, plan: Any, *, guard_bands: bool = False) -> Any:
        recording = self._device.load(plan, guard_bands=guard_bands)
        inner = recording.run

        def doubled() -> None:
            inner()
            for array in recording.outputs:
                np.multiply(array, 2, out=array)

        recording.run = doubled
        return recording


def test_the_policy_is_applied() -> None:
    x, model = X / 3000, chain("EXP")
    with delegate(accuracy_guard=1) as gpu:
        gpu.provider.opened._device = Wrong(gpu.device)
        inside = host(model, gpu)
        for factor in (1, 0.5):
            np.testing.assert_allclose(run(inside, factor * x)[0], np.exp(factor * x), rtol=1e-6)
        assert gpu.accuracy_checks[0].outcome is AccuracyOutcome.ON_CPU
        del inside
    with delegate(accuracy_guard="runs=1,on_failure=error") as gpu:
        gpu.provider.opened._device = Wrong(gpu.device)
        inside = host(model, gpu)
        with pytest.raises(RuntimeError, match="accuracy guard: results on the device were wrong"):
            run(inside, x)
        del inside
