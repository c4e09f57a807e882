"""Options of a compiled model, by LiteRT's names, and which options of tflgpu they become."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from tflgpu.errors import OptionError, UnsupportedError
from tflgpu.errors.blame import shown
from tflgpu.lowering.precision import Precision
from tflgpu.options import OpResolverType


class HardwareAccelerator(enum.IntFlag):
    """What a model may run on; several are joined by ``|``.

    GPU alone is all of the model on the GPU, or an error; with CPU, the CPU runs what the GPU does
    not. There is no NPU: beside another accelerator it is left out, alone it is refused.
    """

    CPU = 1
    GPU = 2
    NPU = 4


class CpuKernelMode(enum.IntEnum):
    """Which of LiteRT's kernels run on the CPU: those of XNNPACK, reference, or its own."""

    DELEGATE = 0
    XNNPACK = 0
    REFERENCE = 1
    BUILTIN = 2


_RESOLVERS = {
    CpuKernelMode.DELEGATE: OpResolverType.AUTO,
    CpuKernelMode.REFERENCE: OpResolverType.BUILTIN_REF,
    CpuKernelMode.BUILTIN: OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
}


@dataclasses.dataclass
class CpuOptions:
    """Options of the CPU side.

    Attributes:
        num_threads: Threads of LiteRT's kernels; 0 leaves it to them. (The option ``num_threads``.)
        kernel_mode: Which kernels; None is DELEGATE. (The option ``op_resolver``.)
        enable_ynnpack: Without effect: LiteRT takes XNNPACK where it was built without YNNPACK.
        xnnpack_flags: Refused: LiteRT's interpreter takes none.
        xnnpack_weight_cache_path: Likewise.
    """

    num_threads: int = 0
    kernel_mode: CpuKernelMode | None = None
    enable_ynnpack: bool = False
    xnnpack_flags: int | None = None
    xnnpack_weight_cache_path: str = ""

    def delegate_options(self) -> dict[str, Any]:
        """The options of tflgpu that these are.

        Raises:
            OptionError: one that is refused, or a value that it does not have.
        """
        if self.xnnpack_flags is not None or self.xnnpack_weight_cache_path:
            raise OptionError(
                "xnnpack_flags and xnnpack_weight_cache_path: LiteRT's interpreter, which runs the "
                "CPU's part, takes neither; leave them out"
            )
        found: dict[str, Any] = {}
        if self.num_threads:
            found["num_threads"] = self.num_threads
        if self.kernel_mode is not None:
            if self.kernel_mode not in _RESOLVERS:
                raise OptionError(f"kernel_mode is a CpuKernelMode, not {shown(self.kernel_mode)}")
            found["op_resolver"] = _RESOLVERS[CpuKernelMode(self.kernel_mode)]
        return found


@dataclasses.dataclass
class GpuOptions:
    """Options of the GPU.

    Attributes:
        enforce_f32: True is ``precision="f32"``. False leaves the precision to tflgpu's options,
            whose default is f32 as well (in LiteRT it is f16).
        constant_tensor_sharing: Without effect: models share equal weights on a device always.
        infinite_float_capping: Refused: infinities are computed as the CPU computes them.
        benchmark_mode: True is ``wait_type="active"``, which hears of a run's end sooner. (LiteRT
            waits for all that was enqueued.)
        allow_src_quantized_fc_conv_ops: True is ``round_hybrid_inputs``, which is the default:
            data that meets 8-bit weights is rounded as on the CPU. False leaves it so.
        hint_waiting_for_completion: Without effect: each run is waited for.
    """

    enforce_f32: bool = False
    constant_tensor_sharing: bool = False
    infinite_float_capping: bool = False
    benchmark_mode: bool = False
    allow_src_quantized_fc_conv_ops: bool = False
    hint_waiting_for_completion: bool = False

    def delegate_options(self) -> dict[str, Any]:
        """The options of tflgpu that these are.

        Raises:
            OptionError: one that is refused.
        """
        if self.infinite_float_capping:
            raise OptionError(
                "infinite_float_capping: tflgpu computes infinities as the CPU does, and would "
                "give other results with it; leave it False (docs/nan.md)"
            )
        found: dict[str, Any] = {}
        if self.enforce_f32:
            found["precision"] = Precision.F32
        if self.benchmark_mode:
            found["wait_type"] = "active"
        if self.allow_src_quantized_fc_conv_ops:
            found["round_hybrid_inputs"] = True
        return found


class _NpuOptions:
    """Options of an accelerator that is not here."""

    _whose = ""

    def __init__(self, **_options: Any) -> None:
        """Refused.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"{type(self).__name__}: {self._whose} runs inside of LiteRT only, with "
            "ai_edge_litert.compiled_model; leave these options out to run on the GPU or the CPU"
        )


class QualcommOptions(_NpuOptions):
    """Refused: options of an NPU."""

    _whose = "Qualcomm's NPU"


class IntelOpenVinoOptions(_NpuOptions):
    """Refused: options of an NPU."""

    _whose = "Intel's OpenVINO"


class Options:
    """How a model is compiled.

    Attributes:
        hardware_accelerators: What it may run on.
    """

    hardware_accelerators: HardwareAccelerator = HardwareAccelerator.CPU

    def __init__(
        self,
        hardware_accelerators: HardwareAccelerator = HardwareAccelerator.CPU,
        cpu_options: CpuOptions | None = None,
        gpu_options: GpuOptions | None = None,
        qualcomm_options: QualcommOptions | None = None,
        intel_openvino_options: IntelOpenVinoOptions | None = None,
    ) -> None:
        """As given; the last two cannot be made.

        Raises:
            OptionError: options of another kind.
        """
        for name, value, kind in (
            ("cpu_options", cpu_options, CpuOptions),
            ("gpu_options", gpu_options, GpuOptions),
            ("qualcomm_options", qualcomm_options, QualcommOptions),
            ("intel_openvino_options", intel_openvino_options, IntelOpenVinoOptions),
        ):
            if value is not None and not isinstance(value, kind):
                raise OptionError(
                    f"{name} is tflgpu.compiled_model.{kind.__name__}, not {shown(value)}"
                )
        self.hardware_accelerators = hardware_accelerators
        self._cpu_options, self._gpu_options = (
            cpu_options or CpuOptions(),
            gpu_options or GpuOptions(),
        )

    @classmethod
    def create(cls) -> Options:
        """Options to be set one by one."""
        return cls()

    @property
    def cpu_options(self) -> CpuOptions:
        """Options of the CPU side, to be changed in place."""
        return self._cpu_options

    @property
    def gpu_options(self) -> GpuOptions:
        """Options of the GPU, to be changed in place."""
        return self._gpu_options

    @property
    def qualcomm_options(self) -> QualcommOptions:
        """Refused, as `QualcommOptions`."""
        return QualcommOptions()

    @property
    def intel_openvino_options(self) -> IntelOpenVinoOptions:
        """Refused, as `IntelOpenVinoOptions`."""
        return IntelOpenVinoOptions()

    def delegate_options(self) -> dict[str, Any]:
        """The options of tflgpu that these are.

        Raises:
            OptionError: one that is refused.
        """
        return {**self.cpu_options.delegate_options(), **self.gpu_options.delegate_options()}


def accelerators(value: Any) -> HardwareAccelerator:
    """What a model may run on, less the NPU.

    Raises:
        OptionError: no accelerators.
        UnsupportedError: the NPU alone.
    """
    whole = HardwareAccelerator.CPU | HardwareAccelerator.GPU | HardwareAccelerator.NPU
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= whole:
        raise OptionError(
            "hardware accelerators are HardwareAccelerator.CPU, GPU or GPU | CPU, not "
            f"{shown(value)}"
        )
    found = HardwareAccelerator(value) & ~HardwareAccelerator.NPU
    if not found:
        raise UnsupportedError(
            "HardwareAccelerator.NPU alone: tflgpu runs on GPUs and the CPU; add GPU or CPU, or "
            "use ai_edge_litert.compiled_model for an NPU"
        )
    return found
