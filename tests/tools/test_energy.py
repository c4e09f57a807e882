"""Energy: counters of a made-up driver and of made-up files, and why there are none."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from tflgpu.devices import nvml
from tflgpu.tools.energy import cpu_counter, gpu_counter, measure_energy


class Nvml:
    """NVML with some GPUs, whose counters rise by 5 J whenever they are read."""

    def __init__(self, *names: str, driver: int = 0, counts: bool = True) -> None:
        self.names, self.driver, self.counts = names, driver, counts
        self.millijoules = 0

    def nvmlInit_v2(self) -> int:
        return self.driver

    def nvmlDeviceGetCount_v2(self, count: object) -> int:
        count._obj.value = len(self.names)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: object) -> int:
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetName(self, handle: ctypes.c_void_p, name: object, size: int) -> int:
        name.value = self.names[handle.value - 1].encode()
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object, spent: object) -> int:
        self.millijoules += 5000
        spent._obj.value = self.millijoules
        return 0 if self.counts else 3


def test_joules_of_a_gpu() -> None:
    counter = gpu_counter("NVIDIA H200", Nvml("NVIDIA A100", "NVIDIA H200"))
    assert not isinstance(counter, str)
    assert counter() - counter() == -5


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (Nvml(), "NVML knows no GPU of that name"),
        (Nvml("NVIDIA H200", "NVIDIA H200"), "NVML knows 2 GPUs of that name"),
        (Nvml("NVIDIA H200", driver=9), "NVML finds no driver"),
        (Nvml("NVIDIA H200", counts=False), "the GPU counts none"),
    ],
)
def test_why_a_gpu_tells_nothing(library: Nvml, reason: str) -> None:
    assert gpu_counter("NVIDIA H200", library) == f"energy of NVIDIA H200: {reason}"


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_LIBRARIES", ("libno-such-thing.so.1",))
    assert "management library (NVML) is not here" in str(gpu_counter("a GPU"))


def package(folder: Path, name: str, microjoules: int) -> Path:
    made = folder / name
    made.mkdir(exist_ok=True)
    (made / "energy_uj").write_text(f"{microjoules}\n")
    (made / "max_energy_range_uj").write_text("10000000\n")
    return made


def test_joules_of_all_processors(tmp_path: Path) -> None:
    package(tmp_path, "intel-rapl:0", 1_000_000)
    package(tmp_path, "intel-rapl:1", 9_000_000)
    package(tmp_path, "intel-rapl:0:0", 0)  # a part of the first
    counter = cpu_counter(tmp_path)
    assert not isinstance(counter, str)
    assert counter() == 0
    package(tmp_path, "intel-rapl:0", 3_000_000)
    package(tmp_path, "intel-rapl:1", 500_000)  # begins from zero after 10 J
    package(tmp_path, "intel-rapl:0:0", 7_000_000)
    assert counter() == pytest.approx(2 + 1.5)


def test_why_processors_tell_nothing(tmp_path: Path) -> None:
    assert cpu_counter(tmp_path) == f"energy of the CPU: no counters (RAPL) in {tmp_path}"
    (package(tmp_path, "intel-rapl:0", 1) / "energy_uj").unlink()
    assert "energy_uj: No such file" in str(cpu_counter(tmp_path))


def test_joules_for_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.4, 0.8, 1.2, 1.2])
    monkeypatch.setattr("tflgpu.tools.energy.time.perf_counter", lambda: next(clock))
    gpu, cpu = iter([100.0, 124.0]), iter([5.0, 8.0])
    found = measure_energy(lambda: 4, 1.0, lambda: next(gpu), lambda: next(cpu))
    assert (found.gpu, found.cpu, found.reasons, found.seconds) == (2, 0.25, (), 1.2)


def test_nothing_is_run_where_nothing_tells() -> None:
    found = measure_energy(lambda: 1 // 0, 1.0, "no GPU's", "no CPU's")
    assert (found.gpu, found.cpu, found.reasons) == (None, None, ("no GPU's", "no CPU's"))


def test_what_one_tells_is_not_the_other_s() -> None:
    joules = iter([0.0, 6.0])
    found = measure_energy(lambda: 3, 1e-9, None, lambda: next(joules))
    assert (found.gpu, found.reasons) == (None, ())
    assert found.cpu is not None
    assert found.cpu > 0
