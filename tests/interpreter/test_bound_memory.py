"""What can be bound to a tensor, and whose memory it is: arrays, other libraries' buffers, and what
is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import (
    ArgumentError,
    DeviceError,
    InputError,
    NotAllocatedError,
    StateError,
    UnsupportedError,
)
from tflgpu.interpreter import dlpack
from tflgpu.interpreter.dlpack import DlpackTensor

from tests.interpreter import interpreter_models as models
from tests.interpreter.buffer_helpers import SHAPE, Open, Packed, X, Y, copies, paged
from tests.running import set_and_run


def test_numpy_arrays(delegate: Any, opened: Open) -> None:
    """Read and written at each run, in place or by a copy."""
    one = opened(delegate)
    for x, y in (
        (X.copy(), np.zeros(SHAPE, np.float32)),
        (np.asfortranarray(X), np.zeros((*SHAPE, 2), np.float32)[..., 0]),
        (paged(SHAPE), paged(SHAPE)),
    ):
        one.bind_input(0, x)
        one.bind_output(3, y)
        for scale in (1, 3):
            x[...] = X * scale
            one.invoke()
            want = (X * scale + models.C) * models.C
            np.testing.assert_array_equal(y, want)
            np.testing.assert_array_equal(one.get_tensor(3), want)
            np.testing.assert_array_equal(one.tensor(3)(), want)
        one.set_tensor(0, X)
        np.testing.assert_array_equal(x, X)
    read_only = X.copy()
    read_only.setflags(write=False)
    one.bind_input(0, read_only)
    one.invoke()
    np.testing.assert_array_equal(y, Y)
    with pytest.raises(InputError, match="read-only"):
        one.set_tensor(0, X)


def test_host_memory_in_place(delegate: Any, opened: Open) -> None:
    """Where host and device share memory; whatever the size of an array of `allocate_array`."""
    device: Any = delegate.device
    shares = getattr(device, "in_place", device.info.backend == "cpu_ref")
    one = opened(delegate)
    x, y = one.allocate_array(0), one.allocate_array("scores")
    assert (x.shape, x.dtype, x.any()) == (SHAPE, np.float32, False)
    one.bind_input(0, x)
    one.bind_output(3, y)
    places = [one._main.bound.get(index) for index in (0, 3)]
    assert [place is not None and place.buffer is not None for place in places] == [shares, shares]
    for scale in (1, 2):
        x[...] = X * scale
        one.invoke()
        np.testing.assert_array_equal(y, (X * scale + models.C) * models.C)
        np.testing.assert_array_equal(one.get_tensor(3), y)
    if shares:
        assert copies(one) == (0, 0)
        with pytest.raises(DeviceError, match="the same memory"):
            one.bind_output(3, x)
    # A part of one begins elsewhere, and is as any other array.
    one.bind_input(0, np.zeros((2, *SHAPE), np.float32)[1])
    one.invoke()
    np.testing.assert_array_equal(y, np.full(SHAPE, models.C * models.C, np.float32))


def test_dlpack_and_the_buffer_protocol(one: Any) -> None:
    y = np.zeros(SHAPE, np.float32)
    one.bind_output(3, Packed(y))
    for source in (Packed(X.copy()), bytearray(X.tobytes()), memoryview(X.copy()), X.tobytes()):
        one.bind_input(0, source)
        y[...] = 0
        one.invoke()
        np.testing.assert_array_equal(y, Y)
    written = bytearray(Y.nbytes)
    one.bind_output(3, written)
    one.invoke()
    np.testing.assert_array_equal(np.frombuffer(written, np.float32).reshape(SHAPE), Y)


class Older(Packed):
    """By DLPack before its version 1, which does not know of read-only memory."""

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__()


class Tensor(Older):
    """Like PyTorch's: an array of the same memory, or not."""

    other: Any = None

    def numpy(self) -> Any:
        return self._array if self.other is None else self.other


def test_dlpack_that_does_not_say_whether_it_may_be_written(one: Any) -> None:
    y = np.zeros(SHAPE, np.float32)
    one.bind_input(0, Older(X))
    copied = Tensor(y)
    copied.other = y.copy()
    for source in (Older(y), copied):
        with pytest.raises(InputError, match="which is read-only"):
            one.bind_output(3, source)
    one.bind_output(3, Tensor(y))
    one.invoke()
    np.testing.assert_array_equal(y, Y)


@pytest.mark.needs("opencl")
def test_pyopencl(opened: Open) -> None:
    cl = pytest.importorskip("pyopencl")
    cl_array = pytest.importorskip("pyopencl.array")
    with tflgpu.GpuDelegate(backend="opencl") as delegate:
        one = opened(delegate)
        context = one.allocate_buffer(0).export().context
        queue = cl.CommandQueue(context)
        flags = cl.mem_flags
        x = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=X)
        y = cl.Buffer(context, flags.WRITE_ONLY, X.nbytes)
        one.bind_input(0, x)
        one.bind_output(3, y)
        one.invoke()
        found = np.zeros_like(Y)
        cl.enqueue_copy(queue, found, y)
        np.testing.assert_array_equal(found, Y)
        assert copies(one) == (0, 0)
        with pytest.raises(DeviceError, match=r"output 0 .* without leave.* it writes it"):
            one.bind_output(3, cl.Buffer(context, flags.READ_ONLY, X.nbytes))
        with pytest.raises(DeviceError, match=r"input 0 .* without leave.* it reads it"):
            one.bind_input(0, cl.Buffer(context, flags.WRITE_ONLY, X.nbytes))

        both = cl_array.to_device(queue, np.stack([X, X * 2]))
        result = cl_array.zeros(queue, SHAPE, np.float32)
        one.bind_output(3, result)
        for part, scale in ((both[0], 1), (cl_array.to_device(queue, X * 2), 2)):
            one.bind_input(0, part)
            queue.finish()
            one.invoke()
            np.testing.assert_array_equal(result.get(), (X * scale + models.C) * models.C)
        with pytest.raises(InputError, match=r"float32\[171, 3\], and a pyopencl Array of float64"):
            one.bind_input(0, cl_array.zeros(queue, SHAPE, np.float64))
        with pytest.raises(InputError, match="row-major"):
            one.bind_input(0, cl_array.zeros(queue, (3, 171), np.float32).T)
        with pytest.raises(DeviceError, match=r"one buffer|the same memory"):
            one.bind_input(0, result)
        elsewhere = cl.Buffer(cl.Context([context.devices[0]]), flags.READ_WRITE, X.nbytes)
        with pytest.raises(UnsupportedError, match="another OpenCL context"):
            one.bind_input(0, elsewhere)
        with pytest.raises(InputError, match=r"takes 2052 bytes, and a pyopencl Buffer has 2048"):
            one.bind_input(0, cl.Buffer(context, flags.READ_WRITE, 2048))
        # What was refused changed nothing.
        one.invoke()
        np.testing.assert_array_equal(result.get(), (X * 2 + models.C) * models.C)


@pytest.mark.needs("wgpu")
def test_wgpu(opened: Open) -> None:
    wgpu = pytest.importorskip("wgpu")
    with tflgpu.GpuDelegate(backend="wgpu") as delegate:
        one = opened(delegate)
        device = one.allocate_buffer(0).export()._device
        usage = wgpu.BufferUsage
        every = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        x = device.create_buffer(size=2064, usage=every)  # a multiple of 16 from 2052 on
        y = device.create_buffer(size=2064, usage=every)
        device.queue.write_buffer(x, 0, X)
        one.bind_input("image", x)
        one.bind_output("scores", y)
        one.invoke()
        found = np.frombuffer(device.queue.read_buffer(y, 0, 2052), np.float32)
        np.testing.assert_array_equal(found.reshape(SHAPE), Y)
        assert copies(one) == (0, 0)
        with pytest.raises(UnsupportedError, match="lacks a usage"):
            one.bind_input(0, device.create_buffer(size=2064, usage=usage.STORAGE))
        with pytest.raises(DeviceError, match=r"one buffer|the same memory"):
            one.bind_input(0, y)


@pytest.mark.needs("vulkan")
def test_vulkan_handles(opened: Open) -> None:
    with tflgpu.GpuDelegate(backend="vulkan") as delegate:
        one = opened(delegate)
        with one.allocate_buffer(0) as x, one.allocate_buffer(3) as y:
            one.bind_input(0, x.export())
            one.bind_output(3, y.export())
            x.write(X)
            one.invoke()
            np.testing.assert_array_equal(y.read(), Y)
            with pytest.raises(DeviceError, match=r"one buffer|the same memory"):
                one.bind_input(0, y.export())


def test_a_cuda_tensor_is_refused_with_the_reason(one: Any) -> None:

    class OfCuda(Packed):
        def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
            assert stream == -1
            return dlpack.capsule(DlpackTensor((2, 0), 4096, SHAPE, np.dtype(np.float32)), self)

    with pytest.raises(UnsupportedError, match=r"memory of CUDA.*allocate_cuda.*allocate_buffer"):
        one.bind_input(0, OfCuda(X, (2, 0)))
    with pytest.raises(UnsupportedError, match=r"cannot be read by DLPack: .*stream"):
        one.bind_input(0, Packed(X, (2, 0)))
    with pytest.raises(UnsupportedError, match="DLPack device type 99"):
        one.bind_input(0, Packed(X, (99, 0)))


WRONG: dict[str, tuple[Callable[[tflgpu.Interpreter], object], type[Exception], str]] = {
    "no such input": (lambda i: i.bind_input(7, X), InputError, r"no input 7; there are input 0"),
    "an output as an input": (lambda i: i.bind_input(3, X), InputError, "no input 3"),
    "no such name": (lambda i: i.bind_output("x", X), InputError, r"no output 'x'; .* 3 \('y'\)"),
    "no index": (lambda i: i.bind_input(0.5, X), ArgumentError, "whole number"),  # type: ignore[arg-type]
    "another shape": (
        lambda i: i.bind_input(0, X[:5]), InputError, r"float32\[171, 3\].*float32\[5, 3\]",
    ),
    "another type": (
        lambda i: i.bind_input(0, X.astype(np.float16)), InputError, "nothing is converted",
    ),
    "too few bytes": (lambda i: i.bind_input(0, bytearray(7)), InputError, "has 7 bytes"),
    "nothing at all": (lambda i: i.bind_input(0, None), ArgumentError, ("give a "
                                                                       "tflgpu.DeviceBuffer")),
    "a text": (lambda i: i.bind_input(0, "x"), ArgumentError, "'x' cannot be bound"),
    "a list": (lambda i: i.bind_input(0, [1.0]), ArgumentError, "cannot be bound"),
    "elements in one place": (
        lambda i: i.bind_output(3, np.lib.stride_tricks.as_strided(X.copy(), SHAPE, (0, 4))),
        InputError, "elements are the same memory",
    ),
    "read-only for an output": (lambda i: i.bind_output(3, X.tobytes()), InputError, "read-only"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit(reference: Any, opened: Open, what: str) -> None:
    action, error, message = WRONG[what]
    one = opened(reference)
    with pytest.raises(error, match=message):
        action(one)
    set_and_run(one, {0: X})
    np.testing.assert_array_equal(one.get_tensor(3), Y)


def test_when_it_cannot_be(reference: Any, opened: Open) -> None:
    fresh = tflgpu.Interpreter(model_content=models.chain(), experimental_delegates=[reference])
    with pytest.raises(NotAllocatedError):
        fresh.bind_input(0, X)
    with pytest.raises(NotAllocatedError):
        fresh.allocate_buffer(0)
    fresh.close()
    with pytest.raises(StateError, match="closed"):
        fresh.bind_input(0, X)
    one = opened(reference)
    view = one.tensor(0)()
    with pytest.raises(StateError, match="a NumPy view of a tensor is still held"):
        one.bind_input(0, X)
    del view
    x = one.allocate_buffer(0)
    x.close()
    with pytest.raises(StateError, match="this buffer is closed"):
        one.bind_input(0, x)
    with pytest.raises(StateError, match="this buffer is closed"):
        x.write(X)


def test_a_buffer_of_another_device(delegate: Any, opened: Open) -> None:
    info = delegate.device.info
    with tflgpu.GpuDelegate(backend=info.backend, device=info.index) as other:
        foreign = opened(other).allocate_buffer(0)
        with pytest.raises(DeviceError, match="not of this device"):
            opened(delegate).bind_input(0, foreign)
        foreign.close()


def test_one_buffer_for_an_input_and_an_output(delegate: Any, opened: Open) -> None:
    one = opened(delegate)
    with one.allocate_buffer(0) as x:
        one.bind_input(0, x)
        with pytest.raises(DeviceError, match="the same memory"):
            one.bind_output(3, x)
        with pytest.raises(DeviceError, match="the same memory"):
            one.bind_output(3, x.reshaped(SHAPE))
        other = one.allocate_buffer(3)
        one.bind_output(3, other)
        x.write(X)
        one.invoke()
        np.testing.assert_array_equal(other.read(), Y)


def test_shapes_are_compared(one: Any) -> None:
    with one.allocate_buffer(0) as x:
        turned = x.reshaped((3, 171))
        with pytest.raises(InputError, match=r"float32\[171, 3\].*float32\[3, 171\]"):
            one.bind_input(0, turned)
        with pytest.raises(InputError, match="another number of elements"):
            x.reshaped((5, 5))
        with pytest.raises(InputError, match="for a buffer of"):
            x.write(X[:5])
        one.bind_input(0, turned.reshaped(SHAPE))


def test_names_in_files_and_signatures(reference: Any, opened: Open) -> None:
    one = opened(reference, models.two_subgraphs())
    a, b = np.full((2, 2), 5, np.float32), np.full((2, 2), 3, np.float32)
    one.bind_input("u", a)  # the signature's name of tensor 0, called "a"
    one.bind_input("b", b)
    one.invoke()
    np.testing.assert_array_equal(one.get_tensor(3), a - b)


def test_what_has_no_device_type(reference: Any, opened: Open) -> None:
    class Mute:
        def __dlpack__(self, **options: Any) -> Any:
            raise AssertionError

    with pytest.raises(UnsupportedError, match="does not say on which device"):
        opened(reference).bind_input(0, Mute())


def test_one_memory_for_an_input_and_an_output(delegate: Any, opened: Open) -> None:
    """Also where runs copy arrays: the next run would have another input."""
    one = opened(delegate)
    both = np.zeros((*SHAPE, 2), np.float32)
    one.bind_input(0, both[..., 0])
    for again in (both[..., 0], both.reshape(-1)[: X.size].reshape(SHAPE)):
        with pytest.raises(DeviceError, match="cannot be bound to the same memory"):
            one.bind_output(3, again)
    one.bind_output(3, both[..., 1])  # the elements between them
    both[..., 0] = X
    one.invoke()
    np.testing.assert_array_equal(both[..., 1], Y)


@pytest.mark.parametrize("where", [None, ("a", 0), ()], ids=str)
def test_a_tensor_that_is_nowhere(where: Any, delegate: Any, opened: Open) -> None:
    class Nowhere:
        def __dlpack__(self, **kwargs: Any) -> Any:
            raise AssertionError("it is not asked for")

        def __dlpack_device__(self) -> Any:
            return where

    with pytest.raises(UnsupportedError, match="of where it is"):
        opened(delegate).bind_input(0, Nowhere())


@pytest.mark.parametrize("shape", ["x", None, (1.5,)], ids=str)
def test_a_shape_that_is_none(shape: Any, delegate: Any, opened: Open) -> None:
    with pytest.raises(ArgumentError, match="a tuple of whole numbers"):
        opened(delegate).allocate_buffer(0).reshaped(shape)


def test_an_output_s_array_that_becomes_read_only(one: Any) -> None:
    """Nothing is computed, and the interpreter goes on once it is writable again."""
    block = np.zeros((SHAPE[0], 6), np.float32)
    y = block[:, ::2]  # apart, though by turns with others
    one.bind_output(3, y)
    one.set_tensor(0, X)
    y.flags.writeable = False
    with pytest.raises(InputError, match="tensor 3 is bound to an array that has become read-only"):
        one.invoke()
    y.flags.writeable = True
    one.invoke()
    np.testing.assert_array_equal(y, Y)
    assert not block[:, 1::2].any()
