"""What a caller hands over to be bound to a tensor: whose memory it is, and what is known of it.

Nothing here imports a driver's package: who has an object of one has imported it.
"""

from __future__ import annotations

import sys
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from tflgpu.errors import ArgumentError, InputError, UnsupportedError
from tflgpu.errors.blame import Failed, attempt, shown
from tflgpu.interpreter import cuda_buffer, dlpack
from tflgpu.interpreter.device_buffer import DeviceBuffer
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Shape
from tflgpu.values import frozen

#: DLPack's kinds of devices: those whose memory the host reads, and names of some others.
_ON_HOST = frozenset({1, 3, 11})
_NAMES = {
    2: "CUDA",
    4: "OpenCL",
    7: "Vulkan",
    8: "Metal",
    10: "ROCm",
    13: "CUDA managed",
    15: "WebGPU",
}
ACCEPTED = (
    "a tflgpu.DeviceBuffer, a NumPy array, a pyopencl Buffer or Array, a wgpu GPUBuffer, handles "
    "of a Vulkan buffer, or what has __dlpack__ or Python's buffer protocol"
)


@frozen(eq=False)
class Given:
    """Memory to be bound.

    Attributes:
        source: What the device is to import, or, with ``owned``, a buffer that it made.
        kind: What it is, for messages.
        shape, dtype: Of its elements; None where it is bytes of any meaning.
        array: Its memory as an array, where the host has it.
        owned: Whether ``source`` is a buffer of the contract, which stays the caller's.
    """

    source: Any
    kind: str
    shape: Shape | None = None
    dtype: np.dtype[Any] | None = None
    array: Array | None = None
    owned: bool = False


def recognised(source: Any) -> Given:
    """What was given.

    Raises:
        ArgumentError: nothing that could be bound; lists what could.
        UnsupportedError: memory that no backend reaches.
        InputError: memory whose elements do not lie packed row-major.
    """
    if isinstance(source, DeviceBuffer):
        return Given(source.buffer, "a DeviceBuffer", source.shape, source.dtype, owned=True)
    if isinstance(source, np.ndarray):
        return _host(source, "a NumPy array")
    opencl = _loaded("pyopencl.array", "Array")
    if opencl is not None and isinstance(source, opencl):
        return _opencl_array(source)
    for module, name in (
        ("pyopencl", "Buffer"),
        ("wgpu", "GPUBuffer"),
        ("tflgpu_vulkan.buffers", "VulkanHandles"),
    ):
        known = _loaded(module, name)
        if known is not None and isinstance(source, known):
            return Given(source, f"a {module.partition('.')[0]} {name}")
    if hasattr(source, "__dlpack__"):
        return _dlpack(source)
    view = attempt(memoryview, source)
    if isinstance(view, Failed):
        raise ArgumentError(f"{shown(source)} cannot be bound to a tensor; give {ACCEPTED}")
    kind = f"a {type(source).__name__}"
    if not view.c_contiguous:
        raise InputError(f"{kind} whose elements do not lie packed row-major cannot be bound")
    if view.format == "B" and view.ndim == 1:
        return Given(source, kind, array=np.frombuffer(view, np.uint8))
    return _host(np.asarray(view), kind)


def _loaded(module: str, name: str) -> Any:
    """A class of a package, None where nobody has imported that."""
    return getattr(sys.modules.get(module), name, None)


def _host(array: Array, kind: str) -> Given:
    return Given(array, kind, array.shape, array.dtype, array)


def _opencl_array(source: Any) -> Given:
    kind = "a pyopencl Array"
    if not source.flags.c_contiguous:
        raise InputError(f"{kind} whose elements do not lie packed row-major cannot be bound")
    dtype = np.dtype(source.dtype)
    buffer = source.base_data
    if source.offset or buffer.size < source.nbytes:
        # A part of another array; OpenCL says where such a part may begin.
        part = attempt(buffer.get_sub_region, source.offset, source.nbytes)
        if isinstance(part, Failed):
            raise UnsupportedError(
                f"{kind} that begins {source.offset} bytes into its buffer cannot be bound: the "
                f"driver makes no buffer of that part ({part}); copy it to an array of its own"
            )
        buffer = part
    return Given(buffer, kind, tuple(int(n) for n in source.shape), dtype)


def _dlpack(source: Any) -> Given:
    kind = f"a {type(source).__module__.partition('.')[0]} {type(source).__name__}"
    where = attempt(methodcaller("__dlpack_device__"), source)
    if isinstance(where, Failed):
        raise UnsupportedError(f"{kind} does not say on which device it is: {where}")
    device = attempt(lambda: int(where[0]))
    if isinstance(device, Failed):
        raise UnsupportedError(
            f"{kind} says {shown(where)} of where it is, not a DLPack device type and an index"
        )
    if device == dlpack.CUDA:
        return _cuda(source, kind)
    if device not in _ON_HOST:
        raise UnsupportedError(
            f"{kind} lies in memory of {_NAMES.get(device, f'DLPack device type {device}')}, which "
            "no backend here reads in place: drivers share only what was allocated to be shared; "
            "bind a buffer of allocate_buffer(), or copy the tensor to the host and bind that"
        )
    array = attempt(np.from_dlpack, source)
    if isinstance(array, Failed):
        raise UnsupportedError(f"{kind} cannot be read by DLPack: {array}")
    return _host(_writable(array, source), kind)


def _cuda(source: Any, kind: str) -> Given:
    """A tensor of CUDA: a whole buffer of ``allocate_cuda``, by whatever name."""
    # Not to be waited for: a run waits for all of CUDA's work.
    capsule = attempt(partial(source.__dlpack__, stream=-1))
    if isinstance(capsule, Failed):
        raise UnsupportedError(f"{kind} cannot be read by DLPack: {capsule}")
    said = dlpack.seen(capsule, kind)
    known = cuda_buffer.buffer_at(said.pointer)
    if known is None or said.nbytes > known.nbytes:
        raise UnsupportedError(
            f"{kind} lies in memory of CUDA that was not allocated to be shared, and drivers "
            "share no other: bind a buffer of allocate_cuda(), over which torch.from_dlpack and "
            "cupy.from_dlpack make tensors, or of allocate_buffer(), or copy the tensor to the "
            "host and bind that"
        )
    return Given(known.buffer, kind, said.shape, said.dtype, owned=True)


def _writable(array: Array, source: Any) -> Array:
    """DLPack before its version 1 does not say whether memory may be written, and NumPy takes it
    for read-only then. What gives an array of the same memory by ``numpy()``, as PyTorch's tensors
    do, says so by that."""
    if array.flags.writeable or not hasattr(source, "numpy"):
        return array
    said = attempt(methodcaller("numpy"), source)
    same = isinstance(said, np.ndarray) and said.__array_interface__ == {
        **array.__array_interface__,
        "data": (array.__array_interface__["data"][0], False),
    }
    return said if same else array
