"""A model whose tensors together are over a device's largest buffer, and each by itself is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.compiler.plan import ArenaRef, InputRef, OutputRef, Plan
from tflgpu.conformance.merge import merge_plans
from tflgpu.conformance.plans import affine, dispatch, io, plan
from tflgpu.errors import DeviceError
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

SHAPE = (1, 8, 8, 4)
NBYTES = 4 * 8 * 8 * 4
DEVICES = [("cpu_ref", 1), ("opencl", 0), ("vulkan", 0), ("wgpu", 0)]


def wide_model() -> bytes:
    """Five tensors that are all alive together: the sum of softmaxes of five temperatures."""
    count = 5
    tensors = [TensorSpec(f"t{i}", SHAPE) for i in range(count + 2)]
    operators = [OperatorSpec("SOFTMAX", {"beta": 1.0 + i}, (0,), (1 + i,)) for i in range(count)]
    operators.append(OperatorSpec("ADD_N", {}, tuple(range(1, count + 1)), (count + 1,)))
    return write_model(ModelSpec(tensors, operators, (0,), (count + 1,)))


@pytest.fixture(params=DEVICES, ids=lambda d: d[0])
def small_device(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Any:  # fmt: skip
    """``open(limit)``: a delegate whose device has buffers of at most so many bytes."""
    backend, index = request.param
    require_backend(backend)
    opened = []

    def make(limit: int) -> Any:
        delegate = tflgpu.GpuDelegate(backend=backend, device=index, allow_fallback=False)
        found: Any = delegate.device
        inner = found.inner
        inner.caps = found.caps = attrs.evolve(found.caps, max_buffer_bytes=limit)
        if backend == "vulkan":
            inner._heaps.limit = limit
        opened.append(delegate)
        return delegate

    yield make
    for delegate in opened:
        delegate.close()


def loaded_plans(monkeypatch: pytest.MonkeyPatch, delegate: Any) -> list[Plan]:
    plans: list[Plan] = []
    load = delegate.device.load

    def spied(plan: Plan, **options: Any) -> Any:
        plans.append(plan)
        return load(plan, **options)

    monkeypatch.setattr(delegate.device, "load", spied)
    return plans


@pytest.mark.parametrize("guard_bands", [False, True])
def test_a_model_runs_in_several_arenas(
    small_device: Any, guard_bands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Bands of 4 KiB lie around every tensor where there are some.
    limit = 2 * NBYTES + 64 if not guard_bands else 2 * NBYTES + (16 << 10)
    delegate = small_device(limit)
    opened = delegate.provider.opened
    opened.options = attrs.evolve(opened.options, guard_bands=guard_bands)
    plans = loaded_plans(monkeypatch, delegate)
    model = wide_model()
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    with tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate]) as interpreter:
        interpreter.allocate_tensors()
        assert interpreter.report.fully_delegated
        for _ in range(2):
            interpreter.set_tensor(0, x)
            interpreter.invoke()
            y = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    with tflgpu.Interpreter(model_content=model) as reference:
        reference.allocate_tensors()
        reference.set_tensor(0, x)
        reference.invoke()
        want = reference.get_tensor(reference.get_output_details()[0]["index"])
    np.testing.assert_allclose(y, want, atol=1e-5)
    (made,) = plans
    if not guard_bands:
        assert len(made.arenas) > 1
    assert all(size <= limit for size in made.arenas)


def two_arenas() -> Plan:
    """The same bytes of two arenas, in use at once."""
    one, two = ArenaRef(0, 132), ArenaRef(0, 132, 1)
    return plan(
        [
            dispatch(affine(33, 2.0), 33, [InputRef(0), one]),
            dispatch(affine(33, 3.0), 33, [InputRef(0), two]),
            dispatch(affine(33, 1.0, 0.0), 33, [one, OutputRef(0)]),
            dispatch(affine(33, 1.0, 0.0), 33, [two, OutputRef(1)]),
        ],
        [io("x", (33,))], [io("y", (33,)), io("z", (33,))], arena=0, alignment=256,
    )  # fmt: skip


@pytest.mark.parametrize("guard_bands", [False, True])
def test_arenas_are_apart(small_device: Any, guard_bands: bool) -> None:
    device = small_device(1 << 20).device
    made = attrs.evolve(two_arenas(), arenas=(256, 132))
    twice = merge_plans([made, made])
    assert twice.arenas == (256, 132, 256, 132)
    x = np.arange(33, dtype=np.float32)
    for each in (made, twice):
        recording = device.load(each, guard_bands=guard_bands)
        for array in recording.inputs:
            array[...] = x
        recording.run()
        for i, y in enumerate(recording.outputs):
            np.testing.assert_array_equal(y, x * (2 + i % 2) + 1)
        recording.close()


def test_an_arena_that_there_is_not_is_refused(small_device: Any) -> None:
    device = small_device(1 << 20).device
    with pytest.raises(DeviceError, match="dst is in arena 1, and the plan has 1 of them"):
        device.load(attrs.evolve(two_arenas(), arenas=(256,)))
    with pytest.raises(DeviceError, match="is bytes 0 to 132 of an arena of 128 bytes"):
        device.load(attrs.evolve(two_arenas(), arenas=(256, 128)))
