"""State: kept between runs, read and reset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tflgpu.interpreter import Interpreter
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.base import NoAttrs, OpDef, Operand, Variables, no_attrs
from tflgpu.plugins.hookspecs import hookimpl
from tflgpu.plugins.registry import Registry

from tests.interpreter import interpreter_models as models
from tests.running import allocate_and_run


def _infer(attributes: NoAttrs, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    assert operands[0] is not None
    return [operands[0].spec]


def _accumulate(attributes: NoAttrs, arrays: Sequence[Any]) -> list[np.ndarray]:
    x, total = arrays
    return [total + x, total + x]  # the result, then the new state


class CounterPlugin:
    """A plugin with a stateful custom op."""

    @hookimpl
    def tflgpu_register_ops(self) -> list[OpDef]:
        return [
            OpDef(
                "Accumulate", no_attrs, _infer, _accumulate, list, is_custom=True, state=Variables()
            )
        ]  # fmt: skip


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Interpreter:
    """An interpreter of a model with a state tensor, through a plugin's op."""
    registry = Registry.of({"counter": CounterPlugin()})
    for module in ("interpreter.api", "runtime.provider"):
        monkeypatch.setattr(f"tflgpu.{module}.registry", lambda: registry)
    return Interpreter(model_content=models.counter())


def test_state_is_kept_between_runs_and_reset_on_request(counting: Interpreter) -> None:
    counting.reset_all_variables()  # harmless before there is anything
    counting.allocate_tensors()
    counting.set_tensor(0, np.array([1, 10], np.float32))
    for step in (1, 2, 3):
        counting.invoke()
        np.testing.assert_array_equal(counting.get_tensor(2), [step, 10 * step])
    counting.allocate_tensors()  # nothing to do, so nothing is lost
    counting.invoke()
    np.testing.assert_array_equal(counting.get_tensor(2), [4, 40])
    counting.reset_all_variables()
    counting.invoke()
    np.testing.assert_array_equal(counting.get_tensor(2), [1, 10])


def test_state_can_be_read(counting: Interpreter) -> None:
    allocate_and_run(counting, {0: np.array([1, 10], np.float32)})
    np.testing.assert_array_equal(counting.get_tensor(1), [1, 10])
