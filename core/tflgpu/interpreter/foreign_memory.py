"""What a caller hands over to be bound to a tensor, as memory: arrays and tensors of the host,
buffers of tflgpu's, and objects of the kinds that plugins register."""

from __future__ import annotations

from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from tflgpu.contract.buffers import ForeignMemory
from tflgpu.errors import ArgumentError, InputError, UnsupportedError
from tflgpu.errors.blame import Failed, attempt, shown
from tflgpu.interpreter import cuda_buffer, dlpack
from tflgpu.interpreter.arguments import as_array
from tflgpu.interpreter.device_buffer import DeviceBuffer
from tflgpu.ir.dtypes import Array
from tflgpu.plugins.registry import registry

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


def memory_of(source: Any) -> ForeignMemory:
    """What a caller's object is as memory.

    Raises:
        ArgumentError: nothing that could be bound; lists what could.
        UnsupportedError: memory that no backend reaches.
        PluginError: a plugin failed on it.
        InputError: memory whose elements do not lie packed row-major, or masked elements.
    """
    if isinstance(source, DeviceBuffer):
        return ForeignMemory(
            source.buffer, "a DeviceBuffer", source.shape, source.dtype, owned=True
        )
    if isinstance(source, np.ndarray):
        if type(source) is not np.ndarray:
            source = as_array("a NumPy array", False, source)
        return _host(source, "a NumPy array")
    found = registry().foreign_memory(source)
    if found is not None:
        return found
    if hasattr(source, "__dlpack__"):
        return _dlpack(source)
    view = attempt(memoryview, source)
    if isinstance(view, Failed):
        kinds = ", ".join(registry().memory_kinds)
        raise ArgumentError(
            f"{shown(source)} cannot be bound to a tensor; give a tflgpu.DeviceBuffer, a NumPy "
            f"array, {kinds}{', ' if kinds else ''}or what has __dlpack__ or Python's buffer "
            "protocol"
        )
    kind = f"a {type(source).__name__}"
    if not view.c_contiguous:
        raise InputError(f"{kind} whose elements do not lie packed row-major cannot be bound")
    if view.format == "B" and view.ndim == 1:
        return ForeignMemory(source, kind, array=np.frombuffer(view, np.uint8))
    return _host(np.asarray(view), kind)


def _host(array: Array, kind: str) -> ForeignMemory:
    return ForeignMemory(array, kind, array.shape, array.dtype, array)


def _dlpack(source: Any) -> ForeignMemory:
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


def _cuda(source: Any, kind: str) -> ForeignMemory:
    """A tensor of CUDA, which has to be the whole of a buffer of ``allocate_cuda``."""
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
    return ForeignMemory(known.buffer, kind, said.shape, said.dtype, owned=True)


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
