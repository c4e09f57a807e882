"""The device that options ask for, opened: what can be used of it, opening it anew, its end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from tflgpu.compat.judge import effective_caps
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_of import on_device
from tflgpu.contract.device import Device, NodeDevice
from tflgpu.contract.forks import Holder, immortal
from tflgpu.contract.run_guard import Closable, RunGuard
from tflgpu.devices.choose import open_best
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.devices.honoured import objections
from tflgpu.devices.paying import partition_by
from tflgpu.devices.renewal import Renewal
from tflgpu.devices.wanted import precision_note, precision_on
from tflgpu.errors import OptionError, StateError
from tflgpu.lowering.caps import DeviceCaps
from tflgpu.lowering.precision import Precision
from tflgpu.options import DelegateOptions
from tflgpu.plugins import Registry, registry
from tflgpu.runtime.session import Session

if TYPE_CHECKING:
    from tflgpu.ops.base import OpDef

_LOG = logging.getLogger("tflgpu")
#: Its own, so that whoever shows the choice can turn the reasons off and leave the rest of the log on.
CHOICE = logging.getLogger("tflgpu.choice")


class OpenedDevice(Closable, Holder):
    """The device that options ask for, opened, and the CPU beside it. The interpreters that use it are closed first.

    Attributes:
        options: As the user gave them.
        choice: Which device, and why.
        partitioning: What goes to it of all that it can run, and why that.

    Raises:
        DeviceError: the backend or device asked for is not there or cannot be opened.
        OptionError: the device cannot do what was asked for.
    """

    def __init__(self, options: DelegateOptions, *, is_default: bool = False) -> None:
        """Open it.

        Args:
            options: Which device, and how it is used.
            is_default: Nobody asked for a delegate. Only a GPU is taken then, or what the
                environment names, and what fails on it may always run on the CPU.
        """
        self.options = options
        self._is_default = is_default
        self._registry: Registry = registry()
        self._closed = False
        self._guard = RunGuard("this delegate")
        self._cpu = CpuSide(self._registry, self.options)
        self._renewal = Renewal()
        self._device: Device | NodeDevice | None = None
        self.belongs_to_process()
        self._open()
        if self._device is None and not is_default:
            for reason in self.choice.reasons:
                CHOICE.warning("tflgpu: %s", reason)

    @property
    def device(self) -> Device | NodeDevice | None:
        """The opened device, None where everything runs on the CPU."""
        return self._device

    @property
    def caps(self) -> DeviceCaps:
        """What is used of the device: its capabilities, less what the device database knows to
        be broken."""
        if self._device is None:
            return DeviceCaps()
        return effective_caps(self._device.caps, self.choice.judgement)

    @property
    def precision(self) -> Precision:
        """The precision in use: the one asked for, or the next that the device has."""
        if self._device is None:
            return Precision.F32
        return precision_on(self.caps, self.options.wanted_precision)

    @property
    def ops(self) -> Mapping[str, OpDef]:
        """Op definitions by name, those of plugins among them."""
        return self._registry.ops()

    def signed(self, report: DelegationReport) -> DelegationReport:
        """A report with this delegate's device, precision and reasons for them in it."""
        if self._device is None:
            return attrs.evolve(report, choice=self.choice.reasons)
        by, why = self.partitioning
        report = attrs.evolve(report, partitioning=by.value, partitioning_reason=why)
        info = self._device.info
        choice = self.choice.reasons + precision_note(self.options.wanted_precision, self.precision)
        return on_device(report, info.backend, info.name, self.precision.value, choice)

    def renew(self, session: Session) -> None:
        """Open the device anew, since it is lost; nothing where that was done since ``session`` was
        opened. Sessions that are opened from now on are on the new one.

        Raises:
            DeviceError: it cannot be opened.
            OptionError: what is there now cannot do what was asked for.
            StateError: closed, or opened before a fork.
        """
        self._check_open()
        if self._device is not None:
            self._renewal.replace(self._device, session, self._open)

    def after_fork(self) -> None:
        """A child may not touch its device."""
        if self._device is not None:
            super().after_fork()
            self._renewal.after_fork()
            immortal(self._device)

    # Inside

    def _close(self) -> None:
        self._guard.close(self._release)

    def _release(self) -> None:
        self._closed = True
        self._cpu.close()
        if self.inherited:
            return
        self._renewal.close()
        if self._device is not None:
            self._device.close()

    def _check_open(self) -> None:
        self.check_inherited("this delegate's device")
        if self._closed:
            raise StateError("this delegate is closed")

    def _open(self) -> None:
        """Open the device, and see whether it can do what the options ask for; close it if not."""
        self.choice, self._device = open_best(
            self._registry, self.options, only_gpus=self._is_default
        )
        self.partitioning = partition_by(self.options, self.choice)
        if self._device is None:
            return
        try:
            notes = objections(self.options, self._device, explicit=self.choice.explicit)
        except OptionError:
            self._close()
            raise
        for note in notes:
            _LOG.warning("tflgpu: %s", note)
        self.choice = attrs.evolve(self.choice, reasons=(*self.choice.reasons, *notes))

    @property
    def _may_fall_back(self) -> bool:
        """Whether what fails on the device may run elsewhere: nobody asked for just this device."""
        return self.options.allow_fallback and (self._is_default or not self.choice.explicit)
