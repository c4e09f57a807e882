"""When a wait for a run asks, and when it sleeps; by a clock of the test's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vulkan")

from tflgpu.backend_kit.waiting import manner
from tflgpu_vulkan import context as module
from tflgpu_vulkan.api import vk
from tflgpu_vulkan.context import Context


class Device:
    """One whose run is over at a moment; asking takes 10 us, and sleeping as long as it is to."""

    def __init__(self, over: float) -> None:
        self.now, self.over = 0.0, over
        self.slept = 0.0

    def perf_counter(self) -> float:
        return self.now

    def vkGetFenceStatus(self, handle: Any, fence: Any) -> int:
        self.now += 1e-5
        return vk.VK_SUCCESS if self.now >= self.over else vk.VK_NOT_READY

    def vkWaitForFences(self, handle: Any, count: int, fence: Any, every: Any, nap: int) -> int:
        took = min(max(0.0, self.over - self.now), nap / 1e9)
        self.slept += took
        self.now += took + 1e-9
        return vk.VK_SUCCESS if self.now >= self.over else vk.VK_TIMEOUT


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> Any:
    def wait(over: float, likely: float = 0.0, *, spin: float = 2e-3) -> Device:
        device = Device(over)
        monkeypatch.setattr(module, "lib", device)
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=device.perf_counter))
        context: Any = Context.__new__(Context)
        context._spin = spin
        assert context._wait(None, [None], likely) == vk.VK_SUCCESS
        assert device.now >= over
        return device

    return wait


def test_a_short_run_is_asked_for(waited: Any) -> None:
    assert waited(1.5e-3).slept == 0
    assert waited(1.5e-3, likely=1.5e-3).slept == 0


def test_the_beginning_of_a_long_run_is_slept_through(waited: Any) -> None:
    device = waited(9e-3, likely=9e-3)
    assert device.slept == pytest.approx(9e-3 - 3e-4)
    assert device.now < 9e-3 + 2e-5


def test_one_that_is_shorter_or_longer_than_the_last(waited: Any) -> None:
    assert waited(5e-3, likely=9e-3).slept == pytest.approx(5e-3)
    assert waited(30e-3, likely=9e-3).slept > 27e-3


def test_nothing_is_known_of_the_first_run(waited: Any) -> None:
    assert waited(9e-3).slept == pytest.approx(7e-3, rel=0.01)


def test_a_device_on_the_cpu_has_the_processor_to_itself(waited: Any) -> None:
    assert waited(1e-3, likely=9e-3, spin=0.0).slept == pytest.approx(1e-3)


def test_without_sleep(waited: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manner, "awake", True)
    assert waited(30e-3, likely=30e-3).slept == 0
