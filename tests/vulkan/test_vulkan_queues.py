"""Several queues: recordings take them in turn, and each waits for its own.

Drivers that compute on a CPU have one queue. Here it stands for three, so that what is tested is
who uses which, and not what a GPU does with several.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.conformance.plans import chain, chain_expected
from tflgpu.errors import DeviceError
from tflgpu.interpreter.invocation import Invocation


@attrs.frozen(eq=False)
class Stand:
    """One of three names of the only queue."""

    number: int
    real: Any


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Numbers of the queues that were submitted to."""
    from tflgpu_vulkan import context, features

    taken: list[int] = []
    submit, family = context.lib.vkQueueSubmit, features._compute_queue
    queue = context.Context._queue

    class Lib:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def vkQueueSubmit(self, queue: Any, *rest: Any) -> Any:
            taken.append(queue.number)
            return submit(queue.real, *rest)

    def three(handle: Any) -> Any:
        found = family(handle)
        return None if found is None else (*found[:2], 3)

    real = context.lib
    device = context.Context._device
    monkeypatch.setenv(context.QUEUES, "8")
    monkeypatch.setattr(context, "lib", Lib())
    monkeypatch.setattr(features, "_compute_queue", three)
    monkeypatch.setattr(context.Context, "_device", lambda self, queues: device(self, 1))
    monkeypatch.setattr(context.Context, "_queue", lambda self, i: Stand(i, queue(self, 0)))
    yield taken


def test_recordings_take_turns(require_backend: Any, used: list[int]) -> None:
    require_backend("vulkan")
    from tflgpu_vulkan.device import VulkanDevice

    device = VulkanDevice()
    assert len(device._context.queues) == 3
    recordings = [device.load(chain(257, device.alignment)) for _ in range(4)]
    first = recordings[0]._commands.queue.number
    used.clear()
    values = [np.full(257, n, np.float32) for n in range(4)]
    for recording, x in zip(recordings, values, strict=True):
        recording.inputs[0][...] = x
    pending = [recording.submit() for recording in recordings]
    for recording, run, x in zip(recordings, pending, values, strict=True):
        assert run.wait(30)
        np.testing.assert_array_equal(recording.outputs[0], chain_expected(x))
    assert used == [(first + n) % 3 for n in range(4)]
    used.clear()
    recordings[1]._wait_idle()
    assert used == [(first + 1) % 3]
    used.clear()
    for recording in recordings:
        recording.close()
    device.close()
    assert {0, 1, 2} <= set(used)  # closing waits for all


def test_runs_in_flight_use_several(
    require_backend: Any, used: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    require_backend("vulkan")
    from tflgpu.demo import __path__ as where

    with (
        tflgpu.GpuDelegate(backend="vulkan") as delegate,
        tflgpu.Interpreter(
            f"{where[0]}/digits.tflite", experimental_delegates=[delegate], max_in_flight=3
        ) as interpreter,
    ):
        interpreter.allocate_tensors()
        (given,) = interpreter.get_input_details()
        image = np.random.default_rng(0).random(given["shape"], np.float32)
        interpreter.set_tensor(given["index"], image)
        interpreter.invoke()
        wanted = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        used.clear()
        # A run that is over already would leave its lane to the next.
        monkeypatch.setattr(Invocation, "done", lambda self: False)
        flying = [interpreter.invoke_async() for _ in range(3)]
        for run in flying:
            np.testing.assert_array_equal(run.results()[0], wanted)
        assert set(used) == {0, 1, 2}


@pytest.mark.parametrize("said", ["0", "many", "-1", "1.5"])
def test_nonsense_is_refused(
    said: str, require_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_backend("vulkan")
    from tflgpu_vulkan.context import QUEUES
    from tflgpu_vulkan.device import VulkanDevice

    monkeypatch.setenv(QUEUES, said)
    with pytest.raises(DeviceError, match="TFLGPU_VULKAN_QUEUES is"):
        VulkanDevice()


_COMPUTE, _GRAPHICS, _TRANSFER = 2, 1, 4


def family(flags: int, count: int, bits: int = 64) -> SimpleNamespace:
    """What a driver says of a queue family."""
    return SimpleNamespace(queueFlags=flags, queueCount=count, timestampValidBits=bits)


@pytest.mark.parametrize(
    ("families", "wanted"),
    [
        # An NVIDIA H200's: one that draws, one that copies, one that computes.
        ([family(15, 16), family(12, 2), family(14, 8)], (2, 64, 8)),
        # Several of one that draws compute no faster than one.
        ([family(_GRAPHICS | _COMPUTE, 16), family(_TRANSFER, 2)], (0, 64, 1)),
        ([family(_COMPUTE, 1)], (0, 64, 1)),
        # Times are worth more than turns.
        ([family(_COMPUTE, 4, 0), family(_GRAPHICS | _COMPUTE, 1)], (1, 64, 1)),
        ([family(_GRAPHICS | _COMPUTE, 1, 0), family(_COMPUTE, 4, 0)], (1, 0, 4)),
        ([family(_TRANSFER, 2)], None),
    ],
)
def test_the_family_of_queues(
    families: list[SimpleNamespace],
    wanted: tuple[int, int, int] | None,
    require_backend: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_backend("vulkan")
    from tflgpu_vulkan import features

    monkeypatch.setattr(features, "listed", lambda *_: families)
    assert features._compute_queue(None) == wanted
