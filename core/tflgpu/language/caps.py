"""What a device can do, as far as kernels and the partitioner need to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from typing_extensions import Self


@attrs.frozen  # every start compares or shows some
class DeviceCaps:
    """Limits and features. Sizes are bytes; a backend fills in what its API reports.

    Attributes:
        f16_storage: 16-bit floats in buffers.
        f16_arithmetic: 16-bit float values (not only loads and stores).
        int8_storage: 8-bit integers in buffers.
        fused_fma: ``fma`` rounds once. APIs do not promise it; GPUs do it, some processors that
            stand in for one do not.
        max_workgroup: Most invocations of a workgroup. Nearly all kernels count on 64 and are
            refused where there are fewer.
        max_workgroup_size: The same along each axis.
        heavy_workgroup: Most invocations of a workgroup whose kernel takes many registers. OpenCL
            promises `max_workgroup` for no kernel: NVIDIA's driver, which says 1024, allows one
            256.
        max_groups: Most workgroups of a dispatch along each axis.
        shared_bytes: Shared memory of a workgroup.
        max_buffer_bytes: Largest buffer that can be bound.
        max_bindings: Most buffers of a kernel.
        subgroup_shuffle: Largest number of neighbours that are known to shuffle values
            (`tflgpu.language.subgroup`), a power of two; 0 where none are. Found by running a
            kernel, because APIs do not say which invocations are neighbours in a subgroup.
        matrix_tiles: Matrix statements (`tflgpu.language.matrix`) run, on subgroups of 32.
        cache_bytes: Last-level cache that kernels share: what lies in it between two kernels
            costs no memory traffic; 0 where not known.
        compute_units: Processors that run workgroups side by side; 1 where not known.
        is_gpu: A real GPU, not a CPU that runs kernels.
        vendor: "nvidia", "amd", "intel", "apple", "arm", "qualcomm", "mesa", "pocl" or "".
    """

    f16_storage: bool = True
    f16_arithmetic: bool = False
    int8_storage: bool = False
    fused_fma: bool = True
    max_workgroup: int = 256
    max_workgroup_size: tuple[int, int, int] = (256, 256, 64)
    heavy_workgroup: int = 1024
    max_groups: tuple[int, int, int] = (65535, 65535, 65535)
    shared_bytes: int = 16384
    max_buffer_bytes: int = 1 << 27
    max_bindings: int = 8
    subgroup_shuffle: int = 0
    matrix_tiles: bool = False
    cache_bytes: int = 0
    compute_units: int = 1
    is_gpu: bool = False
    vendor: str = ""

    @property
    def most_members(self) -> int:
        """Most invocations along the first axis of a workgroup, however heavy its kernel is."""
        return min(self.heavy_workgroup, self.max_workgroup, self.max_workgroup_size[0])


@attrs.frozen(kw_only=True)
class Features:
    """What kernels may use of a device; what is printed may depend on it.

    Attributes:
        f16_storage: 16-bit elements in buffers.
        f16_arithmetic: 16-bit floats as values. Without it they are loaded, stored and moved about.
        int8_storage: Integers of less than 32 bits in buffers.
        matrix_tiles: Matrix statements (`tflgpu.language.matrix`).
        subgroup_shuffle: The largest group of neighbours that shuffle values, 0 where none do.
    """

    f16_storage: bool = True
    f16_arithmetic: bool = False
    int8_storage: bool = True
    matrix_tiles: bool = False
    subgroup_shuffle: int = 0

    @classmethod
    def of(cls, caps: DeviceCaps) -> Self:
        """Those of a device, as far as its capabilities tell."""
        return cls(**{field.name: getattr(caps, field.name) for field in attrs.fields(Features)})


def guess_cache_bytes(*, is_gpu: bool, is_discrete: bool) -> int:
    """`DeviceCaps.cache_bytes` where an API does not tell: what small devices of the kind have.

    Discrete GPUs have had 4 MiB of second-level cache or more since about 2016; integrated ones
    1 MiB; processors that stand in for a GPU 8 MiB of third-level cache.
    """
    if not is_gpu:
        return 8 << 20
    return 4 << 20 if is_discrete else 1 << 20
