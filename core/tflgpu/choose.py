"""Which backend and device a delegate uses, and why.

Order of say: `DelegateOptions`, then ``TFLGPU_BACKEND`` and ``TFLGPU_DEVICE``, then rank: real
GPUs before devices that only emulate one, a backend's rank within each.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import attrs

from tflgpu.errors import DeviceError
from tflgpu.options import DelegateOptions
from tflgpu.plugins import Registry
from tflgpu.runtime.protocols import DeviceInfo, Probe


@attrs.frozen
class Choice:
    """The device to open; None where there is none and none was asked for."""

    device: DeviceInfo | None
    reasons: tuple[str, ...]


def choose(
    registry: Registry, options: DelegateOptions, environ: Mapping[str, str] = os.environ
) -> Choice:
    """Pick a device.

    Raises:
        DeviceError: the backend or device that was asked for is not there; says what is, and
            what would enable the one asked for.
    """
    backend = options.backend
    wanted = options.device
    why = "asked for by DelegateOptions"
    if backend is None and environ.get("TFLGPU_BACKEND"):
        backend, why = environ["TFLGPU_BACKEND"], "asked for by TFLGPU_BACKEND"
    if wanted is None and environ.get("TFLGPU_DEVICE"):
        text = environ["TFLGPU_DEVICE"]
        wanted = int(text) if text.isdigit() else text
    if backend is not None:
        probe = registry.probe(backend)
        if not probe.available:
            raise DeviceError(f"backend {backend} ({why}) cannot run here: {probe.reason}")
        return Choice(_pick(backend, probe, wanted), (f"backend {backend} was {why}",))

    found: list[tuple[bool, int, DeviceInfo]] = []
    reasons: list[str] = []
    for name, info in registry.backends.items():
        probe = registry.probe(name)
        if not probe.available:
            reasons.append(f"{name}: not available: {probe.reason}")
            continue
        if info.rank < 0:
            reasons.append(f"{name}: only used when asked for")
            continue
        devices = probe.devices if wanted is None else _matching(probe, wanted)
        found += [(d.is_gpu, info.rank, d) for d in devices]
    if not found:
        if wanted is not None:
            raise DeviceError(
                f"no backend has a device {wanted!r}; `tflgpu devices` lists what there is. "
                + "; ".join(reasons)
            )
        return Choice(None, (*reasons, "no device can run kernels; everything runs on the CPU"))
    # Position within a backend breaks ties: its first device is its best.
    found.sort(key=lambda f: (not f[0], -f[1], f[2].index))
    is_gpu, rank, best = found[0]
    kind = "a GPU" if is_gpu else "no GPU, but the best there is"
    reasons.append(f"{best.backend} device {best.index} ({best.name}): {kind}, rank {rank}")
    return Choice(best, tuple(reasons))


def _matching(probe: Probe, wanted: int | str) -> list[DeviceInfo]:
    if isinstance(wanted, int):
        return [d for d in probe.devices if d.index == wanted]
    return [d for d in probe.devices if wanted.lower() in d.name.lower()]


def _pick(backend: str, probe: Probe, wanted: int | str | None) -> DeviceInfo:
    if wanted is None:
        return probe.devices[0]
    matching = _matching(probe, wanted)
    if not matching:
        listed = ", ".join(f"{d.index}: {d.name}" for d in probe.devices)
        raise DeviceError(f"backend {backend} has no device {wanted!r}; it has {listed}")
    return matching[0]
