"""`tflgpu.devices`: every device, whether it works, and which one would be used."""

from __future__ import annotations

from typing import Literal

import attrs

from tflgpu.compat.entry import effective_caps, judge
from tflgpu.contract.device import DeviceInfo
from tflgpu.devices.choose import default_choice
from tflgpu.errors import TflgpuError
from tflgpu.language.caps import DeviceCaps
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import Registry, registry


@attrs.frozen
class DeviceState:
    """A device and what can be expected of it, as `tflgpu devices` shows it.

    Attributes:
        info: Which one; of a backend that cannot run here one without a name, of index -1.
        state: "chosen": what ``GpuDelegate()`` uses. "ok": it opens. "failed": it does not.
            "missing": the backend cannot run here.
        reason: Why it is chosen or not, does not open, or is missing.
        caps: What is used of it; None where it was not opened.
    """

    info: DeviceInfo
    state: Literal["chosen", "ok", "failed", "missing"]
    reason: str
    caps: DeviceCaps | None = None


def devices() -> list[DeviceState]:
    """Every device, in the order of the backends' ranks, with its state and a reason. Each is
    opened and closed again, and measured where that was not done before; what the environment asks
    for counts as it does for ``GpuDelegate()``.

        for device in tflgpu.devices():
            print(device.info.backend, device.info.index, device.info.name, device.state)
    """
    known = registry()
    found: list[DeviceState] = []
    for name in known.backends:
        probe = known.probe(name, refresh=True)
        if not probe.available:
            found.append(DeviceState(DeviceInfo(name, -1, ""), "missing", probe.reason))
        found += [opened_state(known, info) for info in probe.devices if probe.available]
    choice = default_choice(known)
    why = {seen.device: seen.why for seen in choice.considered}
    return [_judged(each, choice.device, why.get(each.info, "")) for each in found]


def opened_state(known: Registry, info: DeviceInfo) -> DeviceState:
    """Whether a device works, which is only known once it is open."""
    try:
        device = known.open_device(info.backend, info.index, DelegateOptions())
        caps = device.caps
        device.close()
    except TflgpuError as error:
        return DeviceState(info, "failed", str(error))
    used = effective_caps(caps, judge(info, known.compat_entries(info.backend)))
    return DeviceState(info, "ok", "", used)


def _judged(found: DeviceState, chosen: DeviceInfo | None, why: str) -> DeviceState:
    if found.state != "ok":
        return found
    if found.info == chosen:
        return attrs.evolve(found, state="chosen", reason=why)
    return attrs.evolve(found, reason=why or "only used when asked for")
