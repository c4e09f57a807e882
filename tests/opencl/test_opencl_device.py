"""What is OpenCL's own about its device; what every device must do is asked by level 0 of the
conformance suite (`tests/conformance/test_contract_ways.py`)."""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.compiler.plan import ArenaRef, InputRef, OutputRef
from tflgpu.conformance.plans import affine, biased, chain, chain_expected, dispatch, io, plan
from tflgpu.errors import DeviceError

from tests.api_devices import (  # noqa: F401 (collected here)
    test_it_does_less_where_less_counts,
    test_it_says_what_a_run_copies,
)


def whole(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Whole numbers, which small sums and products keep exact."""
    return np.random.default_rng(seed).integers(-50, 50, count).astype(np.float32)


def test_regions_in_use_at_different_times_share_buffers(device: Any) -> None:
    count, stride = 257, 257 * device.alignment
    x = whole(count)
    refs = [InputRef(0), *(ArenaRef(n * stride, count * 4) for n in range(5)), OutputRef(0)]
    made = plan(
        [dispatch(affine(count), count, refs[n : n + 2]) for n in range(6)],
        [io("x", (count,))], [io("y", (count,))], arena=5 * stride, alignment=device.alignment,
    )  # fmt: skip
    recording = device.load(made)
    regions = recording._memory._slices.values()
    assert len(regions) == 5
    assert len({region.buffer for region in regions}) == 2
    recording.inputs[0][...] = x
    recording.run()
    assert (recording.outputs[0] == chain_expected(x, 6)).all()
    recording.close()


def test_halves_are_stored_and_dispatches_timed_everywhere(device: Any) -> None:
    assert device.caps.f16_storage
    assert len(device.load(chain(257, device.alignment, steps=4)).profile()) == 4


def test_a_driver_error_ends_the_recording(device: Any) -> None:
    class Failing:
        def submit(self) -> None:
            raise DeviceError("the device is gone")

    recording = device.load(biased(9))
    working = recording._sets.current.commands
    recording._sets.current.commands = Failing()
    with pytest.raises(DeviceError, match="gone"):
        recording.run()
    recording._sets.current.commands = working
    with pytest.raises(DeviceError, match=r"earlier run.*gone"):
        recording.run()
    recording.close()


def test_a_refused_dispatch_is_named(device: Any) -> None:
    recording = device.load(chain(33, device.alignment))
    wrong = attrs.evolve(recording._launches[1].dispatch.kernel, workgroup=(7, 1, 1))
    launch = attrs.evolve(
        recording._launches[1],
        dispatch=attrs.evolve(recording._launches[1].dispatch, kernel=wrong),
    )
    commands = type(recording._before)(recording._queue)
    for item in (recording._launches[0], launch, recording._launches[2]):
        item.add_to(commands)
    recording._sets.current.commands = commands
    with pytest.raises(DeviceError, match=r"step 1, kernel affine: INVALID_WORK_GROUP_SIZE"):
        recording.run()
    with pytest.raises(DeviceError, match="earlier run"):
        recording.run()


def test_short_runs_of_a_gpu_are_waited_for_in_one_call(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tflgpu_opencl import recording as module

    asked: list[bool] = []
    finish = module.finish

    def noted(queue: Any, what: str, *, is_short: bool = False) -> None:
        asked.append(is_short)
        finish(queue, what, is_short=is_short)

    monkeypatch.setattr(module, "finish", noted)
    recording = device.load(biased(9))
    recording._is_gpu = True
    recording._took = math.inf  # nothing is known of the first run
    for step in range(3):
        recording.inputs[0][:] = step
        recording.run()
        np.testing.assert_array_equal(recording.outputs[0], np.arange(9) + step)
        recording._took = module.SHORT / 2
    recording._took = module.SHORT * 2
    recording.run()
    assert asked == [False, True, True, False]
    recording.close()
