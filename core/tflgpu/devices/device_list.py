"""`CompatibilityList`: is there a GPU here that a delegate should be used on, and how?"""

from __future__ import annotations

from tflgpu.compat.entry import CompatEntry
from tflgpu.compat.judge import Judgement, judge
from tflgpu.contract.device import DeviceInfo
from tflgpu.devices.choose import Choice, choose, find_candidates
from tflgpu.errors import DeviceError, OptionError
from tflgpu.options import DelegateOptions
from tflgpu.plugins import Registry, registry


class CompatibilityList:
    """What is known of the devices of this machine, without opening any.

    The counterpart of TFLite's ``CompatibilityList``:

        supported = tflgpu.CompatibilityList()
        if supported.is_delegate_supported_on_this_device:
            delegate = tflgpu.GpuDelegate(supported.best_options_for_this_device)

    ``TFLGPU_BACKEND`` and ``TFLGPU_DEVICE`` narrow it down as they do for `GpuDelegate`. As
    nothing is opened, a driver that is broken in a way that the database does not know is not
    noticed, and of several GPUs the best-ranked one is given, not the fastest.
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
        """Whether there is a real GPU that the database does not deny.

        A device that computes on the CPU can run a delegate too, but is no reason to use one.
        """
        choice = self.choice
        return choice.device is not None and choice.judgement.is_gpu(choice.device)

    @property
    def best_options_for_this_device(self) -> DelegateOptions:
        """Options for the device that would be chosen, with what the database advises for it;
        the defaults where there is none."""
        choice = self.choice
        if choice.device is None:
            return DelegateOptions()
        info, tuned = choice.device, choice.judgement.options
        return DelegateOptions(**tuned).changed(backend=info.backend, device=info.index)

    @property
    def choice(self) -> Choice:
        """The device that would be chosen, and why."""
        try:
            return choose(self._registry, DelegateOptions())
        except (DeviceError, OptionError) as error:  # what the environment asks for is not there
            return Choice(None, (str(error),))

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """Every device that may be chosen, best first."""
        try:
            found = find_candidates(self._registry, DelegateOptions()).found
        except (DeviceError, OptionError):
            return ()
        return tuple(c.info for c in found)

    def verdict(self, device: DeviceInfo) -> Judgement:
        """What the database says of a device.

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
