"""Which devices there are, which one is used, and why.

`choose` finds the best, by the database, by a short measurement (`measure`) and by what earlier
ones said (`measured_times`); `targets` says what is compiled for it; `device_list` is the public
view in the manner of TFLite's `CompatibilityList`, and `device_states` the list of all, which users
get by ``tflgpu.devices()``: Python makes that name this package, so that the package can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tflgpu.devices.device_states import DeviceState


class _Package(ModuleType):
    def __call__(self) -> list[DeviceState]:
        """The devices and their states (`tflgpu.devices.device_states`)."""
        from tflgpu.devices.device_states import devices  # it opens devices, which few ask for

        return devices()


sys.modules[__name__].__class__ = _Package
