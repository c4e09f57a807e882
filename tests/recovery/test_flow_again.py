"""A model of several graphs whose device fails, and fails once more when it is opened anew."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import DeviceError, StateError
from tflgpu.ir.dtypes import DType

from tests.watched_device import WatchedDevice

sys.path.insert(0, str(Path(__file__).parents[1] / "flow"))
from flow_models import loop, model, number, subgraph, tensor, up_to


def doubled_three_times() -> bytes:
    """The negative of x, doubled in a loop; the output is tensor 4."""
    i, one = tensor("i", (), DType.I32), number("one", 1)
    made = [tensor("i2", (), DType.I32), tensor("y")]
    main = subgraph(
        [i, tensor("x"), tensor("z"), *made],
        [("NEG", "x", "z"), ("WHILE", "i z", "i2 y", loop(1, 2))], "i x", "i2 y",
    )  # fmt: skip
    body = subgraph(
        [i, tensor("x"), one, *made], [("ADD", "i one", "i2"), ("ADD", "x x", "y")], "i x", "i2 y"
    )
    return model(main, up_to(3), body)


def test_it_is_opened_anew_as_often_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = WatchedDevice(monkeypatch)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, partitioning="all") as delegate,
        tflgpu.Interpreter(
            model_content=doubled_three_times(), experimental_delegates=[delegate]
        ) as one,
    ):
        one.allocate_tensors()
        one.set_tensor(0, np.int32(0))
        one.set_tensor(1, np.ones(2, np.float32))

        def result() -> Any:
            one.invoke()
            return one.get_tensor(4).tolist()

        assert result() == [-8, -8]
        for _ in range(2):
            faults.fails = [DeviceError("the run")]
            with pytest.raises(DeviceError, match="the run"):
                one.invoke()
            broken = one._main.session
            assert broken is not None
            faults.fails_to_load = [DeviceError("not now")] * 2
            for _ in range(2):
                with pytest.raises(DeviceError, match="not now"):
                    one.invoke()
                assert broken.is_broken
            with pytest.raises(StateError, match="closed"):
                broken.run()
            assert result() == [-8, -8]
            assert one._main.session is not broken
