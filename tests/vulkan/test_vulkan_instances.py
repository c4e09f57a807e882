"""Instances: the drivers stay loaded, whatever is opened and closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def instances(require_backend: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with a count of what the loader was asked for, and nothing kept."""
    require_backend("vulkan")
    from tflgpu_vulkan import instance

    asked = {"vkCreateInstance": 0, "vkDestroyInstance": 0}

    class Counting:
        def __getattr__(self, name: str) -> Any:
            if name in asked:
                asked[name] += 1
            return getattr(real, name)

    real = instance.lib
    monkeypatch.setattr(instance, "lib", Counting())
    monkeypatch.setattr(instance, "_spare", {})
    monkeypatch.delenv(instance.VALIDATION, raising=False)
    instance.asked = asked
    yield instance
    del instance.asked
    for handle in instance._spare.values():
        real.vkDestroyInstance(handle, instance.NULL)


def test_the_last_one_is_kept_for_the_next(instances: Any) -> None:
    """A driver that is unloaded may not load again: NVIDIA's refused the 31st time."""
    for _ in range(40):
        instances.Instance().close()
    assert instances.asked == {"vkCreateInstance": 1, "vkDestroyInstance": 0}
    first, second = instances.Instance(), instances.Instance()
    assert instances.asked["vkCreateInstance"] == 2
    first.close()
    second.close()
    second.close()
    assert instances.asked["vkDestroyInstance"] == 1
    assert len(instances._spare) == 1


def test_other_drivers_are_looked_for_anew(instances: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    instances.Instance().close()
    monkeypatch.setenv("VK_LOADER_DEBUG", "error")
    instances.Instance().close()
    assert instances.asked["vkCreateInstance"] == 2
