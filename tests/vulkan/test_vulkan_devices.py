"""Finding devices: no package, no loader, no driver, an old one; and the validation layer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

PROBE = (
    "import sys\n"
    "{before}\n"
    "from tflgpu.plugins.registry import registry\n"
    "assert not [f for f in registry().failures if f.name == 'vulkan'], registry().failures\n"
    "probe = registry().probe('vulkan')\n"
    "print(probe.available, probe.reason)"
)


def probe_with(before: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(before=before)],
        capture_output=True, text=True, check=True, env={**os.environ, **environment},
    )  # fmt: skip
    return done.stdout.strip()


def test_without_the_package_the_reason_has_the_command() -> None:
    said = probe_with("sys.modules['vulkan'] = None")
    assert said.endswith('run: pip install "tflgpu[vulkan]"')


def test_without_the_loader_the_reason_names_it() -> None:
    pytest.importorskip("_cffi_backend")
    before = (
        "import importlib.util, _cffi_backend\n"
        "if importlib.util.find_spec('vulkan') is None: print('False loader'); sys.exit()\n"
        "class FFI(_cffi_backend.FFI):\n"
        "    def dlopen(self, name, *flags): raise OSError(name + ' is not there')\n"
        "_cffi_backend.FFI = FFI"
    )
    said = probe_with(before)
    assert said.startswith("False")
    assert "loader" in said


@pytest.mark.needs("vulkan")
def test_without_a_driver_there_is_a_reason() -> None:
    none = os.devnull + ".json"
    said = probe_with("", VK_ICD_FILENAMES=none, VK_DRIVER_FILES=none)
    assert said.startswith("False ")
    assert "VK_ERROR_INCOMPATIBLE_DRIVER" in said or "no Vulkan driver" in said


@pytest.mark.needs("vulkan")
def test_gpus_come_first_and_unusable_devices_have_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import attrs
    from tflgpu_vulkan import devices

    instance = devices.Instance()
    base = devices.find_devices(instance).at(0).handle
    kinds = {"cpu": 3, "other": 4, "discrete": 0, "virtual": 2, "integrated": 1, "second": 0}
    found: dict[str, Any] = {
        name: attrs.evolve(base, name=name, rank=rank) for name, rank in kinds.items()
    }
    found["old"] = "old: its driver has Vulkan 1.0; 1.1 is needed"
    monkeypatch.setattr(devices, "listed", lambda *args, **kw: list(found))
    monkeypatch.setattr(devices, "details_of", lambda instance, handle: found[handle])
    listed = devices.find_devices(instance)
    assert [(f.info.index, f.info.name) for f in listed.found] == list(
        enumerate(["discrete", "second", "integrated", "virtual", "cpu", "other"])
    )
    assert listed.reason == found["old"]
    monkeypatch.undo()
    instance.close()
    instance.close()


WRONG_USE = """

from tflgpu_vulkan.device import VulkanDevice
from tflgpu.conformance.plans import biased, chain
from tflgpu.errors import DeviceError
device = VulkanDevice(0)
recording = device.load(chain(99, device.alignment))
recording.run(); recording.profile(); recording.close()
guarded = device.load(biased(9), guard_bands=True)
guarded.run(); guarded.close()
print("clean")
from tflgpu_vulkan.record import Between, Writer
kept = Writer.barrier
Writer.barrier = lambda writer, between: between is Between.DISPATCHES or kept(writer, between)
try:
    device.load(chain(99, device.alignment))
except DeviceError as error:
    print(str(error).replace("\\n", " "))
Writer.barrier = kept
from tflgpu_vulkan.blocks import Region
Region.bound = property(lambda self: (1, 1))
try:
    device.load(biased(9)).run()
except DeviceError as error:
    print(error)
device._context.instance.problems.clear()
device.close()
"""


@pytest.mark.needs("vulkan")
def test_the_validation_layer_s_errors_are_raised() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRONG_USE],
        capture_output=True, text=True, check=False,
        env={**os.environ, "TFLGPU_VULKAN_VALIDATION": "1"},
    )  # fmt: skip
    if "vulkan-validationlayers" in done.stderr:
        pytest.skip("no Khronos validation layer; apt install vulkan-validationlayers")
    assert done.returncode == 0, done.stderr
    first, unordered, *_ = done.stdout.splitlines()
    assert first == "clean"
    assert "the validation layer says" in unordered
    assert "SYNC-HAZARD-READ-AFTER-WRITE" in unordered
    assert "VUID-VkWriteDescriptorSet" in done.stdout


# Instances: the drivers stay loaded, whatever is opened and closed.


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
