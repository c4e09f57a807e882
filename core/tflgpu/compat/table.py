"""The shipped entries: few, and each with a source.

An entry belongs here only where a defect is documented in public, with the drivers it is in.
What a driver reports correctly (that it is a CPU, that it lacks f16) needs no entry.
"""

from __future__ import annotations

from tflgpu.compat.entry import CompatEntry, Verdict

_NOT_CONFORMANT = CompatEntry(
    name="dozen-not-conformant",
    reason=(
        "Mesa's Vulkan driver on top of Direct3D 12 (dozen) is for testing only, as it says "
        "itself; install the GPU vendor's driver, or ask for this device by name"
    ),
    source="https://github.com/gnsmrky/wsl-vulkan-mesa/issues/9",
    device=r"^Microsoft Direct3D12 \(",
    verdict=Verdict.DENY,
)

_SOFTWARE = (
    CompatEntry(
        name="software-renderer",
        reason="a software renderer: it runs kernels on the CPU",
        source="https://docs.mesa3d.org/drivers/llvmpipe.html",
        # As a translation layer may report them, whatever kind of device it says they are.
        device=r"llvmpipe|lavapipe|softpipe|swiftshader|Microsoft Basic Render Driver",
        caps={"is_gpu": False},
    ),
    CompatEntry(
        name="pocl-cpu",
        reason="PoCL on the CPU: it runs kernels on the CPU",
        source="https://pocl.sourceforge.net/docs/html/drivers.html",
        vendor="pocl",
        device=r"^(cpu|basic|pthread)\b",
        caps={"is_gpu": False},
    ),
)

# The source counts in Vulkan's packing of the version, 0.405.0 up to 0.405.286; as Intel numbers
# its drivers that is 101.4096 up to 101.4382.
_INTEL_WINDOWS_VERSION = r"\b(?P<version>101\.\d+)"
_INTEL_WINDOWS_COMPUTE = tuple(
    CompatEntry(
        name=f"intel-windows-compute-{backend}",
        reason=(
            "Intel's Vulkan drivers for Windows from 31.0.101.4096 up to 31.0.101.4382 crash in "
            "compute pipelines; install a newer driver"
        ),
        source="https://github.com/yuzu-emu/yuzu/pull/10835",
        backend=backend,
        vendor="intel",
        driver=driver + _INTEL_WINDOWS_VERSION,
        driver_version=">=101.4096, <101.4382",
        system="windows",
        verdict=Verdict.DENY,
    )
    for backend, driver in (("vulkan", ""), ("wgpu", "^Vulkan .*"))
)

_INTEL_MESA_F16 = tuple(
    CompatEntry(
        name=f"intel-mesa-f16-{backend}",
        reason=(
            "Mesa's Vulkan driver for Intel gave wrong results in matrix products with 16-bit "
            "arithmetic; 16-bit tensors are kept, arithmetic is in 32 bits"
        ),
        # No version of Mesa is known to have it repaired.
        source="https://github.com/ggml-org/llama.cpp/pull/18814",
        backend=backend,
        vendor="intel",
        driver="mesa",
        caps={"f16_arithmetic": False},
    )
    for backend in ("vulkan", "wgpu")
)

SHIPPED: tuple[CompatEntry, ...] = (
    *_SOFTWARE,
    _NOT_CONFORMANT,
    *_INTEL_WINDOWS_COMPUTE,
    *_INTEL_MESA_F16,
)
