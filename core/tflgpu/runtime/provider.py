"""Where a model's sessions are loaded: a device with the CPU beside it, or the CPU alone.

    cpu_only(...)        no delegate was given, or the device was given up
    a GpuDelegate's      the device that its options ask for; a failure is an error unless they say
                         otherwise
    shared_provider(...) the best GPU there is, for models without a delegate; the CPU takes over
                         what fails

Models of a process without a delegate share one opened device (for the same options and
environment). It is closed when the last of them lets go of it. Such a device is there to help, and
must not stop a model that ran without it: the CPU does what a GPU, its driver or a plugin cannot
do, and the report and the log say why.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from tflgpu.backend_kit.forks import call_in_child, free_in_child
from tflgpu.backend_kit.progress import Progress
from tflgpu.compiler.numerics import Numerics
from tflgpu.compiler.report_values import AccuracyCheck
from tflgpu.contract.device import Device, NodeDevice
from tflgpu.devices.no_gpu import tell_of_no_gpu
from tflgpu.errors import TflgpuError
from tflgpu.errors.blame import LOG
from tflgpu.lowering.reason import ReasonCode
from tflgpu.options import DelegateOptions, OnError
from tflgpu.plugins.registry import registry
from tflgpu.runtime.opened_device import OpenedDevice
from tflgpu.saved.location import SavedLocation
from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.ops.base import OpDef
    from tflgpu.runtime.session import Session

_MOST_CHECKS = 32


def _checks() -> deque[AccuracyCheck]:
    return deque(maxlen=_MOST_CHECKS)


class Lease:
    """One interpreter's share in a device, which ends with the interpreter: a provider may live on
    in the frames of an exception."""

    def __init__(self, shared: _Shared) -> None:
        self.shared: _Shared | None = shared

    def end(self) -> None:
        """Let go of the device; twice is harmless."""
        self.shared = None


@frozen(eq=False)
class Provider:
    """An opened device or none, what follows its failures, and where compiled models come from.

    Attributes:
        options: Of the delegate.
        opened: The device; None where only the CPU is used.
        reason: Why only the CPU is used, and ``code``, the kind of reason.
        numerics: How the CPU alone computes quantized models.
        keeping: Where compiled models come from.
        accuracy: What accuracy guards found, the latest last.
        lease: A share in the device of models without a delegate; None for others.
    """

    options: DelegateOptions
    opened: OpenedDevice | None = None
    reason: str = ""
    code: ReasonCode = ReasonCode.NO_DELEGATE
    numerics: Numerics = Numerics.FLOAT
    keeping: SavedLocation = SavedLocation()
    accuracy: deque[AccuracyCheck] = attrs.field(factory=_checks)
    lease: Lease | None = None

    @property
    def device(self) -> Device | NodeDevice | None:
        """The device in use; None where everything runs on the CPU."""
        return None if self.opened is None else self.opened.device

    def usable(self) -> OpenedDevice:
        """What ``opened`` is, of a provider that is not of the CPU alone.

        Raises:
            StateError: it is closed, or was opened before a fork.
        """
        assert self.opened is not None
        self.opened.check_open()
        return self.opened

    @property
    def ops(self) -> Mapping[str, OpDef]:
        """Op definitions by name, those of plugins among them."""
        return (registry() if self.opened is None else self.opened.registry).ops()

    @property
    def gives_way(self) -> bool:
        """Whether the CPU takes over what fails, since tflgpu chose this device itself."""
        return self.lease is not None and self.options.allow_fallback

    @property
    def on_error(self) -> OnError:
        """What follows a failed run: the option ``on_error``; by default the CPU where the device
        is tflgpu's own choice, else the error."""
        if self.opened is None:
            return OnError.RAISE  # of the CPU's
        if self.options.on_error is not None:
            return self.options.on_error
        return OnError.CPU if self.gives_way else OnError.RAISE

    def renew(self, session: Session) -> None:
        """As `OpenedDevice.renew`; nothing where only the CPU is used."""
        if self.opened is not None:
            self.opened.renew(session)

    def given_up(self, error: TflgpuError, said: str) -> Provider:
        """The CPU alone, since a run failed. Other models without a delegate get a device that is
        opened anew."""
        reason = f"a run failed: {said}"
        if self.lease is not None:
            reason = f"the default delegate failed in a run: {_first_line(error)}"
            _forget(self.lease.shared)
        return cpu_only(self.options, reason, ReasonCode.DEVICE_FAILED, _numerics(self.options))


def device_provider(
    options: DelegateOptions,
    *,
    keeping: SavedLocation = SavedLocation(),  # noqa: B008  (frozen)
    progress: Progress | None = None,
) -> Provider:
    """The device that options ask for.

    Raises:
        DeviceError, OptionError: as `OpenedDevice`.
    """
    return _on(OpenedDevice(options, progress=progress), keeping)


def cpu_only(
    options: DelegateOptions,
    reason: str = "no delegate was given",
    code: ReasonCode = ReasonCode.NO_DELEGATE,
    numerics: Numerics = Numerics.FLOAT,
) -> Provider:
    """No device at all."""
    return Provider(options, None, reason, code, numerics)


def shared_provider(options: DelegateOptions) -> Provider:
    """The GPU of models without a delegate; the CPU alone, with a warning, where opening it fails.

    Raises:
        TflgpuError: opening it failed, and ``allow_fallback`` is off.
    """
    key = (registry(), options, _environment())
    try:
        with _opening:
            shared = _shared.get(key)
            if shared is None:
                shared = _shared[key] = _Shared(OpenedDevice(options, only_gpus=True))
                LOG.info("tflgpu: default delegate: %s", shared.opened.why_none)
                if shared.opened.device is None and not shared.opened.choice.explicit:
                    tell_of_no_gpu(shared.opened.cpu)
    except Exception as error:
        if not options.allow_fallback:
            raise
        warn_of_default(error)
        return cpu_only(
            options, failure_of_default(error), ReasonCode.DEVICE_FAILED, _numerics(options)
        )
    return _on(shared.opened, SavedLocation(), Lease(shared))


def failure_of_default(error: Exception) -> str:
    """Why a model without a delegate runs on the CPU, for its report."""
    return f"the default delegate failed: {_first_line(error)}"


def warn_of_default(error: Exception) -> None:
    """Say that the CPU runs a model since the device that tflgpu chose failed."""
    LOG.warning(
        "tflgpu: the model runs on the CPU, since the default delegate failed: %s",
        str(error),
        exc_info=None if isinstance(error, TflgpuError) else error,
    )


def _on(opened: OpenedDevice, keeping: SavedLocation, lease: Lease | None = None) -> Provider:
    options = opened.options
    return Provider(
        options,
        opened,
        opened.why_none,
        ReasonCode.NO_DEVICE,
        _numerics(options),
        keeping.asked(options),
        lease=lease,
    )


def _numerics(options: DelegateOptions) -> Numerics:
    # Only on a device are integers chosen to save memory: here they would be NumPy's.
    return options.quantized_numerics or Numerics.FLOAT


class _Shared:
    """A device that leases keep open; it is closed with the last of them."""

    def __init__(self, opened: OpenedDevice) -> None:
        self.opened = opened
        weakref.finalize(self, _close, opened)


def _close(opened: OpenedDevice) -> None:
    try:
        opened.close()
    except TflgpuError as error:  # no caller is there to be told
        LOG.warning("tflgpu: default delegate: %s", str(error))


_shared: weakref.WeakValueDictionary[object, _Shared] = weakref.WeakValueDictionary()
_opening = free_in_child()
# A child opens a device of its own.
call_in_child(_shared.clear)


def _forget(forgotten: _Shared | None) -> None:
    with _opening:
        for key, shared in list(_shared.items()):
            if shared is forgotten:
                del _shared[key]


def _environment() -> tuple[tuple[str, str], ...]:
    """The environment variables that may change the choice of a device."""
    return tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith("TFLGPU_")))


def _first_line(error: Exception) -> str:
    said = next(iter(str(error).splitlines()), "")
    return said if isinstance(error, TflgpuError) and said else f"{type(error).__name__}: {said}"
