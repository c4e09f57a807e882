"""Database entries: versions by number, matchers, what overrides what, and mistakes."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tflgpu.compat import CompatEntry, Judgement, Verdict, effective_caps, judge
from tflgpu.compat.table import SHIPPED
from tflgpu.compat.version import VersionRange, find_version
from tflgpu.contract.device import DeviceInfo
from tflgpu.errors import PluginError
from tflgpu.language.caps import DeviceCaps

NVIDIA = DeviceInfo("opencl", 0, "NVIDIA H200", "nvidia", True, "NVIDIA CUDA 550.54.14")
ARC = DeviceInfo("vulkan", 0, "Intel(R) Arc(TM) A770", "intel", True, "Mesa 24.0.1 (LLVM 17.0.6)")


def device(
    backend: str, name: str, vendor: str, driver: str, names: str = "", system: str = "linux"
) -> tuple[DeviceInfo, str, str]:
    return DeviceInfo(backend, 0, name, vendor, True, driver), system, names


#: Devices as drivers name them, and the entries that are about them.
KNOWN = (
    device("vulkan", "llvmpipe (LLVM 15.0.6, 256 bits)", "mesa", "llvmpipe Mesa 22.3.6",
    "mesa-software"),
    device("vulkan", "SwiftShader Device (LLVM 10.0.0)", "", "SwiftShader driver 5.0.0",
    "swiftshader"),
    device("wgpu", "Microsoft Basic Render Driver", "", "D3D12 10.0", "windows-warp", "windows"),
    device("opencl", "cpu-znver4-AMD Ryzen", "pocl", "Portable Computing Language 5.0", "pocl-cpu"),
    device("opencl", "Oclgrind Simulator", "", "Oclgrind 21.10", "oclgrind"),
    device("vulkan", "Microsoft Direct3D12 (NVIDIA)", "nvidia", "Dozen Mesa 23.2",
    "dozen-not-conformant"),
    device("opencl", "NVIDIA GeForce RTX 3060", "nvidia", "OpenCLOn12 1.0.0", "opencl-on-12",
    "windows"),
    device("opencl", "NVIDIA GeForce RTX 3060", "nvidia", "NVIDIA CUDA 550.54.14"),
    device("vulkan", "NVIDIA GeForce GTX 1650", "nvidia", "NVIDIA 550.54.14"),
    device("opencl", "NVIDIA GeForce GTX TITAN X", "nvidia", "NVIDIA CUDA 470.1"),
    device("opencl", "Tesla P100-PCIE-16GB", "nvidia", "NVIDIA CUDA 550.54.14"),
    device("opencl", "Tesla P40", "nvidia", "NVIDIA CUDA 550.54.14", "nvidia-pascal-f16"),
    device("vulkan", "NVIDIA GeForce GTX 1060 6GB", "nvidia", "NVIDIA 550.54.14",
    "nvidia-pascal-f16"),
    device("vulkan", "Quadro P2000", "nvidia", "NVIDIA 550.54.14", "nvidia-pascal-f16"),
    device("vulkan", "NVIDIA GeForce RTX 5090", "nvidia", "NVIDIA 575.57", "nvidia-blackwell-f16"),
    device("opencl", "NVIDIA B200", "nvidia", "NVIDIA CUDA 570.1"),
    device("opencl", "NVIDIA RTX PRO 6000 Blackwell", "nvidia", "NVIDIA CUDA 575.57"),
    device("vulkan", "NVIDIA GeForce RTX 2060 (NVK TU106)", "nvidia", "NVK Mesa 24.0.5",
    "nvk-early"),
    device("vulkan", "NVIDIA GeForce RTX 2060 (NVK TU106)", "nvidia", "NVK Mesa 25.0.1"),
    device("vulkan", "AMD Radeon RX 6800 XT", "amd", "AMD proprietary driver 24.10.1",
    "amd-matrix-units"),
    device("vulkan", "AMD Radeon(TM) 680M", "amd", "AMD proprietary driver 24.10.1",
    "amd-matrix-units"),
    device("vulkan", "AMD Radeon RX 7900 XTX", "amd", "AMD proprietary driver 24.10.1"),
    device("vulkan", "AMD Radeon 780M Graphics", "amd", "AMD open-source driver 2024.Q4.3"),
    device("vulkan", "AMD Radeon RX 9070 XT", "amd", "AMD proprietary driver 25.3.1"),
    device("vulkan", "AMD Radeon RX 6800 XT (RADV NAVI21)", "amd", "radv Mesa 24.2.1"),
    device("vulkan", "Intel(R) Iris(R) Xe", "intel", "Intel driver 101.4255",
    "intel-windows-compute-vulkan",
           "windows"),
    device("wgpu", "Intel(R) Iris(R) Xe", "intel", "Vulkan Intel driver 101.4255",
           "intel-windows-compute-wgpu", "windows"),
    device("vulkan", "Intel(R) Arc(TM) A770", "intel", "Intel open-source Mesa driver Mesa 24.0.1",
           "intel-mesa-f16-vulkan"),
    device("wgpu", "Intel(R) Arc(TM) A770", "intel", "Vulkan Mesa 24.0.1", "intel-mesa-f16-wgpu"),
    device("opencl", "Apple M1", "apple", "Apple 1.2 1.0", "apple-opencl", "darwin"),
    device("wgpu", "Apple M1", "apple", "Metal", "", "darwin"),
    device("wgpu", "Adreno (TM) 830", "qualcomm", "Vulkan Qualcomm Technologies Inc. Adreno "
                                                  "Vulkan Driver",
           "adreno-8xx-later-runs"),
    device("vulkan", "Adreno (TM) 830", "qualcomm", "Qualcomm Technologies Inc. Adreno Vulkan "
                                                    "Driver"),
    device("wgpu", "Adreno (TM) 740", "qualcomm", "Vulkan Qualcomm Technologies Inc. Adreno "
                                                  "Vulkan Driver"),
    device("opencl", "Mali-G610", "arm", "ARM Platform 3.0", "mali-local-memory"),
    device("opencl", "Mali-T628", "arm", "ARM Platform 1.2", "mali-local-memory "
                                                             "mali-t6xx-profiling"),
    device("vulkan", "Mali-G52 r1 (Panfrost)", "arm", "panvk Mesa 24.1.0", "mali-local-memory "
                                                                           "panvk"),
    device("vulkan", "PowerVR A-Series AXE-1-16M", "", "Imagination open-source Mesa driver Mesa "
                                                       "24.0",
           "powervr-mesa"),
)  # fmt: skip


def entry(**fields: Any) -> CompatEntry:
    return CompatEntry(name="test", reason="a test", **fields)


class TestVersions:
    @pytest.mark.parametrize(
        ("text", "version"),
        [
            ("NVIDIA CUDA 550.54.14", (550, 54, 14)),
            ("Portable Computing Language 3.1+debian", (3, 1)),
            ("Mesa 24.0.0 (LLVM 17.0.6)", (24,)),
            ("D3D12 31.0.101.4382", (31, 0, 101, 4382)),
            ("Adreno v512.615", (512, 615)),
            ("numpy", None),
            ("", None),
        ],
    )
    def test_found_in_what_drivers_say(self, text: str, version: Any) -> None:
        assert find_version(text) == version

    def test_numbers_are_compared_as_numbers(self) -> None:
        # As text, "9.1" comes after "10.0" and "550.9" after "550.54".
        assert find_version("9.1") in VersionRange.parse("<10")
        assert find_version("550.9") in VersionRange.parse("<550.54")
        assert find_version("535.104") not in VersionRange.parse("<535.54")

    def test_trailing_zeros_do_not_matter(self) -> None:
        assert find_version("24.0.0") in VersionRange.parse("==24")
        assert find_version("24") in VersionRange.parse(">=24.0.0, <=24.0")
        assert find_version("0.0") in VersionRange.parse("==0")

    @given(
        st.lists(st.integers(0, 20), min_size=3, max_size=3),
        st.lists(st.integers(0, 20), min_size=3, max_size=3),
    )
    def test_order_is_the_order_of_numbers(self, a: list[int], b: list[int]) -> None:
        text_a, text_b = (".".join(map(str, v)) for v in (a, b))
        for sign, holds in (("<", a < b), ("<=", a <= b), (">", a > b), (">=", a >= b),
                            ("==", a == b)):  # fmt: skip
            assert (find_version(text_a) in VersionRange.parse(sign + text_b)) is holds

    @pytest.mark.parametrize("text", ["", "10", "=10", "<ten", "<10,", "~=1.2"])
    def test_what_is_no_bound_is_refused(self, text: str) -> None:
        with pytest.raises(PluginError, match="is no bound"):
            VersionRange.parse(text)


class TestMatching:
    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({}, True),
            ({"backend": "opencl"}, True),
            ({"backend": "vulkan"}, False),
            ({"vendor": "nvidia"}, True),
            ({"vendor": "amd"}, False),
            ({"device": "h[12]00$"}, True),
            ({"device": "A100"}, False),
            ({"driver": "cuda"}, True),
            ({"driver": "mesa"}, False),
            ({"system": "linux"}, True),
            ({"system": "windows"}, False),
            ({"driver_version": ">=550, <551"}, True),
            ({"driver_version": "<550.54.14"}, False),
            ({"vendor": "nvidia", "system": "windows"}, False),
        ],
    )
    def test_all_matchers_must_hold(self, fields: Any, expected: bool) -> None:
        assert entry(**fields).matches(NVIDIA, "linux") is expected

    def test_the_version_is_the_one_behind_what_the_driver_pattern_found(self) -> None:
        assert entry(driver="mesa", driver_version="==24.0.1").matches(ARC, "")
        assert entry(driver="LLVM", driver_version="==17.0.6").matches(ARC, "")
        named = entry(driver=r"Mesa \d+\.\d+\.(?P<version>\d+)", driver_version="==1")
        assert named.matches(ARC, "")

    def test_without_a_version_a_range_does_not_match(self) -> None:
        unknown = attrs.evolve(NVIDIA, driver="NVIDIA")
        assert entry(driver="nvidia").matches(unknown, "")
        assert not entry(driver="nvidia", driver_version=">=0").matches(unknown, "")


class TestMistakes:
    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({"device": "("}, "no regular expression"),
            ({"system": "android"}, "system is one of linux, windows, darwin"),
            ({"caps": {"f16": False}}, "DeviceCaps has no 'f16'"),
            ({"caps": {"f16_arithmetic": 0}}, "caps f16_arithmetic is 0"),
            ({"caps": {"max_workgroup": True}}, "caps max_workgroup is True"),
            ({"options": {"backend": "opencl"}}, "'backend' is what is being chosen"),
            ({"options": {"precision": "f8"}}, "precision is one of"),
            ({"options": {"colour": "red"}}, "colour"),
        ],
    )
    def test_are_refused_where_they_are_made(self, fields: Any, text: str) -> None:
        with pytest.raises(PluginError, match="database entry 'test'") as raised:
            entry(**fields)
        assert text in str(raised.value)

    def test_an_entry_without_a_reason(self) -> None:
        with pytest.raises(PluginError, match="needs a name and a reason"):
            CompatEntry(name="silent", reason="")


class TestJudging:
    def test_nothing_known_is_allowed(self) -> None:
        assert judge(NVIDIA, [entry(vendor="amd", verdict=Verdict.DENY)]) == Judgement()

    def test_a_higher_rank_overrides_whatever_the_order(self) -> None:
        deny = entry(verdict=Verdict.DENY, caps={"compute_units": 8, "cache_bytes": 1}, rank=1)
        allow = entry(verdict=Verdict.ALLOW, caps={"compute_units": 32}, rank=2)
        for entries in ([deny, allow], [allow, deny]):
            found = judge(NVIDIA, entries)
            assert not found.denied
            assert found.caps == {"compute_units": 32, "cache_bytes": 1}
            assert len(found.reasons) == 2

    def test_an_entry_about_features_says_nothing_of_the_verdict(self) -> None:
        deny = entry(verdict=Verdict.DENY)
        assert judge(NVIDIA, [deny, entry(caps={"f16_storage": False}, rank=5)]).denied

    def test_this_machine_s_system_is_the_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("platform.system", lambda: "Windows")
        assert judge(NVIDIA, [entry(system="windows", verdict=Verdict.DENY)]).denied
        assert not judge(NVIDIA, [entry(system="linux", verdict=Verdict.DENY)]).denied


class TestEffectiveCaps:
    CAPS = DeviceCaps(f16_arithmetic=True, max_workgroup=1024)

    def test_features_are_switched_off_and_limits_lowered(self) -> None:
        changes = {"f16_arithmetic": False, "max_workgroup": 256, "max_groups": (9, 99999, 1)}
        caps = effective_caps(self.CAPS, Judgement(caps=changes))
        expected = attrs.evolve(
            self.CAPS, f16_arithmetic=False, max_workgroup=256, max_groups=(9, 65535, 1)
        )
        assert caps == expected

    def test_nothing_is_given_that_the_device_lacks(self) -> None:
        changes = {"int8_storage": True, "max_workgroup": 4096, "is_gpu": True}
        assert effective_caps(self.CAPS, Judgement(caps=changes)) == self.CAPS

    def test_what_the_api_does_not_tell_is_filled_in(self) -> None:
        caps = effective_caps(self.CAPS, Judgement(caps={"cache_bytes": 32, "compute_units": 132}))
        assert (caps.cache_bytes, caps.compute_units) == (32, 132)


class TestShipped:
    def test_names_are_unique_and_each_has_a_source(self) -> None:
        names = [e.name for e in SHIPPED]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)
        assert all(e.source.startswith("https://") and " " not in e.source for e in SHIPPED)

    def test_no_two_are_about_the_same(self) -> None:
        about = [
            (e.backend, e.vendor, e.device, e.driver, e.driver_version, e.system) for e in SHIPPED
        ]
        assert len(set(about)) == len(about)
        assert ("", "", "", "", None, "") not in about  # none is about every device

    @pytest.mark.parametrize("one", SHIPPED, ids=lambda e: e.name)
    def test_each_is_about_some_device_below(self, one: CompatEntry) -> None:
        assert any(one.matches(info, system) for info, system, _ in KNOWN)

    def test_devices_have_the_entries_that_are_about_them(self) -> None:
        """Which entries each of these has; none that is not about it."""
        for info, system, names in KNOWN:
            found = {e.name for e in SHIPPED if e.matches(info, system)}
            assert found == set(names.split()), info.name

    def test_pascal_computes_in_32_bits(self) -> None:
        caps = DeviceCaps(f16_arithmetic=True, f16_storage=True)
        pascal = attrs.evolve(NVIDIA, name="NVIDIA GeForce GTX 1080 Ti")
        found = effective_caps(caps, judge(pascal, SHIPPED, "linux"))
        assert (found.f16_arithmetic, found.f16_storage) == (False, True)
        p100 = attrs.evolve(NVIDIA, name="Tesla P100-PCIE-16GB")
        assert effective_caps(caps, judge(p100, SHIPPED, "linux")) == caps

    def test_matrix_units_that_are_not_there(self) -> None:
        caps = DeviceCaps(matrix_tiles=True)
        for name, there in (("AMD Radeon RX 6800", False), ("AMD Radeon RX 7800 XT", True)):
            info = DeviceInfo("vulkan", 0, name, "amd", True, "AMD proprietary driver 24.10.1")
            assert effective_caps(caps, judge(info, SHIPPED, "windows")).matrix_tiles is there

    def test_an_ordinary_gpu_is_left_alone(self) -> None:
        assert judge(NVIDIA, SHIPPED, "linux") == Judgement()

    @pytest.mark.parametrize(
        "info",
        [
            DeviceInfo("vulkan", 0, "llvmpipe (LLVM 15.0.6, 256 bits)", "mesa", True),
            DeviceInfo("vulkan", 0, "SwiftShader Device (LLVM 10.0.0)", "", True),
            DeviceInfo("wgpu", 0, "Microsoft Basic Render Driver", "", True),
            DeviceInfo("opencl", 0, "pthread-skylake-avx512-AMD EPYC", "pocl", True),
            DeviceInfo("opencl", 0, "cpu-znver4-AMD Ryzen", "pocl", True),
        ],
    )
    def test_software_is_no_gpu_whatever_it_says(self, info: DeviceInfo) -> None:
        found = judge(info, SHIPPED, "linux")
        assert not found.is_gpu(info)
        assert not found.denied

    def test_pocl_on_a_gpu_is_one(self) -> None:
        info = DeviceInfo("opencl", 0, "NVIDIA H200", "pocl", True, "Portable ... 5.0")
        assert judge(info, SHIPPED, "linux").is_gpu(info)

    def test_dozen_is_denied(self) -> None:
        info = DeviceInfo("vulkan", 0, "Microsoft Direct3D12 (NVIDIA GeForce)", "nvidia", True)
        assert judge(info, SHIPPED, "linux").denied

    @pytest.mark.parametrize(
        ("driver", "denied"),
        [
            ("Intel driver 101.4095", False),
            ("Intel driver 101.4096", True),
            ("31.0.101.4255", True),
            ("31.0.101.4381", True),
            ("31.0.101.4382", False),
            ("32.0.101.6078", False),
            ("31.0.101.995", False),  # newer than .4096 if versions were text
        ],
    )
    def test_intel_s_windows_drivers(self, driver: str, denied: bool) -> None:
        info = DeviceInfo("vulkan", 0, "Intel(R) Iris(R) Xe", "intel", True, driver)
        assert judge(info, SHIPPED, "windows").denied is denied
        assert not judge(info, SHIPPED, "linux").denied
        through_wgpu = attrs.evolve(info, backend="wgpu", driver=f"Vulkan {driver}")
        assert judge(through_wgpu, SHIPPED, "windows").denied is denied
        direct3d = attrs.evolve(info, backend="wgpu", driver=f"D3D12 {driver}")
        assert not judge(direct3d, SHIPPED, "windows").denied

    def test_intel_on_mesa_computes_in_32_bits(self) -> None:
        caps = DeviceCaps(f16_arithmetic=True, f16_storage=True)
        found = effective_caps(caps, judge(ARC, SHIPPED, "linux"))
        assert (found.f16_arithmetic, found.f16_storage) == (False, True)
        opencl = attrs.evolve(ARC, backend="opencl", driver="rusticl Mesa 24.0.1")
        assert judge(opencl, SHIPPED, "linux") == Judgement()
