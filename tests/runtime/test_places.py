"""`Places`: inputs and outputs of several recordings that are bound to buffers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Value
from tflgpu.lowering.reason import Unsupported
from tflgpu.runtime.places import Places

X = Value(0, "x", (2,), DType.F32)


class Part:
    """A part on a device that reads X, and what it is bound to."""

    on_cpu, label, inputs, outputs = False, "part", (X,), ()

    def __init__(self, problem: Any = None) -> None:
        self.bound: Any = None
        self.problem = problem
        self.recording = SimpleNamespace(
            inputs=[np.zeros(2, np.float32)], outputs=[], bind=self.bind
        )

    def bind(self, inputs: Any = None, outputs: Any = None) -> Unsupported | None:
        assert not outputs
        if isinstance(self.problem, Exception):
            raise self.problem
        if self.problem is None:
            self.bound = inputs[0]
        return self.problem


def test_a_tensor_that_two_parts_read_is_bound_in_both() -> None:
    parts, buffer = [Part(), Part()], object()
    places = Places([X], [], parts)  # type: ignore[arg-type]
    assert places.put(0, buffer) is None  # type: ignore[arg-type]
    assert [part.bound for part in parts] == [buffer, buffer]
    assert places.buffers == {0: buffer}


@pytest.mark.parametrize("problem", [Unsupported("no"), DeviceError("lost")], ids=["no", "fails"])
def test_where_one_part_cannot_be_bound_none_is(problem: Any) -> None:
    parts, buffer = [Part(), Part()], object()
    places = Places([X], [], parts)  # type: ignore[arg-type]
    assert places.put(0, buffer) is None  # type: ignore[arg-type]
    parts[1].problem = problem
    if isinstance(problem, Exception):
        with pytest.raises(DeviceError, match="lost"):
            places.put(0, object())  # type: ignore[arg-type]
    else:
        assert places.put(0, object()) is problem  # type: ignore[arg-type]
    assert [part.bound for part in parts] == [buffer, buffer]
    assert places.buffers == {0: buffer}
