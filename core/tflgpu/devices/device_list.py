"""`CompatibilityList`: is there a GPU here that a delegate should be used on, and how?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

from tflgpu.compat.entry import CompatEntry, Judgement, judge
from tflgpu.contract.device import DeviceInfo
from tflgpu.devices.candidates import ExaminedDevice, milliseconds
from tflgpu.devices.choose import Choice, default_choice
from tflgpu.errors import OptionError
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import Registry, registry

if TYPE_CHECKING:
    from rich.table import Table


@attrs.frozen
class Explanation:
    """Why a device was chosen, and why the others were not.

    ``print(explanation)`` gives text; rich's ``print`` and consoles show a table.

    Attributes:
        devices: Every device that was looked at, best first, those that were left out last.
        reasons: In the order in which they were found, with those that are about no device (a
            backend that is not available).
    """

    devices: tuple[ExaminedDevice, ...]
    reasons: tuple[str, ...]

    @property
    def chosen(self) -> ExaminedDevice | None:
        """The device to use, None where there is none."""
        return next((d for d in self.devices if d.chosen), None)

    def __str__(self) -> str:
        lines = []
        for seen in self.devices:
            info = seen.device
            mark = "*" if seen.chosen else " "
            lines.append(f"{mark} {info.backend} device {info.index}: {info.name} ({info.driver})")
            lines.append(f"    test plan: {_time(seen)}")
            lines += [f"    database: {known}" for known in _known(seen)]
            lines.append(f"    {seen.why}")
        return "\n".join([*lines, *self._others])

    def __rich__(self) -> Table:
        # Not everybody who chooses a device prints tables.
        from rich import table, text

        listed = table.Table(box=None, pad_edge=False, caption_justify="left")
        for column in ("", "device", "name", "test plan", "database", "why"):
            listed.add_column(column, overflow="fold", header_style="dim")
        for seen in self.devices:
            info = seen.device
            cells = (
                "*" if seen.chosen else "",
                f"{info.backend} {info.index}",
                info.name,
                _time(seen),
                "\n".join(_known(seen)),
                seen.why,
            )
            listed.add_row(*map(text.Text, cells), style="bold" if seen.chosen else "")
        listed.caption = text.Text("\n".join(self._others))
        return listed

    @property
    def _others(self) -> Sequence[str]:
        """Reasons that are about none of the devices."""
        labels = tuple(
            f"{d.device.backend} device {d.device.index} ({d.device.name}): " for d in self.devices
        )
        return [reason for reason in self.reasons if not reason.startswith(labels)]


class CompatibilityList:
    """Which device `GpuDelegate()` would use on this machine, and what is known of all of them.

    The counterpart of TFLite's ``CompatibilityList``:

        supported = tflgpu.CompatibilityList()
        if supported.is_delegate_supported_on_this_device:
            delegate = tflgpu.GpuDelegate(supported.best_options_for_this_device)

    The answer is made as `GpuDelegate` makes it, from the same database, and the same measured
    and remembered times: devices are opened, and measured where they have not been before, when
    a list is first asked, and closed again. A list keeps its answer; another one looks at the
    machine anew. ``TFLGPU_BACKEND`` and ``TFLGPU_DEVICE`` narrow it down as they do for
    `GpuDelegate`.
    """

    def __init__(self, plugins: Registry | None = None) -> None:
        """Look at the installed plugins, or at those of a registry.

        Raises:
            OptionError: ``plugins`` is something else.
        """
        if plugins is not None and not isinstance(plugins, Registry):
            raise OptionError(f"plugins is a Registry, not {type(plugins).__name__}")
        self._registry = registry() if plugins is None else plugins

    @property
    def is_delegate_supported_on_this_device(self) -> bool:
        """Whether a real GPU would be used.

        A device that computes on the CPU can run a delegate too, but is no reason to use one.
        """
        choice = self.choice
        return choice.device is not None and choice.judgement.is_gpu(choice.device)

    @property
    def best_options_for_this_device(self) -> DelegateOptions:
        """Options for the device that `GpuDelegate()` would use, with what the database advises
        for it; the defaults where there is none."""
        choice = self.choice
        if choice.device is None:
            return DelegateOptions()
        info, tuned = choice.device, choice.judgement.options
        return DelegateOptions(**tuned).changed(backend=info.backend, device=info.index)

    @cached_property
    def choice(self) -> Choice:
        """The device that `GpuDelegate()` would use, and why."""
        known = self._registry
        for name in known.backends:
            known.probe(name, refresh=True)  # a driver may have come or gone since the last time
        return default_choice(known)

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """Every device that may be chosen; the one to use first, then by what is known of them."""
        allowed = [d for d in self.choice.considered if not d.judgement.denied or d.chosen]
        return tuple(d.device for d in sorted(allowed, key=lambda d: not d.chosen))

    def explain(self) -> Explanation:
        """Every device with its database entries, its measured time, and why it would be used or
        not."""
        return Explanation(self.choice.considered, self.choice.reasons)

    def verdict(self, device: DeviceInfo) -> Judgement:
        """The database's verdict on a device.

        Raises:
            DeviceError: there is no backend of the device's.
        """
        return judge(device, self.entries(device.backend))

    def entries(self, backend: str) -> tuple[CompatEntry, ...]:
        """The entries for a backend, shipped and from plugins.

        Raises:
            DeviceError: there is no such backend.
        """
        return self._registry.compat_entries(backend)


def _time(seen: ExaminedDevice) -> str:
    if seen.seconds is None:
        return "not measured"
    return milliseconds(seen.seconds) + (", measured before" if seen.remembered else "")


def _known(seen: ExaminedDevice) -> Sequence[str]:
    known = zip(seen.judgement.reasons, seen.judgement.sources, strict=True)
    return [f"{reason}; {source}" if source else reason for reason, source in known] or ["no entry"]
