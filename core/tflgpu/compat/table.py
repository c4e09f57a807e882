"""The shipped entries, by vendor, each with a source.

An entry belongs here only where a defect or a limit is documented in public, with the devices or
drivers that it is about. What a driver reports correctly (that it is a CPU, that it lacks f16)
needs no entry. An entry that changes nothing is a note: it is shown with the device.
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
    *(
        CompatEntry(
            name=name,
            reason="a software renderer: it runs kernels on the CPU",
            source=source,
            # As a translation layer may report them, with any kind of device.
            device=device,
            caps={"is_gpu": False},
        )
        for name, device, source in (
            (
                "mesa-software",
                "llvmpipe|lavapipe|softpipe",
                "https://docs.mesa3d.org/drivers/llvmpipe.html",
            ),
            ("swiftshader", "swiftshader", "https://github.com/google/swiftshader"),
            (
                "windows-warp",
                "Microsoft Basic Render Driver",
                "https://learn.microsoft.com/en-us/windows/win32/direct3darticles/directx-warp",
            ),
        )
    ),
    CompatEntry(
        name="pocl-cpu",
        reason="PoCL on the CPU: it runs kernels on the CPU",
        source="https://pocl.sourceforge.net/docs/html/drivers.html",
        vendor="pocl",
        device=r"^(cpu|basic|pthread)\b",
        caps={"is_gpu": False},
    ),
    CompatEntry(
        name="oclgrind",
        reason="Oclgrind simulates a device, to find mistakes in kernels: it is very slow",
        source="https://github.com/jrprice/Oclgrind",
        backend="opencl",
        device="oclgrind",
        caps={"is_gpu": False},
    ),
)

_NVIDIA = (
    CompatEntry(
        name="nvidia-pascal-f16",
        reason=(
            "GeForce 10 and its relatives (compute capability 6.1) do 16-bit arithmetic at 1/64 "
            "of the rate of 32 bits; 16-bit tensors are kept, arithmetic is in 32 bits"
        ),
        source="https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions",
        vendor="nvidia",
        # Not GP100 (Tesla P100, Quadro GP100), which has a full rate.
        device=r"GTX 10[5-8]0|GT 10[13]0|TITAN Xp|TITAN X \(Pascal\)|Tesla P(4|6|40)\b|Quadro "
        r"P\d{3,4}\b",
        caps={"f16_arithmetic": False},
    ),
    CompatEntry(
        name="nvidia-blackwell-f16",
        reason=(
            "LiteRT-LM computed nonsense in 16-bit floats on an RTX 5070 Ti (Blackwell), without "
            "an error; why is not known, so compare results in f16 with those in f32"
        ),
        source="https://github.com/google-ai-edge/LiteRT-LM/issues/2992",
        vendor="nvidia",
        # One card is reported, and the generation named; of its other product lines nothing is
        # said.
        device=r"RTX 50[5-9]0",
    ),
    CompatEntry(
        name="nvk-early",
        reason="NVK, Mesa's Vulkan driver for NVIDIA, was experimental before Mesa 24.1; update "
        "Mesa",
        source="https://github.com/NixOS/nixpkgs/pull/306791",
        driver="^NVK Mesa",
        driver_version="<24.1",
    ),
)

# The units came with RDNA 3; of a newer GPU's name nothing is known, so it is listed as one that
# has none until one is added.
_AMD_MATRIX_UNITS = r"RX [79]\d{3}|PRO [WV][79]\d{3}|PRO R9\d{3}|\b[78][4-9]0M\b|\b80[456]0S\b"
_AMD = (
    CompatEntry(
        name="amd-matrix-units",
        reason=(
            "AMD's own Vulkan drivers list matrix units for GPUs that have none (those before "
            "RDNA 3); they are not used there"
        ),
        source=(
            "https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-vulkan/ggml-vulkan.cpp"
        ),
        backend="vulkan",
        vendor="amd",
        driver="^AMD (proprietary|open-source) driver",
        device=rf"^(?!.*({_AMD_MATRIX_UNITS}))",
        caps={"matrix_tiles": False},
    ),
)

_APPLE = (
    CompatEntry(
        name="apple-opencl",
        reason=(
            "Apple has deprecated OpenCL and develops it no further; WebGPU (tflgpu[wgpu]) "
            "reaches the same GPU by Metal"
        ),
        source="https://developer.apple.com/opencl/",
        backend="opencl",
        driver="^Apple",
        system="darwin",
    ),
)

_QUALCOMM = (
    CompatEntry(
        name="adreno-8xx-later-runs",
        reason=(
            "LiteRT.js over WebGPU was right only in its first run on an Adreno 8xx, in Chrome; "
            "why is not known, so compare later runs with the CPU"
        ),
        source="https://github.com/google-ai-edge/LiteRT/issues/8065",
        backend="wgpu",
        device=r"Adreno \(TM\) 8\d\d",
    ),
)

_ARM = (
    CompatEntry(
        name="mali-local-memory",
        reason=(
            "Mali GPUs have no memory of their own for a work group: what kernels share lies in "
            "main memory, behind a cache"
        ),
        source="https://developer.arm.com/documentation/101574",
        vendor="arm",
        device="Mali",
    ),
    CompatEntry(
        name="mali-t6xx-profiling",
        reason=(
            "the driver of Mali-T628 hangs at the end of a queue with profiling, so that TFLite "
            "uses none on Mali-T6xx; do not ask for kernels' times there"
        ),
        source=(
            "https://github.com/google-ai-edge/LiteRT/blob/main/tflite/delegates/gpu/cl/"
            "inference_context.cc"
        ),
        backend="opencl",
        device=r"Mali-T6\d\d",
    ),
    CompatEntry(
        name="panvk",
        reason=(
            "PanVK, Mesa's Vulkan driver for Mali, is not well tested on every GPU that it runs "
            "on, and asks there for PAN_I_WANT_A_BROKEN_VULKAN_DRIVER=1; compare its results "
            "with the CPU"
        ),
        source="https://docs.mesa3d.org/drivers/panfrost.html",
        driver="^panvk",
    ),
)

_POWERVR = (
    CompatEntry(
        name="powervr-mesa",
        reason=(
            "Mesa's Vulkan driver for PowerVR is young, and asks on most GPUs for "
            "PVR_I_WANT_A_BROKEN_VULKAN_DRIVER=1; compare its results with the CPU"
        ),
        source="https://docs.mesa3d.org/drivers/powervr.html",
        driver="Imagination open-source Mesa driver",
    ),
)

# The source counts in Vulkan's packing of the version, 0.405.0 up to 0.405.286; as Intel numbers
# its drivers that is 101.4096 up to 101.4382.
_INTEL_WINDOWS_VERSION = r"\b(?P<version>101\.\d+)"
_INTEL_WINDOWS_COMPUTE = tuple(
    CompatEntry(
        name=f"intel-windows-compute-{backend}",
        reason=(
            "Intel's Vulkan drivers for Windows from 31.0.101.4096 on and before 31.0.101.4382 "
            "crash in compute pipelines; install a newer driver"
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
            "Mesa's Vulkan driver for Intel gave llama.cpp wrong results in quantized matrix "
            "products with 16-bit arithmetic; 16-bit tensors are kept, arithmetic is in 32 bits"
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

_LAYERS = (
    _NOT_CONFORMANT,
    CompatEntry(
        name="opencl-on-12",
        reason="OpenCL on top of Direct3D 12; the GPU vendor's own OpenCL driver does without it",
        source="https://github.com/microsoft/OpenCLOn12",
        backend="opencl",
        driver="^OpenCLOn12",
    ),
)

SHIPPED: tuple[CompatEntry, ...] = (
    *_SOFTWARE,
    *_LAYERS,
    *_NVIDIA,
    *_AMD,
    *_INTEL_WINDOWS_COMPUTE,
    *_INTEL_MESA_F16,
    *_APPLE,
    *_QUALCOMM,
    *_ARM,
    *_POWERVR,
)
