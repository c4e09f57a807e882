"""The CPU side: the backend that runs the operators that the device does not.

Order of say: `DelegateOptions.cpu_backend`, then ``TFLGPU_CPU_BACKEND``, then the ranks of the
backends that offer themselves (`BackendInfo.cpu_rank`): LiteRT's kernels where they are installed,
the NumPy references otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tflgpu.contract.device import CustomOps, DeviceInfo, ForeignOps, NodeDevice
from tflgpu.contract.offers import offers
from tflgpu.errors import DeviceError, OptionError, StateError, TflgpuError, UnsupportedError
from tflgpu.errors.blame import LOG, did_you_mean, shown
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.lowering.reason import Unsupported
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import Registry

#: The backend of the NumPy references, which the core runs by itself.
REFERENCES = "cpu_ref"
VARIABLE = "TFLGPU_CPU_BACKEND"

_warned = False


class CpuSide:
    """Runs the operators that no device takes on the CPU. Opens nothing before it is needed.

    The owner closes it, after the sessions that use it. One thread at a time.

    Args:
        known: Where backends are found.
        options: Which one is asked for, and how it is to run.
        environ: May ask for one too.
        registerers: Of custom operators in native code, for a backend that takes them
            (`tflgpu.contract.device.CustomOps`).

    Raises:
        OptionError: the backend that was asked for does not run other devices' operators.
    """

    def __init__(
        self,
        known: Registry,
        options: DelegateOptions,
        environ: Mapping[str, str] = os.environ,
        *,
        registerers: Sequence[Any] = (),
    ) -> None:
        self._known = known
        self._options = options
        self._registerers = tuple(registerers)
        self._ranked = _ranked(known)
        self._asked = _asked(options, environ, self._ranked)
        self._device: NodeDevice | None = None
        self._chosen = False
        self._closed = False
        self._lacking: tuple[str, ...] = ()

    @property
    def device(self) -> NodeDevice | None:
        """The backend's device; None where the NumPy references run the nodes.

        Raises:
            DeviceError: the backend that was asked for cannot run here, or nothing that is here
                takes custom operators in native code, and there are some.
            OptionError: a registerer of such operators is not found, or raises.
            StateError: it is closed.
        """
        if self._closed:
            raise StateError("the CPU side of this interpreter or delegate is closed")
        if not self._chosen:
            self._device = self._open()
            if self._device is None and self._registerers:
                raise DeviceError(
                    self._no_registerers("the NumPy references take no operators in native code")
                )
            self._chosen = True
        return self._device

    @property
    def likely(self) -> DeviceInfo | None:
        """The device that `device` would open, as far as its backend's probe says; None for the
        references. Opens nothing."""
        for name in self._ranked if self._asked is None else [self._asked]:
            probe = None if name == REFERENCES else self._known.probe(name)
            if probe is None:
                break
            if probe.available and probe.devices:
                return probe.devices[0]
        return None

    @property
    def name(self) -> str:
        """The name in reports; empty for the references."""
        device = self.device
        if device is None:
            return ""
        threads = self._options.num_threads
        count = "" if threads is None else f", num_threads={threads}"
        return f"{device.info.name} ({device.info.driver}{count})"

    @property
    def settings(self) -> str:
        """The settings that its speed depends on."""
        return f"threads {self._options.num_threads}, kernels {self._options.op_resolver.name}"

    @property
    def lacking(self) -> tuple[str, ...]:
        """Where the NumPy references run what something faster could: why that is not there, and
        what to install.

        Raises:
            DeviceError, StateError: as `device`.
        """
        _ = self.device
        return self._lacking

    def infer(self, node: Node) -> Sequence[TensorSpec] | Unsupported:
        """`tflgpu.contract.device.ForeignOps.infer` of the backend in use."""
        device = self.device
        if offers(device, ForeignOps):
            return device.infer(node)
        if self._lacking:
            return Unsupported(f"LiteRT's kernels might run it, but {'; '.join(self._lacking)}")
        return Unsupported("the CPU side in use only runs operators that are defined")

    def warn_of_numpy(self) -> None:
        """Say once in a process that NumPy runs what something faster could, and what to
        install."""
        global _warned
        if self._lacking and not _warned:
            _warned = True
            LOG.warning(
                "tflgpu: what runs on the CPU is run by NumPy, which is slow, since %s",
                "; ".join(self._lacking),
            )

    def close(self) -> None:
        """Release what was opened; twice is harmless."""
        self._closed = True
        if self._device is not None:
            self._device.close()

    def _open(self) -> NodeDevice | None:
        if self._asked is not None:
            return None if self._asked == REFERENCES else self._opened(self._asked)
        lacking = []
        for name in self._ranked:
            if name == REFERENCES:
                break
            try:
                found = self._opened(name)
            except OptionError:  # of a registerer, which another backend would not know either
                raise
            except TflgpuError as error:
                lacking.append(str(error))
                continue
            for reason in lacking:
                LOG.warning("tflgpu: %s; %s runs what is left to the CPU", reason, name)
            return found
        self._lacking = tuple(lacking)
        return None

    def _opened(self, name: str) -> NodeDevice:
        """The backend's first device.

        Raises:
            DeviceError, PluginError: it cannot run here, or is none that runs nodes.
        """
        probe = self._known.probe(name)
        if not probe.available or not probe.devices:
            raise DeviceError(f"backend {name}: {probe.reason or 'it has no devices'}")
        device = self._known.open_device(name, probe.devices[0].index, self._options)
        if not isinstance(device, NodeDevice):
            device.close()
            raise DeviceError(f"backend {name}: its first device runs kernels, not operators")
        if self._registerers:
            try:
                if not offers(device, CustomOps):
                    raise UnsupportedError(f"backend {name} takes no operators in native code")
                device.register_custom_ops(self._registerers)
            except OptionError as error:
                device.close()
                raise OptionError(
                    f"custom_op_registerers {shown(list(self._registerers))}: {error}"
                ) from error
            except TflgpuError as error:
                device.close()
                raise DeviceError(self._no_registerers(str(error))) from error
        return device

    def _no_registerers(self, why: str) -> str:
        return (
            f"custom_op_registerers {shown(list(self._registerers))}: "
            f"{'; '.join((why, *self._lacking))}. "
            'LiteRT\'s kernels take them (pip install ai-edge-litert, cpu_backend="litert"); or '
            "bring "
            "the operator as a plugin (docs/tutorial-op.md)"
        )


def _ranked(known: Registry) -> list[str]:
    """The backends that offer themselves, best first."""
    ranks = {name: info.cpu_rank for name, info in known.backends.items()}
    found = [name for name, rank in ranks.items() if rank is not None]
    return sorted(found, key=lambda name: (-(ranks[name] or 0), name))


def _asked(
    options: DelegateOptions, environ: Mapping[str, str], ranked: Sequence[str]
) -> str | None:
    name, who = options.cpu_backend, "cpu_backend"
    if name is None:
        name, who = environ.get(VARIABLE, "").strip() or None, VARIABLE
    if name is not None and name != REFERENCES and name not in ranked:
        there = list(dict.fromkeys([*ranked, REFERENCES]))
        raise OptionError(
            f"{who} is one of {', '.join(there)}, not {shown(name)}{did_you_mean(name, there)}: "
            "other backends do not run what a device leaves"
        )
    return name
