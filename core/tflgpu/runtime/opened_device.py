"""The device that options ask for, opened: what it makes of graphs, opening it anew, its end."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

from tflgpu.backend_kit.forks import CLOSED_EARLY, Holder, immortal
from tflgpu.backend_kit.progress import Progress
from tflgpu.backend_kit.run_guard import RunGuard
from tflgpu.compat.entry import effective_caps
from tflgpu.compiler.machines import TimeModel
from tflgpu.compiler.partition_by import PartitionBy
from tflgpu.compiler.parts import Compiled
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_of import on_device
from tflgpu.contract.device import Device, NodeDevice
from tflgpu.devices.choose import open_best
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.devices.device_options import objections, partition_by, precision_note, precision_on
from tflgpu.devices.no_gpu import warn_of_emulation
from tflgpu.errors import OptionError, StateError, TflgpuError
from tflgpu.errors.blame import LOG, attempt
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.precision import Precision
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import Registry, registry
from tflgpu.runtime.loading import Loader
from tflgpu.runtime.session import Session
from tflgpu.saved.kept_choices import KeptChoices

if TYPE_CHECKING:
    from tflgpu.compiler.target import Target
    from tflgpu.runtime.keep_warm import KeepWarm

#: A logger of its own, so that a program which prints the choice can turn these reasons off.
CHOICE = logging.getLogger("tflgpu.choice")


class OpenedDevice(Holder):
    """The device that options ask for, opened, and the CPU beside it.

    Attributes:
        options: As the user gave them.
        device: The opened device; None where everything runs on the CPU.
        choice: Which device, and why.
        partitioning: Whether the device gets all that it can run or only what pays, and why.
        cpu: Runs what the device does not, where an interpreter brings no CPU side of its own.
        registry: Where ops, kernel rules and plugins are found.
        broken_rules: Kernel rules that broke their contract, which later targets leave out: by
            (owner, op, name), with the reason.

    Raises:
        DeviceError: the backend or device asked for is not there or cannot be opened.
        OptionError: the device cannot do what was asked for.
    """

    def __init__(
        self,
        options: DelegateOptions,
        *,
        only_gpus: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Open it.

        Args:
            options: Which device, and how it is used.
            only_gpus: For models without a delegate. Only a GPU is taken then, or what the
                environment names, and what fails on it may always run on the CPU.
            progress: Told how many of a part's kernels are ready, and of how many.
        """
        self.options = options
        self.registry: Registry = registry()
        self.cpu = CpuSide(self.registry, self.options)
        self.broken_rules: dict[tuple[str, str, str], str] = {}
        self._only_gpus = only_gpus
        self._progress = progress
        self._closed = False
        self._guard = RunGuard("this delegate")
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        # Lost devices, each with its sessions: each hears by itself, at its next run, that its
        # device is lost.
        self._replaced: list[tuple[Device | NodeDevice, weakref.WeakSet[Session]]] = []
        self._renewal = threading.Lock()
        self._times: TimeModel | None = None  # measured when it is first needed
        self._warm: KeepWarm | None = None
        self.device: Device | NodeDevice | None = None
        self.belongs_to_process()
        self._open()
        if options.keep_warm is not None and isinstance(self.device, Device):
            from tflgpu.runtime.keep_warm import KeepWarm  # few options ask for it

            self._warm = KeepWarm(self._use, options.keep_warm)
        if not only_gpus and not self.choice.explicit:
            self._say_without_gpu()

    @property
    def why_none(self) -> str:
        """Why there is no device."""
        return "; ".join(self.choice.reasons)

    @property
    def caps(self) -> DeviceCaps:
        """What is used of the device: its capabilities, less what the device database knows to
        be broken."""
        if self.device is None:
            return DeviceCaps()
        return effective_caps(self.device.caps, self.choice.judgement)

    @property
    def precision(self) -> Precision:
        """The precision in use: the one asked for, or the next that the device has."""
        if self.device is None:
            return Precision.F32
        return precision_on(self.caps, self.options.wanted_precision)

    @property
    def may_fall_back(self) -> bool:
        """Whether a part that fails to load may run elsewhere: not on a device asked for by
        name."""
        return self.options.allow_fallback and (self._only_gpus or not self.choice.explicit)

    def signed(self, report: DelegationReport) -> DelegationReport:
        """A report with the device, the precision and the reasons for them in it."""
        if self.device is None:
            return attrs.evolve(report, choice=self.choice.reasons)
        by, why = self.partitioning
        report = attrs.evolve(report, partitioning=by.value, partitioning_reason=why)
        info = self.device.info
        choice = self.choice.reasons + precision_note(self.options.wanted_precision, self.precision)
        return on_device(report, info.backend, info.name, self.precision.value, choice)

    def kernel_device(self, error: type[TflgpuError], done: str) -> Device:
        """The device, if it runs kernels.

        Raises:
            TflgpuError: of the type ``error``: it does not, so that nothing can be ``done``.
        """
        device = self.device
        if device is None or isinstance(device, NodeDevice):
            here = (
                "there is no device"
                if device is None
                else f"{device.info.backend} device {device.info.index} ({device.info.name}) has "
                "no kernels"
            )
            raise error(
                f"{here}, and only what is compiled for a device that runs "
                f"kernels can be {done}; `tflgpu devices` lists what there is"
            )
        return device

    @cached_property
    def kept_choices(self) -> KeptChoices:
        """What was measured of ways to write kernels for the device, which must be there."""
        device, options = self.device, self.options
        assert device is not None
        on_disk = options.enable_serialization is not False
        plugins = self.registry.plugins
        return KeptChoices(device.info, device.caps, plugins, on_disk=on_disk)

    def target(self) -> Target:
        """What to compile for. The device must be there."""
        # Not at the top: a start from a kept model compiles nothing.
        from tflgpu.devices.targets import target_on
        from tflgpu.runtime.timing import time_model

        assert self.device is not None
        target = target_on(
            self.device,
            self.caps,
            self.registry,
            self.options,
            broken_rules=self.broken_rules,
            spares_broken_rules=self.may_fall_back,
        )
        site = attrs.evolve(target.site, choices=self.kept_choices.choices())
        target = attrs.evolve(target, site=site)
        if self.partitioning[0] is PartitionBy.ALL:
            return target
        if self._times is None:
            self._times = time_model(self.device, target, self.cpu, self.registry)
        return attrs.evolve(target, by_gain=True, times=self._times)

    def noted(self, compiled: Compiled) -> Compiled:
        """What was compiled; kernel rules that broke meanwhile are left out from now on."""
        for rule, reason in compiled.broken_rules.items():
            LOG.warning("tflgpu: a kernel rule is left out: %s", reason)
            self.broken_rules[rule] = reason
        return compiled

    def loader(self, cpu: CpuSide | None = None) -> Loader:
        """Loads compiled parts on the device, and those of the CPU on ``cpu``."""
        assert self.device is not None
        return Loader(
            self.device,
            self.registry,
            cpu or self.cpu,
            self.options,
            self.may_fall_back,
            progress=self._progress,
        )

    def used(self, opened: Callable[[], Session]) -> Session:
        """A session on the device as it is now, which is closed after it. Closes devices that were
        replaced and have no session left."""
        for entry in tuple(self._replaced):
            if all(session.is_closed for session in entry[1]):
                attempt(entry[0].close)  # nothing is expected of a lost one
                if entry in self._replaced:
                    self._replaced.remove(entry)
        sessions = self._sessions
        session = opened()
        sessions.add(session)
        return session

    def renew(self, session: Session) -> None:
        """Open the device anew, since it is lost; nothing where that was done since ``session`` was
        opened. Sessions that are opened from now on are on the new one.

        Raises:
            DeviceError: it cannot be opened.
            OptionError: what is there now cannot do what was asked for.
            StateError: closed, or opened before a fork.
        """
        self.check_open()
        device = self.device
        with self._renewal:
            if device is not None and session in self._sessions:
                LOG.warning("tflgpu: device %s is lost, and opened anew", device.info.name)
                self._open()
                self._replaced.append((device, self._sessions))
                self._sessions = weakref.WeakSet()

    def check_open(self) -> None:
        """That it can be used.

        Raises:
            StateError: closed, or opened before a fork.
        """
        self.check_inherited("this delegate's device")
        if self._closed:
            raise StateError(f"this delegate is closed: {CLOSED_EARLY}")

    def close(self) -> None:
        """Release the device; twice is harmless. Close the sessions on it first."""
        self._guard.close(self._release)

    def after_fork(self) -> None:
        """A child may not touch its device."""
        if self.device is not None:
            super().after_fork()
            immortal(self.device)

    # Inside

    def _use(self) -> tuple[Device | NodeDevice | None, int]:
        """The device, and the runs of the sessions on it."""
        return self.device, sum(session.traffic.runs for session in tuple(self._sessions))

    def _say_without_gpu(self) -> None:
        if self.device is None:
            for reason in self.choice.reasons:
                CHOICE.warning("tflgpu: %s", reason)
        elif not self.choice.judgement.is_gpu(self.device.info):
            precision = self.precision.value
            warn_of_emulation(self.device.info, precision, self.cpu, self.registry, CHOICE)

    def _release(self) -> None:
        self._closed = True
        self.cpu.close()
        if self.inherited:
            return
        if self._warm is not None:
            self._warm.close()
        while self._replaced:
            attempt(self._replaced[-1][0].close)
            self._replaced.pop()
        if self.device is not None:
            self.device.close()

    def _open(self) -> None:
        """Open the device, and see whether it can do what the options ask for; close it if not."""
        self._times = None
        self.choice, self.device = open_best(self.registry, self.options, only_gpus=self._only_gpus)
        self.partitioning = partition_by(self.options, self.choice)
        if self.device is None:
            return
        if isinstance(self.device, NodeDevice):
            try:
                notes = objections(self.options, self.device, explicit=self.choice.explicit)
            except OptionError:
                self.close()
                raise
            for note in notes:
                LOG.warning("tflgpu: %s", note)
            self.choice = attrs.evolve(self.choice, reasons=(*self.choice.reasons, *notes))
