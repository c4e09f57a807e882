"""The database can take shuffles away from a device, and give it none."""

from __future__ import annotations

import pytest
from tflgpu.compat import CompatEntry, effective_caps, judge
from tflgpu.contract.device import DeviceInfo
from tflgpu.errors import PluginError
from tflgpu.kernels.team import Teams
from tflgpu.language.caps import DeviceCaps

DEVICE = DeviceInfo("vulkan", 0, "card", "amd", True, "driver 1.2")


@pytest.mark.parametrize(("has", "said", "left"), [
    (32, 0, 0), (32, 8, 8), (8, 32, 8), (0, 32, 0), (32, 12, 12),
])  # fmt: skip
def test_shuffles_are_lowered_and_never_raised(has: int, said: int, left: int) -> None:
    entry = CompatEntry(name="test", reason="a test", caps={"subgroup_shuffle": said})
    caps = effective_caps(DeviceCaps(subgroup_shuffle=has), judge(DEVICE, [entry]))
    assert caps.subgroup_shuffle == left
    near = Teams.of(caps, 1, 32, lanes_first=True).near
    assert near == {0: 1, 8: 8, 12: 8}[left]


def test_a_known_width_is_no_promise_of_shuffles() -> None:
    entry = CompatEntry(name="test", reason="a test", caps={"subgroup": 64})
    caps = effective_caps(DeviceCaps(), judge(DEVICE, [entry]))
    assert (caps.subgroup, caps.subgroup_shuffle) == (64, 0)


def test_a_switch_is_no_number() -> None:
    with pytest.raises(PluginError, match="caps subgroup_shuffle is False"):
        CompatEntry(name="test", reason="a test", caps={"subgroup_shuffle": False})
