"""How much energy runs take: counters of NVIDIA's driver (NVML) and of the processor (RAPL)."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from tflgpu.devices.nvml import load_nvml

#: Where Linux has the counters of processors.
_POWERCAP = Path("/sys/class/powercap")
_NAME_SIZE = 96

#: Joules since some moment in the past.
Counter = Callable[[], float]


@attrs.frozen
class Energy:
    """Joules for each item, with what the machine takes when it is idle.

    Attributes:
        gpu: Of the GPU; None where it does not tell, or none is used.
        cpu: Of the processors, their memory left out; None where they do not tell.
        reasons: Why a figure is missing.
        seconds: How long was measured.
    """

    gpu: float | None
    cpu: float | None
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0


def measure_energy(
    work: Callable[[], int], seconds: float, gpu: Counter | str | None, cpu: Counter | str
) -> Energy:
    """Work for so many seconds, and read the counters before and after.

    Args:
        work: Does something, and returns how many items it was for.
        seconds: The counters of a GPU have new numbers every tenth of a second, so that a second is
            the least that makes sense.
        gpu: The GPU's counter, or why there is none; None where no GPU is used.
        cpu: That of the processors, or why there is none.
    """
    counters = {"gpu": gpu, "cpu": cpu}
    told = {name: c for name, c in counters.items() if callable(c)}
    reasons = tuple(c for c in counters.values() if isinstance(c, str))
    if not told:
        return Energy(None, None, reasons)
    before = {name: counter() for name, counter in told.items()}
    items, start = 0, time.perf_counter()
    while not items or time.perf_counter() - start < seconds:
        items += work()
    took = time.perf_counter() - start
    spent = {name: (counter() - before[name]) / items for name, counter in told.items()}
    return Energy(spent.get("gpu"), spent.get("cpu"), reasons, took)


def gpu_counter(device: str, library: Any = None) -> Counter | str:
    """The counter of the NVIDIA GPU of that name; or why there is none.

    Args:
        device: As the API calls it, which for NVIDIA's is the driver's own name.
        library: NVML; None loads it.
    """
    nvml = load_nvml() if library is None else library
    if nvml is None:
        return f"energy of {device}: NVIDIA's management library (NVML) is not here"
    if nvml.nvmlInit_v2():
        return f"energy of {device}: NVML finds no driver"
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    found = []
    for index in range(count.value):
        handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_SIZE)
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        nvml.nvmlDeviceGetName(handle, name, _NAME_SIZE)
        if name.value.decode(errors="replace") in device:
            found.append(handle)
    if len(found) != 1:
        told = f"{len(found)} GPUs of that name" if found else "no GPU of that name"
        return f"energy of {device}: NVML knows {told}"
    spent = ctypes.c_ulonglong()

    def joules() -> float:
        nvml.nvmlDeviceGetTotalEnergyConsumption(found[0], ctypes.byref(spent))
        return spent.value * 1e-3

    if nvml.nvmlDeviceGetTotalEnergyConsumption(found[0], ctypes.byref(spent)):
        return f"energy of {device}: the GPU counts none"
    return joules


def cpu_counter(folder: Path = _POWERCAP) -> Counter | str:
    """The counters of all processors together; or why there are none."""
    packages = [p for p in sorted(folder.glob("*-rapl:*")) if p.name.count(":") == 1]
    if not packages:
        return f"energy of the CPU: no counters (RAPL) in {folder}"
    try:
        ranges = [int((p / "max_energy_range_uj").read_text()) for p in packages]
        last = [int((p / "energy_uj").read_text()) for p in packages]
    except OSError as error:
        return f"energy of the CPU: {error.filename}: {error.strerror}"
    total = 0

    def joules() -> float:
        nonlocal total
        for at, (package, span) in enumerate(zip(packages, ranges, strict=True)):
            now = int((package / "energy_uj").read_text())
            total += now - last[at] if now >= last[at] else now - last[at] + span
            last[at] = now
        return total * 1e-6

    return joules
