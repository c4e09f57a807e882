"""wgpu-native's own functions, through the cffi binding that wgpu-py carries.

wgpu-py checks and converts the arguments of every call, which costs more than the call; here the
arguments of a run are prepared once. Errors of wgpu-native itself still become exceptions, as
wgpu-py arranges it for its own calls.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import attrs
from tflgpu.backend_kit.forks import call_in_child, immortal
from tflgpu.backend_kit.waiting import wait_until
from tflgpu.errors import DeviceError
from tflgpu.language.types import Size3
from wgpu.backends.wgpu_native import _api, _helpers, ffi, lib

from tflgpu_wgpu.failure import failure

_CHECKED: Any = _api.libf  # raises what wgpu reports during a call
_READ = 1  # WGPUMapMode_Read
_NO_CHECKS = 0  # WGPUShaderRuntimeChecks_None


def _new_instance() -> None:
    """Let wgpu-py make another instance of the library, as it does at the first use: the threads
    and locks of the one that was inherited by a fork are gone or held for ever."""
    _helpers._the_instance = None


call_in_child(_new_instance)


@attrs.frozen(eq=False)
class Launch:
    """A dispatch as wgpu-native takes it."""

    pipeline: Any
    bind_group: Any
    groups: Size3


@attrs.frozen(eq=False)
class Copy:
    """``nbytes`` from the start of a buffer to ``offset`` in another."""

    source: Any
    target: Any
    offset: int
    nbytes: int


@attrs.frozen(eq=False)
class Upload:
    """``nbytes`` of host memory to the start of a buffer."""

    buffer: Any
    address: Any
    nbytes: int


def pointer(address: int) -> Any:
    """A host address as a C pointer."""
    return ffi.cast("void *", address)


def shader_module(device: Any, label: str, source: str) -> Any:
    """A shader module without checks at run time of indices, nor of loops that never end.

    Kernels keep inside their buffers and loops by construction, and the kernel interpreter and
    guard bands check that they do; the checks take 5 to 10 % of a model's GPU time on an H200.
    Before version 0.32 wgpu-py has no module without them.

    Raises:
        wgpu.GPUError: wgpu refused the source.
    """
    if not hasattr(lib, "wgpuDeviceCreateShaderModuleTrusted"):
        return device.create_shader_module(label=label, code=source)
    code = source.encode()
    text = ffi.new("char[]", code)
    wgsl = ffi.new("WGPUShaderSourceWGSL *")
    wgsl.chain.sType = lib.WGPUSType_ShaderSourceWGSL
    wgsl.code.data, wgsl.code.length = text, len(code)
    name = ffi.new("char[]", label.encode())
    descriptor = ffi.new("WGPUShaderModuleDescriptor *")
    descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", wgsl)
    descriptor.label.data, descriptor.label.length = name, len(label.encode())
    create = _CHECKED.wgpuDeviceCreateShaderModuleTrusted
    handle = create(device._internal, descriptor, _NO_CHECKS)
    return _api.GPUShaderModule(label, handle, device)


class Commands:
    """The uploads, dispatches and copies of a run, so many dispatches to a command buffer. Encoding
    takes one call a dispatch and two or three more where pipeline and bindings change: WebGPU has
    no command buffer to submit again."""

    def __init__(
        self,
        device: Any,
        uploads: Sequence[Upload],
        launches: Sequence[Launch],
        copies: Sequence[Copy],
        at_once: int = 1,
    ) -> None:
        self._device = device._internal
        self._queue = device.queue._internal
        self._uploads = [(u.buffer._internal, u.address, u.nbytes) for u in uploads]
        self._copies = [
            (c.source._internal, c.target._internal, c.offset, c.nbytes) for c in copies
        ]
        # At least one, for the copies of a plan without dispatches.
        self._chunks = [
            _chunk(launches[i : i + at_once]) for i in range(0, max(1, len(launches)), at_once)
        ]
        self._alive = (device, *uploads, *launches, *copies)
        self._encoder = ffi.new("WGPUCommandEncoderDescriptor *")
        self._pass = ffi.new("WGPUComputePassDescriptor *")
        self._buffer = ffi.new("WGPUCommandBufferDescriptor *")
        self._submitted = ffi.new("WGPUCommandBuffer[1]")

    def submit(self) -> None:
        """Write the inputs, encode, and submit.

        Raises:
            wgpu.GPUError: wgpu refused a command.
        """
        for buffer, address, nbytes in self._uploads:
            lib.wgpuQueueWriteBuffer(self._queue, buffer, 0, address, nbytes)
        for chunk in self._chunks:
            self._submit(chunk, last=chunk is self._chunks[-1])

    def _submit(self, chunk: list[_Encoded], *, last: bool) -> None:
        encoder = lib.wgpuDeviceCreateCommandEncoder(self._device, self._encoder)
        if chunk:
            _encode(lib.wgpuCommandEncoderBeginComputePass(encoder, self._pass), chunk)
        for source, target, offset, nbytes in self._copies if last else ():
            lib.wgpuCommandEncoderCopyBufferToBuffer(encoder, source, 0, target, offset, nbytes)
        try:
            # What was wrong with any of the commands is told here.
            commands = _CHECKED.wgpuCommandEncoderFinish(encoder, self._buffer)
        finally:
            lib.wgpuCommandEncoderRelease(encoder)
        self._submitted[0] = commands
        try:
            _CHECKED.wgpuQueueSubmit(self._queue, 1, self._submitted)
        finally:
            lib.wgpuCommandBufferRelease(commands)


#: Pipeline (None where it is set already), bind group, and workgroups along three axes.
_Encoded = tuple[Any, Any, int, int, int]


def _chunk(launches: Sequence[Launch]) -> list[_Encoded]:
    encoded: list[_Encoded] = []
    before: Any = None
    for launch in launches:
        # A pipeline stays set, in its pass, until another one is.
        pipeline = None if launch.pipeline is before else launch.pipeline._internal
        encoded.append((pipeline, launch.bind_group._internal, *launch.groups))
        before = launch.pipeline
    return encoded


def _encode(compute: Any, chunk: list[_Encoded]) -> None:
    set_pipeline = lib.wgpuComputePassEncoderSetPipeline
    set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
    dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
    null = ffi.NULL
    for pipeline, bind_group, x, y, z in chunk:
        if pipeline is not None:
            set_pipeline(compute, pipeline)
        set_bind_group(compute, 0, bind_group, 0, null)
        dispatch(compute, x, y, z)
    lib.wgpuComputePassEncoderEnd(compute)
    lib.wgpuComputePassEncoderRelease(compute)


class _Mapping:
    """What a callback tells of mapping a buffer.

    Attributes:
        done: Whether it is over.
        problem: Why it failed, if it did.
    """

    done = False
    problem: str | None = None


class Download:
    """Waits for the device, and copies ``nbytes`` of a mappable buffer into host memory."""

    def __init__(self, device: Any, buffer: Any, nbytes: int) -> None:
        self._device = device._internal
        self._alive: tuple[Any, ...] = (device, buffer)
        self._buffer = buffer._internal
        self._nbytes = nbytes
        #: What is copied to the host, as (start, bytes); None for all of it.
        self.spans: list[tuple[int, int]] | None = None
        # The callback knows this alone, and not the object that has the callback: the two would
        # keep the device until Python's collector comes by.
        self._mapping = mapping = _Mapping()

        # Python handles signals in callbacks too. What they raise there, KeyboardInterrupt above
        # all, does not get through the library that calls, so it is kept for who asked it.
        def failed(kind: Any, error: BaseException, trace: Any) -> None:
            mapping.done = True
            _asking.raised = error.with_traceback(trace)

        @ffi.callback(  # type: ignore[untyped-decorator]
            "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", onerror=failed
        )
        def mapped(status: int, message: Any, data1: Any, data2: Any) -> None:
            if status != lib.WGPUMapAsyncStatus_Success:
                text = ffi.string(message.data, message.length).decode(errors="replace")
                mapping.problem = text or f"status {status}"
            mapping.done = True

        self._callback = mapped
        self._info = ffi.new("WGPUBufferMapCallbackInfo *")
        self._info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        self._info.callback = mapped

    def wait(self, address: Any) -> None:
        """Return when everything that was submitted is done, and the copy to ``address`` made.

        Raises:
            DeviceError: the device is lost.
            wgpu.GPUError: wgpu refused.
        """
        self.begin()
        self.end(address)

    def begin(self) -> None:
        """Ask to be told when everything that was submitted is done.

        Raises:
            wgpu.GPUError: wgpu refused.
        """
        if self._nbytes:
            self._mapping.done, self._mapping.problem = False, None
            _CHECKED.wgpuBufferMapAsync(self._buffer, _READ, 0, self._nbytes, self._info[0])

    def is_over(self) -> bool:
        """Whether `end` would not wait."""
        if self._nbytes:
            return self._mapping.done or self._ended()
        return is_idle(self._device)

    def end(self, address: Any) -> None:
        """Wait for what `begin` asked, and copy to ``address``.

        Raises:
            DeviceError: the device is lost.
        """
        if not self._nbytes:
            wait_idle(self._device)
            return
        if not self._mapping.done:
            wait_until(self._ended)
        problem = self._mapping.problem
        if problem is not None:
            raise failure("waiting for the device", problem)
        source = lib.wgpuBufferGetConstMappedRange(self._buffer, 0, self._nbytes)
        if source == ffi.NULL:
            raise DeviceError("waiting for the device: its results cannot be mapped")
        if self.spans is None:
            ffi.memmove(address, source, self._nbytes)
        for start, nbytes in self.spans or ():
            target = ffi.cast("char *", address) + start
            ffi.memmove(target, ffi.cast("char *", source) + start, nbytes)
        lib.wgpuBufferUnmap(self._buffer)

    def keep(self) -> None:
        """Never release the callback: the library may still call it."""
        immortal(self._callback)

    def _ended(self) -> bool:
        lib.wgpuDevicePoll(self._device, False, ffi.NULL)
        if _asking.raised is not None:
            _raise_what_came()
        return self._mapping.done


class _Asking(threading.local):
    """What was raised in a callback while this thread asked a device."""

    raised: BaseException | None = None


_asking = _Asking()


def is_idle(device: Any) -> bool:
    """Let a device (wgpu-native's) call back what it has to tell; whether it has nothing to do."""
    # The header has a number of four bytes, but the function gives a bool of Rust: one byte, and
    # whatever was in the other three.
    idle = bool(lib.wgpuDevicePoll(device, False, ffi.NULL) & 0xFF)
    if _asking.raised is not None:
        _raise_what_came()
    return idle


def _raise_what_came() -> None:
    """Raise what a signal's handler raised in a callback."""
    raised, _asking.raised = _asking.raised, None
    if raised is not None:
        raise raised


def wait_idle(device: Any) -> None:
    """Return when a device (wgpu-native's) has done everything that was submitted."""
    wait_until(lambda: is_idle(device))
