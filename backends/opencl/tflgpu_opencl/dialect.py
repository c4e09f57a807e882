"""How kernels are written in OpenCL C for one kind of device."""

from __future__ import annotations

import attrs
from tflgpu.language.caps import DeviceCaps, Features
from tflgpu.language.kernel import Kernel


@attrs.frozen(kw_only=True)
class OpenCLDialect(Features):
    """How kernels are written for one kind of device. One with matrix tiles knows NVIDIA's
    instructions.

    Attributes:
        shuffle_ptx: Neighbours shuffle by NVIDIA's instruction, not by cl_khr_subgroup_shuffle.
        fast_fma: The device has a fused multiply-add; where not, ``fma`` is written as `mad`,
            which may round twice.
    """

    shuffle_ptx: bool = False
    fast_fma: bool = True

    @classmethod
    def of(cls, caps: DeviceCaps) -> OpenCLDialect:
        """That of a device, as far as its capabilities tell; the text depends on nothing else."""
        found = super().of(caps)
        # Every OpenCL loads and stores bytes and halves.
        return attrs.evolve(
            found, f16_storage=True, int8_storage=True, shuffle_ptx=caps.vendor == "nvidia"
        )

    def source(self, kernel: Kernel) -> str:
        """The program text of one kernel.

        Raises:
            KernelError: the kernel needs what the device lacks.
        """
        # Most starts print nothing: what they use was kept.
        from tflgpu_opencl.printer import source_of

        return source_of(kernel, self)
