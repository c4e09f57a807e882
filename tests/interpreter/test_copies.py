"""What holds a device is not copied and not pickled."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from tflgpu import GpuDelegate, Interpreter, Model, Pool, StateError
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

MODEL = write_model(
    ModelSpec(
        [TensorSpec("x", (2,)), TensorSpec("y", (2,))], [OperatorSpec("TANH", {}, (0,), (1,))],
        (0,), (1,),
    )
)  # fmt: skip
MAKERS: dict[str, Callable[[], Any]] = {
    "GpuDelegate": lambda: GpuDelegate(backend="cpu_ref"),
    "Interpreter": lambda: Interpreter(model_content=MODEL, experimental_delegates=[]),
    "Model": lambda: Model(MODEL, backend="cpu_ref"),
    "Pool": lambda: Pool(MODEL, backend="cpu_ref"),
}


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("name", MAKERS)
def test_it_says_so(name: str, way: Callable[[Any], Any]) -> None:
    with MAKERS[name]() as made, pytest.raises(StateError, match=f"a {name} cannot be copied"):
        way(made)
