"""Memory that CUDA and Vulkan share, without CUDA: a driver that records what it is asked, and maps
a file descriptor as the real one would. Whether NVIDIA's does is for
`python -m benchmarks.cuda_tensors`."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import DeviceError, InputError, StateError, UnsupportedError
from tflgpu.interpreter import cuda, cuda_buffer, dlpack
from tflgpu.interpreter.dlpack import DlpackTensor

from tests.interpreter import interpreter_models as models
from tests.interpreter.buffer_helpers import Open, X, Y, copies

#: The process's open files.
FILES = Path("/proc/self/fd")
F32 = np.dtype(np.float32)


class Driver:
    """CUDA's functions, as ctypes calls them."""

    def __init__(self, uuid: bytes) -> None:
        self.calls: list[str] = []
        self.failing = ""
        self.devices = [bytes(16), uuid]
        self.maps: dict[int, mmap.mmap] = {}
        self.at: dict[int, mmap.mmap] = {}
        self.contexts = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cu"):
            raise AttributeError(name)
        if name == "cuGetErrorName":
            return self._name

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == self.failing:
                return 801
            getattr(self, f"do_{name}", lambda *_: None)(*arguments)
            return 0

        return call

    def _name(self, result: int, found: Any) -> int:
        found._obj.value = b"CUDA_ERROR_NOT_SUPPORTED"
        return 0

    def do_cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = len(self.devices)

    def do_cuDeviceGet(self, device: Any, index: int) -> None:
        device._obj.value = index

    def do_cuDeviceGetUuid(self, found: Any, device: Any) -> None:
        found._obj[:] = list(self.devices[device.value])

    def do_cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> None:
        self.contexts += 1

    def do_cuDevicePrimaryCtxRelease_v2(self, device: Any) -> None:
        self.contexts -= 1

    def do_cuImportExternalMemory(self, memory: Any, given: Any) -> None:
        handle = given._obj
        assert (handle.type, handle.flags) == (1, 1)
        assert os.fstat(handle.handle.fd).st_size >= handle.size
        found = mmap.mmap(handle.handle.fd, 0)
        os.close(handle.handle.fd)  # it is CUDA's now
        memory._obj.value = id(found)
        self.maps[id(found)] = found

    def do_cuExternalMemoryGetMappedBuffer(self, pointer: Any, memory: Any, wanted: Any) -> None:
        found = self.maps[memory.value]
        assert wanted._obj.offset + wanted._obj.size <= len(found)
        pointer._obj.value = np.frombuffer(found, np.uint8).ctypes.data
        self.at[pointer._obj.value] = found

    def do_cuDestroyExternalMemory(self, memory: Any) -> None:
        with contextlib.suppress(BufferError):  # an array over it is still there
            self.maps.pop(memory.value).close()


@pytest.fixture
def vulkan(require_backend: Callable[[str], Any]) -> Iterator[tflgpu.GpuDelegate]:
    require_backend("vulkan")
    with tflgpu.GpuDelegate(backend="vulkan") as made:
        device: Any = made.device
        if not device.inner._context.details.exports:
            pytest.skip("this Vulkan driver exports no memory")
        yield made


@pytest.fixture
def driver(vulkan: tflgpu.GpuDelegate, monkeypatch: pytest.MonkeyPatch) -> Driver:
    device: Any = vulkan.device
    made = Driver(device.inner.uuid)
    found = cuda.Cuda(made)
    monkeypatch.setattr(cuda_buffer, "driver", lambda: found)
    return made


def at(driver: Driver, buffer: Any) -> Any:
    """The memory as CUDA sees it. Where in the file that is, which is the driver's business
    (llvmpipe has words of its own before it), shows by what is written to the buffer."""
    mark = np.random.default_rng(buffer.pointer % 1000).standard_normal(buffer.shape)
    buffer.write(mark.astype(np.float32))
    file = driver.at[buffer.pointer]
    start = file.find(mark.astype(np.float32).tobytes())
    assert start >= 0, "what Vulkan wrote is not in the memory that was imported"
    return np.frombuffer(file, np.float32, mark.size, start).reshape(buffer.shape)


class Tensor:
    """What CuPy or PyTorch make of a buffer."""

    def __init__(self, buffer: Any) -> None:
        self.capsule = buffer.__dlpack__(max_version=(1, 0))

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1


def test_cuda_and_a_model_share_memory(
    vulkan: tflgpu.GpuDelegate, driver: Driver, opened: Open
) -> None:
    one = opened(vulkan)
    with one.allocate_cuda("image") as x, one.allocate_cuda(3) as y:
        assert x.__dlpack_device__() == (2, 1)
        assert x.__cuda_array_interface__["data"] == (x.pointer, False)
        assert vulkan.memory.buffers == 2 * X.nbytes
        assert not x.read().any()
        given, found = at(driver, x), at(driver, y)
        one.bind_input(0, x)
        one.bind_output(3, Tensor(y))
        for scale in (1, 2):
            given[...] = X * scale
            driver.calls.clear()
            one.invoke()
            # Once for each buffer that is bound: all that CUDA was asked to do is done by then.
            assert driver.calls.count("cuCtxSynchronize") == 2
            np.testing.assert_array_equal(found, (X * scale + models.C) * models.C)
        assert copies(one) == (0, 0)
        np.testing.assert_array_equal(y.read(), (X * 2 + models.C) * models.C)
        x.write(X)
        np.testing.assert_array_equal(given, X)
        with pytest.raises(DeviceError, match="the same memory"):
            one.bind_output(3, Tensor(x))
        one.unbind(3)
        given[...] = X * 3
        run = one.invoke_async()
        np.testing.assert_array_equal(run.get_tensor(3), (X * 3 + models.C) * models.C)
    assert driver.contexts == 0
    assert driver.calls.count("cuDestroyExternalMemory") == 2
    with pytest.raises(StateError, match="closed"):
        x.__dlpack__()


def test_what_nobody_closes_is_given_back(
    vulkan: tflgpu.GpuDelegate, driver: Driver, opened: Open
) -> None:
    one = opened(vulkan)
    one.allocate_cuda(0)
    gc.collect()
    assert driver.contexts == 0
    assert vulkan.memory.buffers == 0


@pytest.mark.parametrize("failing", ["cuImportExternalMemory", "cuExternalMemoryGetMappedBuffer"])
def test_a_driver_that_refuses(
    vulkan: tflgpu.GpuDelegate, driver: Driver, opened: Open, failing: str
) -> None:
    """Says which function and why, and nothing is left: no memory, no descriptor, no context."""
    one = opened(vulkan)
    driver.failing = failing
    before = len(list(FILES.iterdir()))
    with pytest.raises(DeviceError, match=rf"^{failing}: CUDA error 801 .CUDA_ERROR_NOT_SUPPORTED"):
        one.allocate_cuda(0)
    assert len(list(FILES.iterdir())) == before
    assert vulkan.memory.buffers == 0
    assert driver.contexts == 0
    assert ("cuDestroyExternalMemory" in driver.calls) == (failing != "cuImportExternalMemory")


def test_another_device(vulkan: tflgpu.GpuDelegate, driver: Driver, opened: Open) -> None:
    driver.devices = [b"\1" * 16]
    with pytest.raises(DeviceError, match=f"CUDA has no device with the UUID .*has {'01' * 16}"):
        opened(vulkan).allocate_cuda(0)
    assert vulkan.memory.buffers == 0


def test_no_driver(
    vulkan: tflgpu.GpuDelegate, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_buffer, "driver", cuda.Cuda)
    monkeypatch.setattr(cuda, "_NAMES", ("libno-cuda-here.so",))
    with pytest.raises(DeviceError, match=r"there is no CUDA driver: .*libno-cuda-here"):
        opened(vulkan).allocate_cuda(0)
    with pytest.raises(DeviceError, match="has no cuInit; it is too old"):
        cuda.Cuda(object())


def test_devices_that_share_nothing(reference: Any, opened: Open) -> None:
    with pytest.raises(UnsupportedError, match=r"cpu_ref backend shares no memory .* Vulkan"):
        opened(reference).allocate_cuda(0)
    with pytest.raises(UnsupportedError, match="no part of the model runs on one"):
        opened(None).allocate_cuda(0)


@pytest.mark.parametrize("options", [{}, {"max_version": (1, 0)}], ids=["plain", "versioned"])
def test_what_a_capsule_says(options: Any) -> None:
    for array in (X, np.arange(5, dtype=np.int8), np.zeros((2, 0, 3), np.uint16), np.float64(3)):
        held = np.array(array)
        if options and "max_version" not in (held.__dlpack__.__doc__ or "max_version"):
            pytest.skip("this NumPy makes no such capsules")
        try:
            found = dlpack.seen(held.__dlpack__(**options), "it")
        except TypeError:
            pytest.skip("this NumPy makes no such capsules")
        assert found == DlpackTensor((1, 0), held.ctypes.data, held.shape, held.dtype)
        assert found.nbytes == held.nbytes


def test_capsules_that_say_nothing_here() -> None:
    with pytest.raises(InputError, match="row-major"):
        dlpack.seen(X.T.__dlpack__(), "it")
    with pytest.raises(UnsupportedError, match="which no tensor of a model has"):
        dlpack.seen(np.zeros(3, np.complex64).__dlpack__(), "it")
    with pytest.raises(UnsupportedError, match="gave no capsule"):
        dlpack.seen(object(), "it")


@pytest.mark.parametrize("versioned", [False, True])
def test_a_capsule_keeps_its_owner_until_it_is_done_with(versioned: bool) -> None:
    class Owner:
        pass

    memory = np.array(Y)
    owner = Owner()
    alive = weakref.ref(owner)
    what = DlpackTensor((1, 0), memory.ctypes.data, memory.shape, F32)
    made = dlpack.capsule(what, owner, versioned=versioned)
    assert dlpack.seen(made, "it") == what
    del owner
    gc.collect()
    assert alive() is not None
    del made
    gc.collect()
    assert alive() is None

    class Source:
        def __dlpack__(self, **options: Any) -> Any:
            return dlpack.capsule(what, self)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    source = Source()
    alive = weakref.ref(source)  # type: ignore[assignment]
    array = np.from_dlpack(source)
    del source
    gc.collect()
    assert alive() is not None
    np.testing.assert_array_equal(array, Y)
    del array
    gc.collect()
    assert alive() is None


def test_the_benchmark_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import cuda_tensors

    monkeypatch.setattr(cuda_buffer, "driver", cuda.Cuda)
    monkeypatch.setattr(cuda, "_NAMES", ("libno-cuda-here.so",))
    monkeypatch.setattr(sys, "argv", ["cuda_tensors"])
    assert cuda_tensors.main() == 2
    assert "not checked: there is no CUDA driver" in capsys.readouterr().out
