"""What a process without a GPU is told, once: which device or CPU side computes instead, and how
much slower a device that computes on the CPU is, by figures that were measured earlier."""

from __future__ import annotations

import logging

import attrs

from tflgpu.compiler.machines import Machine
from tflgpu.contract.device import DeviceInfo
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.devices.measured_times import (
    MeasuredTimes,
    default_folder,
    device_settings,
    figures_key,
)
from tflgpu.errors.blame import LOG
from tflgpu.plugins.registry import Registry

_said: set[str] = set()


def warn_of_emulation(
    info: DeviceInfo, precision: str, cpu: CpuSide, known: Registry, logger: logging.Logger
) -> None:
    """Warn, once in a process, that a delegate computes on the CPU by a driver for GPUs where
    faster kernels for the CPU are installed. Nothing is measured for it, and nothing is opened."""
    faster = cpu.likely
    if faster is None or "emulation" in _said:
        return
    ratio = kept_ratio(info, precision, cpu, known)
    if ratio is not None and ratio <= 1:
        return
    _said.add("emulation")
    much = "" if ratio is None else f" (matrix products take {ratio:.1f} times as long, measured)"
    logger.warning(
        "tflgpu: no GPU was found. The delegate uses %s (%s), which computes on the CPU and is "
        "usually slower than %s%s. For these run without a delegate, or set TFLGPU_BACKEND=cpu; "
        "GpuDelegate(backend=%r) uses the device without this warning",
        info.name,
        info.backend,
        faster.name,
        much,
        info.backend,
    )


def tell_of_no_gpu(cpu: CpuSide) -> None:
    """Say, once in a process, that models without a delegate run on the CPU, since no GPU was
    found."""
    if "no gpu" in _said:
        return
    _said.add("no gpu")
    side = cpu.likely
    LOG.info(
        "tflgpu: no GPU was found, so models run on the CPU by %s; `tflgpu devices` says what each "
        "backend needs, and TFLGPU_DEFAULT_DELEGATE=0 stops looking for one",
        "NumPy" if side is None else side.name,
    )


def kept_ratio(info: DeviceInfo, precision: str, cpu: CpuSide, known: Registry) -> float | None:
    """How many times as long a matrix product takes on a device as on the CPU side, by figures that
    are kept on disk; None where either has none."""
    side = cpu.likely
    if side is None:
        return None
    store = MeasuredTimes(default_folder())
    found = []
    for machine, settings in ((info, device_settings(precision)), (side, cpu.settings)):
        key = figures_key(machine, known.distribution(machine.backend), settings)
        figures = store.load(key, len(attrs.fields(Machine)))
        if figures is None:
            return None
        found.append(Machine(*figures).flop)
    return found[0] / found[1]
