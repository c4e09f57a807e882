"""Tensors of CUDA as inputs and outputs, on a machine with CUDA and Vulkan on one GPU.

    python -m benchmarks.cuda_tensors
    python -m benchmarks.cuda_tensors --model mobilenet_v1_1.0_224_f32 --rounds 200

Checks, and says of each whether it holds: which devices CUDA and Vulkan have in common, by UUID;
that what CUDA writes a model reads, and what the model writes CUDA reads, to the last bit, without
a byte copied between host and device; that a run waits for what CUDA is still doing, in a stream of
its own; the same with a capsule made by hand, and with PyTorch and CuPy where they are. Then times
of a run. What the driver refuses is printed as it says it. Ends with 1 where something does not
hold, with 2 where there is no CUDA or no such Vulkan device.

Without PyTorch nothing but the driver's library (libcuda) is needed.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tflgpu
from tflgpu.errors import TflgpuError
from tflgpu.interpreter import cuda_buffer
from tflgpu.interpreter.cuda import UUID_BYTES, Cuda

from benchmarks.run import find_model

#: Bytes of a copy that keeps CUDA busy while a run begins, and how often it is made.
_BUSY, _TIMES = 256 << 20, 40


class Failed(Exception):
    """A check that does not hold."""


class Copier:
    """Copies between the host and addresses of CUDA, by the driver alone."""

    def __init__(self, cuda: Cuda, device: int) -> None:
        self.cuda, self.device = cuda, device

    def put(self, pointer: int, array: Any) -> None:
        """Copy an array of the host to CUDA's memory, and wait."""
        with self.cuda.context(self.device):
            self.cuda.call("cuMemcpyHtoD_v2", _address(pointer), _host(array), _size(array.nbytes))
            self.cuda.call("cuCtxSynchronize")

    def get(self, pointer: int, array: Any) -> None:
        """Fill an array of the host from CUDA's memory."""
        with self.cuda.context(self.device):
            self.cuda.call("cuMemcpyDtoH_v2", _host(array), _address(pointer), _size(array.nbytes))

    def late(self, pointer: int, array: Any) -> Callable[[], None]:
        """Let CUDA write an array to its memory at the end of some long work in a stream that
        nothing else waits for, and return at once. Gives what frees what that took."""
        cuda = self.cuda
        stream, source, busy = ctypes.c_void_p(), ctypes.c_ulonglong(), ctypes.c_ulonglong()
        with cuda.context(self.device):
            cuda.call("cuStreamCreate", ctypes.byref(stream), 1)  # CU_STREAM_NON_BLOCKING
            cuda.call("cuMemAlloc_v2", ctypes.byref(source), _size(array.nbytes))
            cuda.call("cuMemAlloc_v2", ctypes.byref(busy), _size(2 * _BUSY))
            cuda.call("cuMemcpyHtoD_v2", source, _host(array), _size(array.nbytes))
            cuda.call("cuCtxSynchronize")
            half = _address(busy.value + _BUSY)
            for _ in range(_TIMES):
                cuda.call("cuMemcpyDtoDAsync_v2", half, busy, _size(_BUSY), stream)
            cuda.call(
                "cuMemcpyDtoDAsync_v2", _address(pointer), source, _size(array.nbytes), stream
            )

        def free() -> None:
            with cuda.context(self.device):
                cuda.call("cuStreamSynchronize", stream)
                cuda.call("cuMemFree_v2", source)
                cuda.call("cuMemFree_v2", busy)
                cuda.call("cuStreamDestroy_v2", stream)

        return free


class Handmade:
    """A tensor that is nothing but a capsule, as another library would make it of a buffer."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def __dlpack__(self, **options: Any) -> Any:
        return self._buffer.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self._buffer.__dlpack_device__()
        return kind, index


def _address(pointer: int) -> Any:
    return ctypes.c_ulonglong(pointer)


def _size(nbytes: int) -> Any:
    return ctypes.c_size_t(nbytes)


def _host(array: Any) -> Any:
    return ctypes.c_void_p(array.ctypes.data)


def _same(what: str, found: Any, wanted: Any) -> None:
    if not np.array_equal(found, wanted):
        differ = int(np.count_nonzero(found != wanted))
        raise Failed(f"{what}: {differ} of {wanted.size} numbers differ from those without CUDA")


def _devices(cuda: Cuda) -> list[str]:
    count = ctypes.c_int()
    cuda.call("cuDeviceGetCount", ctypes.byref(count))
    found = []
    for index in range(count.value):
        device, uuid = ctypes.c_int(), (ctypes.c_ubyte * UUID_BYTES)()
        cuda.call("cuDeviceGet", ctypes.byref(device), index)
        cuda.call("cuDeviceGetUuid", ctypes.byref(uuid), device)
        found.append(bytes(uuid).hex())
    return found


def _values(one: tflgpu.Interpreter, seed: int) -> Any:
    (given,) = one.get_input_details()
    values = np.random.default_rng(seed).uniform(-1, 1, given["shape"])
    return np.ascontiguousarray(values.astype(given["dtype"]))


def _plain(one: tflgpu.Interpreter, values: Any) -> Any:
    (given,), (found, *_) = one.get_input_details(), one.get_output_details()
    one.set_tensor(given["index"], values)
    one.invoke()
    return one.get_tensor(found["index"])


def _timed(run: Callable[[], object], rounds: int) -> str:
    for _ in range(10):
        run()
    times = np.empty(rounds)
    for i in range(rounds):
        start = time.perf_counter()
        run()
        times[i] = time.perf_counter() - start
    median, tail = np.quantile(times, [0.5, 0.9]) * 1e3
    return f"{median:.3f} ms (90 %: {tail:.3f})"


def _check(one: tflgpu.Interpreter, cuda: Cuda, rounds: int) -> None:
    (given,), (found, *_) = one.get_input_details(), one.get_output_details()
    at, out = given["index"], found["index"]
    wanted = [_plain(one, _values(one, seed)) for seed in range(3)]
    if np.array_equal(wanted[0], wanted[1]):
        raise Failed("the model gives the same for other inputs: it shows nothing")

    def set_and_get() -> None:
        one.set_tensor(at, values)
        one.invoke()
        one.get_tensor(out)

    values = _values(one, 0)
    print(f"set, invoke, get        {_timed(set_and_get, rounds)}")
    with one.allocate_cuda(at) as x, one.allocate_cuda(out) as y:
        copier = Copier(cuda, x.cuda_device)
        result = np.empty(y.shape, y.dtype)
        one.bind_input(at, x)
        one.bind_output(out, y)
        one.reset_copied()
        for seed in (0, 1):
            copier.put(x.pointer, _values(one, seed))
            one.invoke()
            copier.get(y.pointer, result)
            _same(f"values, seed {seed}", result, wanted[seed])
        if one.copied.total:
            raise Failed(f"{one.copied} where nothing was to be copied")
        print("values                  equal, 0 bytes copied")

        free = copier.late(x.pointer, _values(one, 2))
        start = time.perf_counter()
        one.invoke()
        waited = time.perf_counter() - start
        copier.get(y.pointer, result)
        free()
        _same("a run that begins while CUDA writes", result, wanted[2])
        print(f"waiting for a stream    right (the run took {waited * 1e3:.1f} ms with it)")
        print(f"invoke, CUDA's memory   {_timed(one.invoke, rounds)}")

        one.unbind()
        one.bind_input(at, Handmade(x))
        one.bind_output(out, Handmade(y))
        copier.put(x.pointer, _values(one, 0))
        one.invoke()
        copier.get(y.pointer, result)
        _same("capsules made by hand", result, wanted[0])
        print("capsules made by hand   equal")
        for package in ("torch", "cupy"):
            _by_package(package, one, x, y, wanted)
        one.unbind()


def _by_package(package: str, one: tflgpu.Interpreter, x: Any, y: Any, wanted: list[Any]) -> None:
    try:
        library = importlib.import_module(package)
        given, found = library.from_dlpack(x), library.from_dlpack(y)
    except Exception as error:  # noqa: BLE001  (a package may fail in any way; it is said)
        print(f"{package:23} not checked: {type(error).__name__}: {error}")
        return
    (at,), (out, *_) = one.get_input_details(), one.get_output_details()
    one.bind_input(at["index"], given)
    one.bind_output(out["index"], found)
    for seed in (1, 2):
        fresh = library.asarray(_values(one, seed))
        given[...] = fresh.to(given.device) if package == "torch" else fresh
        one.invoke()
        result = found.cpu().numpy() if package == "torch" else library.asnumpy(found)
        _same(f"{package}, seed {seed}", result, wanted[seed])
    print(f"{package:23} equal")
    one.unbind()
    # Memory of the package's own is not shared.
    foreign = library.zeros(tuple(x.shape), dtype=getattr(library, str(x.dtype)))
    foreign = foreign.cuda() if package == "torch" else foreign
    try:
        one.bind_input(at["index"], foreign)
    except TflgpuError as error:
        print(f"{package:23} memory of its own is refused: {str(error)[:90]}...")
    else:
        raise Failed(f"{package}: memory of its own was bound, which nothing shares")


def main() -> int:
    """Print what holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="mobilenet_v1_1.0_224_f32", metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args()
    try:
        cuda = cuda_buffer.driver()
        print(f"CUDA's devices          {', '.join(_devices(cuda)) or 'none'}")
        delegate = tflgpu.GpuDelegate(backend="vulkan", allow_fallback=False)
    except TflgpuError as error:
        print(f"not checked: {error}")
        return 2
    with (
        delegate,
        tflgpu.Interpreter(find_model(given.model), experimental_delegates=[delegate]) as one,
    ):
        device: Any = delegate.device
        print(f"Vulkan's device         {device.inner.uuid.hex()} {device.info.name}")
        one.allocate_tensors()
        try:
            _check(one, cuda, given.rounds)
        except (Failed, TflgpuError) as error:
            print(f"DOES NOT HOLD: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
