"""Outputs that are lent: the caller keeps what a run wrote, and later runs write elsewhere."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tflgpu import GpuDelegate, Interpreter
from tflgpu.conformance.plans import biased
from tflgpu.contract.lending import Lender
from tflgpu.contract.offers import offers
from tflgpu.errors import StateError
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

#: So many floats are copied to the host; fewer would be stored there by the kernel.
COUNT = 40_000
BIAS = np.arange(COUNT, dtype=np.float32)  # what `biased` adds


@pytest.fixture
def recording(open_device: Callable[..., Any]) -> Any:
    return open_device(share_memory=False).load(biased(COUNT))


def run(recording: Any, value: float) -> None:
    recording.inputs[0][...] = value
    recording.run()


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_what_is_lent_stays_as_it_is(recording: Any) -> None:
    assert offers(recording, Lender)
    kept = []
    for value in (1, 2, 3):
        run(recording, value)
        assert (recording.outputs[0] == value + BIAS).all()
        kept.append(recording.lend(0))
    run(recording, 50)
    assert all((a == value + BIAS).all() for a, value in zip(kept, (1, 2, 3), strict=True))
    assert (recording.outputs[0] == 50 + BIAS).all()
    assert len({address(a) for a in kept}) == 3


def test_the_caller_may_change_it(recording: Any) -> None:
    """And still gets the results again."""
    run(recording, 1)
    first = recording.lend(0)
    first[...] = -7
    second = recording.lend(0)
    assert (second == 1 + BIAS).all()
    second[...] = -8
    recording.settle()
    assert (recording.outputs[0] == 1 + BIAS).all()
    assert (first == -7).all()
    run(recording, 4)
    assert (first == -7).all()
    assert (second == -8).all()


def test_memory_comes_back_when_it_is_dropped(recording: Any) -> None:
    seen = set()
    for value in range(20):
        run(recording, value)
        lent = recording.lend(0)
        part = lent[5:9]
        del lent
        gc.collect()
        assert (part == value + BIAS[5:9]).all()
        seen.add(address(part) - 5 * 4)
        del part
    assert len(seen) <= 2


def test_who_keeps_everything_gets_copies_in_the_end(recording: Any) -> None:
    kept = []
    for value in range(12):
        run(recording, value)
        lent = recording.lend(0)
        kept.append(recording.outputs[0].copy() if lent is None else lent)
    assert len({address(a) for a in kept}) == 12
    assert all((a == value + BIAS).all() for value, a in enumerate(kept))
    run(recording, 0)
    assert recording.lend(0) is None
    kept.clear()
    gc.collect()
    assert recording.lend(0) is not None


def test_nothing_is_lent_before_the_first_run(recording: Any) -> None:
    assert recording.lend(0) is None
    assert (recording.outputs[0] == 0).all()


def test_small_outputs_and_shared_memory_are_not_lent(open_device: Callable[..., Any]) -> None:
    small = open_device(share_memory=False).load(biased(64))
    shared_device = open_device()
    shared = shared_device.load(biased(COUNT)) if shared_device.in_place else None
    guarded = open_device(share_memory=False).load(biased(COUNT), guard_bands=True)
    for each in filter(None, (small, shared, guarded)):
        run(each, 1)
        assert each.lend(0) is None
        each.settle()
        assert (each.outputs[0] == 1 + BIAS[: each.outputs[0].size]).all()


def test_memory_that_is_slow_to_read_is_not_lent(open_device: Callable[..., Any]) -> None:
    device = open_device(share_memory=False)
    device._heaps.has_cached = False
    slow = device.load(biased(COUNT))
    run(slow, 1)
    assert slow.lend(0) is None
    assert (slow.outputs[0] == 1 + BIAS).all()


def test_profiling_leaves_it_alone(recording: Any) -> None:
    run(recording, 1)
    lent = recording.lend(0)
    recording.inputs[0][...] = 9
    recording.profile()
    assert (lent == 1 + BIAS).all()
    assert (recording.outputs[0] == 9 + BIAS).all()


def test_it_outlives_the_recording_and_the_device(open_device: Callable[..., Any]) -> None:
    device = open_device(share_memory=False)
    recording = device.load(biased(COUNT))
    context = device._context
    lent = []
    for value in (1, 2):
        run(recording, value)
        lent.append(recording.lend(0))
    recording.close()
    with pytest.raises(StateError):
        recording.lend(0)
    with pytest.raises(StateError):
        recording.settle()
    device.close()
    lent[0] += 1
    assert (lent[0] == 2 + BIAS).all()
    assert (lent[1] == 2 + BIAS).all()
    assert context._users > 0
    del lent, recording
    gc.collect()
    assert context._users == 0


# Through the interpreter


@pytest.fixture
def interpreter(
    require_backend: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Interpreter]:
    """RELU of 300 x 300 floats, on a device that copies its outputs."""
    require_backend("vulkan")
    from tflgpu_vulkan.device import VulkanDevice

    made = VulkanDevice.__init__

    def copying(self: Any, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **{**options, "share_memory": False})

    monkeypatch.setattr(VulkanDevice, "__init__", copying)
    shape = (1, 300, 300, 1)
    spec = ModelSpec(
        [TensorSpec("x", shape), TensorSpec("y", shape)],
        [OperatorSpec("RELU", {}, (0,), (1,))], (0,), (1,),
    )  # fmt: skip
    with (
        GpuDelegate(backend="vulkan") as delegate,
        Interpreter(model_content=write_model(spec), experimental_delegates=[delegate]) as opened,
    ):
        opened.allocate_tensors()
        yield opened


def invoke(interpreter: Interpreter, value: float) -> None:
    interpreter.set_tensor(0, np.full((1, 300, 300, 1), value, np.float32))
    interpreter.invoke()


def test_results_are_the_caller_s_own(interpreter: Interpreter) -> None:
    results = []
    for value in range(8):
        invoke(interpreter, value)
        result = interpreter.get_tensor(1)
        result += 0.5
        assert (interpreter.get_tensor(1) == value).all()
        results.append(result)
    assert [float(r[0, 7, 7, 0]) for r in results] == [v + 0.5 for v in range(8)]


def test_results_are_not_copied(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke(interpreter, 3)

    def refuse(*_: Any) -> None:
        raise AssertionError("a copy")

    monkeypatch.setattr("tflgpu.interpreter.subgraph.copy", refuse)
    assert (interpreter.get_tensor(1) == 3).all()


def test_views_and_results_do_not_share_memory(interpreter: Interpreter) -> None:
    invoke(interpreter, 5)
    result = interpreter.get_tensor(1)
    view = interpreter.tensor(1)()
    assert (view == 5).all()
    result[...] = -1
    assert (view == 5).all()
    other = interpreter.get_tensor(1)
    assert not np.shares_memory(other, view)
    view[...] = 8
    assert (other == 5).all()
    del view
    invoke(interpreter, 6)
    assert (interpreter.tensor(1)() == 6).all()
    assert (result == -1).all()


def test_results_outlive_the_interpreter(interpreter: Interpreter) -> None:
    invoke(interpreter, 2)
    result = interpreter.get_tensor(1)
    interpreter.close()
    gc.collect()
    assert (result == 2).all()
