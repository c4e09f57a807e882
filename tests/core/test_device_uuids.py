"""Devices by UUID, and the GPUs that an engine assigns to a process."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import attrs
import pytest
from tflgpu.checks.device import wrong_info
from tflgpu.contract.device import DeviceInfo, read_uuid, uuid_text
from tflgpu.devices.assigned import assigned_devices
from tflgpu.devices.choose import open_best
from tflgpu.devices.measured_times import MeasuredTimes
from tflgpu.devices.nvml import gpu_uuid
from tflgpu.errors import DeviceError, OptionError
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import Registry

from tests.core.test_choose import GPU, Backend

A = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
B = "ffffffff-0000-1111-2222-333333333333"


def backend(name: str, *uuids: str | None, rank: int = 0) -> Backend:
    """Equal GPUs that only their UUIDs tell apart."""
    made = Backend(name, *[GPU] * len(uuids), rank=rank)
    made.devices = tuple(
        attrs.evolve(info, uuid=uuid) for info, uuid in zip(made.devices, uuids, strict=True)
    )
    return made


@pytest.fixture
def pick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``pick(backend, ..., environ=..., device=...)``: backend and index of the choice."""
    monkeypatch.setattr("tflgpu.devices.choose.measure", lambda device: 1e-3)

    def call(*backends: Backend, environ: Any = None, **options: Any) -> tuple[str, int]:
        registry = Registry.of({b.info.name: b for b in backends})
        asked = DelegateOptions(**options)
        choice, _ = open_best(registry, asked, environ or {}, MeasuredTimes(tmp_path))
        assert choice.explicit
        return choice.device.backend, choice.device.index

    return call


@pytest.mark.parametrize(
    "text", [A, A.upper(), f"GPU-{A}", f" gpu-{A} ", A.replace("-", ""), f"GPU-{A[:18]}{A[18:]}"]
)
def test_ways_to_write_a_uuid(text: str) -> None:
    assert read_uuid(text) == A
    assert DelegateOptions(device=f"uuid:{text}").device == f"uuid:{A}"
    assert DelegateOptions.from_text({"device": f"UUID:{text}"}).device == f"uuid:{A}"


@pytest.mark.parametrize("text", ["", "0", A[:-1], A + "0", f"MIG-{A}", A.replace("0", "g")])
def test_what_is_no_uuid(text: str) -> None:
    assert read_uuid(text) is None
    with pytest.raises(OptionError, match="32 hexadecimal digits"):
        DelegateOptions(device=f"uuid:{text}")


def test_bytes_of_a_driver() -> None:
    assert uuid_text(bytes.fromhex(A.replace("-", ""))) == A
    assert uuid_text(bytes(16)) is None


@pytest.mark.parametrize("uuid", [A.upper(), A.replace("-", ""), f"GPU-{A}", 7, b"1"])
def test_a_backend_that_writes_another_form_is_wrong(uuid: Any) -> None:
    info = DeviceInfo("toy", 0, "Toy", uuid=A)
    assert wrong_info(info, "toy") is None
    assert "has uuid" in (wrong_info(attrs.evolve(info, uuid=uuid), "toy") or "")


def test_equal_gpus_are_told_apart(pick: Any) -> None:
    toy = backend("toy", A, B)
    assert pick(toy, device=f"uuid:{A}") == ("toy", 0)
    assert pick(toy, device=f"uuid:GPU-{B}") == ("toy", 1)
    assert pick(toy, environ={"TFLGPU_DEVICE": f"uuid:GPU-{B.upper()}"}) == ("toy", 1)
    assert pick(toy, backend="toy", device=f"uuid:{B}") == ("toy", 1)


def test_each_api_has_an_order_of_its_own(pick: Any) -> None:
    apis = backend("cl", A, B, rank=1), backend("vk", B, A, rank=20)
    assert pick(*apis, device=f"uuid:{A}") == ("vk", 1)
    assert pick(*apis, device=f"uuid:{A}", backend="cl") == ("cl", 0)
    assert pick(apis[0], backend("web", None, None, rank=90), device=f"uuid:{B}") == ("cl", 1)


def test_what_is_not_there_says_what_is(pick: Any) -> None:
    with pytest.raises(DeviceError, match=rf"no device 'uuid:{B}'; it has 0: Toy GPU \(uuid:{A}\)"):
        pick(backend("toy", A), backend="toy", device=f"uuid:{B}")
    with pytest.raises(DeviceError, match=rf"no backend has .*toy: it has .*uuid:{A}"):
        pick(backend("toy", A), device=f"uuid:{B}")


def test_a_backend_without_uuids_says_that_it_cannot_tell(pick: Any) -> None:
    with pytest.raises(DeviceError, match="UUID cannot be told, so that only its index or name"):
        pick(backend("web", None), backend="web", device=f"uuid:{A}")
    with pytest.raises(DeviceError, match=r"web: it has .*cannot be told"):
        pick(backend("web", None), backend("toy", B), device=f"uuid:{A}")


def test_devices_of_one_uuid_are_not_guessed_at(pick: Any) -> None:
    with pytest.raises(DeviceError, match=r"2 devices .* does not tell apart: 0: Toy GPU, 1: Toy"):
        pick(backend("toy", A, A), device=f"uuid:{A}")


class Nvml:
    """NVML's functions for a machine of these GPUs."""

    def __init__(self, *uuids: str, status: int = 0) -> None:
        self.uuids, self.status, self.open = uuids, status, 0

    def nvmlInit_v2(self) -> int:
        self.open += not self.status
        return self.status

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.uuids)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0 if index < len(self.uuids) else 2

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: int) -> int:
        ctypes.memmove(text, f"GPU-{self.uuids[handle.value - 1]}\0".encode(), 41)
        return 0


def test_nvml_counts_by_the_bus() -> None:
    nvml = Nvml(B, A)
    assert [gpu_uuid(n, nvml) for n in (0, 1)] == [B, A]
    with pytest.raises(DeviceError, match="no UUID of GPU 2; it knows 2 GPUs"):
        gpu_uuid(2, nvml)
    assert nvml.open == 0
    with pytest.raises(DeviceError, match="finds no driver"):
        gpu_uuid(0, Nvml(status=9))


@pytest.mark.parametrize(
    ("said", "devices"),
    [
        (None, None),
        ("0", (A,)),
        ("1", (B,)),
        (" 1, 0", (B, A)),
        (f"GPU-{B.upper()}", (B,)),
        (f"GPU-{B},0", (B, A)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0,-1,1", (A,)),
    ],
)
def test_gpus_of_a_worker(said: str | None, devices: tuple[str, ...] | None) -> None:
    environ = {} if said is None else {"CUDA_VISIBLE_DEVICES": said}
    found = assigned_devices(environ, (A, B).__getitem__)
    assert found == (None if devices is None else tuple(f"uuid:{d}" for d in devices))


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3"}, "CUDA_VISIBLE_DEVICES=3 assigns GPU 3 .*knows 2 GPUs"),
        ({"CUDA_VISIBLE_DEVICES": f"MIG-{A}"}, "parts of GPUs"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0a1b"}, "abbreviated"),
        ({"HIP_VISIBLE_DEVICES": "0"}, "HIP_VISIBLE_DEVICES=0 .*no API tells"),
        ({"ZE_AFFINITY_MASK": "1"}, "ZE_AFFINITY_MASK=1"),
    ],
)
def test_no_other_gpu_in_the_place_of_one_that_cannot_be_told(
    environ: dict[str, str], why: str
) -> None:
    with pytest.raises(DeviceError, match=f"{why}.*TFLGPU_DEVICE"):
        assigned_devices(environ, lambda index: gpu_uuid(index, Nvml(A, B)))


def test_a_number_without_nvml_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tflgpu.devices.nvml._LIBRARIES", ("libno-such-thing.so.1",))
    with pytest.raises(DeviceError, match=r"\(NVML\).* is missing; name the worker's device"):
        assigned_devices({"CUDA_VISIBLE_DEVICES": "0"})
