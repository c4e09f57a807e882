"""What inputs and outputs of an interpreter are bound to, from session to session."""

from __future__ import annotations

from typing import Any

import numpy as np

from tflgpu.backend_kit.host_memory import pages_of
from tflgpu.contract.buffers import Buffer, ForeignMemory
from tflgpu.errors import DeviceError, InputError, StateError, TflgpuError, UnsupportedError
from tflgpu.errors.blame import Failed, attempt, in_a_line, listed, quoted
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Shape
from tflgpu.lowering.reason import Unsupported
from tflgpu.runtime.loaded_part import Traffic
from tflgpu.runtime.session import Session
from tflgpu.values import define, frozen

#: What NumPy may try to find an element that two arrays share; it stands for a number of
#: candidates.
_MOST_WORK: Any = 10_000


@frozen
class Port:
    """An input or output of the model."""

    index: int
    name: str
    is_input: bool

    @property
    def told(self) -> str:
        """For messages."""
        return f"{'input' if self.is_input else 'output'} {self.index} ({quoted(self.name)})"


@define(eq=False)
class Bound:
    """What a tensor is bound to.

    Attributes:
        port: The tensor.
        memory: What the caller handed over.
        shape, dtype: The tensor's.
        buffer: The device's buffer over it; None where an array is copied.
        traffic: Counts what is read and written here.
        held: The contents as they were read last, and after how many runs.
    """

    port: Port
    memory: ForeignMemory
    shape: Shape
    dtype: np.dtype[Any]
    buffer: Buffer | None
    traffic: Traffic
    held: tuple[int, Array] | None = None

    def read(self) -> Array:
        """A copy of its contents.

        Raises:
            StateError: the buffer or its device is closed.
            DeviceError: the device failed.
        """
        if self.memory.array is not None:
            return np.array(_seen_as(self.memory.array, self.shape, self.dtype))
        assert self.buffer is not None
        found: Array = np.empty(self.shape, self.dtype)
        try:
            self.buffer.read(found)
        except StateError as error:
            raise self._lost(error) from error
        self.traffic.to_host += found.nbytes
        return found

    def write(self, value: Array) -> None:
        """Copy an array of the tensor's shape and type to it.

        Raises:
            InputError: the memory cannot be written.
            StateError, DeviceError: as `read`.
        """
        if self.memory.array is not None:
            target = _seen_as(self.memory.array, self.shape, self.dtype)
            if not target.flags.writeable:
                raise InputError(
                    f"{self.port.told} is bound to {self.memory.kind} that is read-only; unbind "
                    "it to set it"
                )
            np.copyto(target, value)
            return
        assert self.buffer is not None
        try:
            self.buffer.write(value)
        except StateError as error:
            raise self._lost(error) from error
        self.traffic.to_device += value.nbytes

    def check_open(self) -> None:
        """See that its owner has not closed the buffer of the device that it is bound to: nothing
        new could be in it.

        Raises:
            StateError: the buffer or its device is closed.
        """
        check = getattr(self.buffer, "check_open", None)
        try:
            if self.memory.owned and check is not None:
                check()
        except StateError as error:
            raise self._lost(error) from error

    def _lost(self, error: StateError) -> StateError:
        return StateError(
            f"{self.port.told} is bound to {self.memory.kind}: {error}; what is in it is lost. "
            "Bind it to something else, or call resize_tensor_input or close; the next time "
            "unbind before closing"
        )

    def ensure(self) -> None:
        """Have its contents after the last run in host memory.

        Raises:
            StateError, DeviceError: as `read`.
        """
        if self.readable is None:
            self.held = self.traffic.runs, self.read()

    @property
    def readable(self) -> Array | None:
        """Its contents after the last run, where they were copied to the host."""
        return None if self.held is None or self.held[0] != self.traffic.runs else self.held[1]

    def close(self) -> None:
        """Let go of the memory, which is the caller's."""
        if self.buffer is not None and not self.memory.owned:
            self.buffer.close()


class Bindings:
    """The bindings of one subgraph. A tensor stays bound until it is unbound, also where another
    session takes the place of its own.

    Attributes:
        bound: What tensors are bound to, by index.
        traffic: What runs and reading have copied between host and device.
        leaves_outputs: Whether outputs that are bound are only read when that is asked for
            (`Interpreter.set_allow_buffer_handle_output`).
    """

    def __init__(self, bound: dict[int, Bound], traffic: Traffic) -> None:
        self.bound, self.traffic = bound, traffic
        self.leaves_outputs = False

    def bind(self, session: Session, port: Port, memory: ForeignMemory) -> None:
        """Bind a tensor; what it was bound to before it is not any more.

        Raises:
            InputError: another shape, type or size than the tensor's, or an output's is read-only.
            UnsupportedError: the tensor cannot be bound to that here; says why.
            StateError: a buffer or its device is closed.
            DeviceError: another device's, too small, or bound to another tensor that a run writes.
        """
        self._check_apart(port, memory)
        made = self._placed(session, port, memory)
        old, self.bound[port.index] = self.bound.get(port.index), made
        if old is not None and old.buffer is not made.buffer:
            old.close()

    def unbind(self, session: Session | None, index: int) -> str:
        """Give a tensor its own memory back, with the contents that it has; gives why they are
        lost, "" where they are not. A session that broke cannot be changed: the next one has them
        then.

        Raises:
            StateError: what it is bound to is closed, so that its contents are not there.
            DeviceError: the device failed.
        """
        bound, lost = self.bound.get(index), ""
        if bound is None:
            return lost
        if session is not None and session.is_broken:
            if bound.port.is_input:
                contents = attempt(bound.read)
                if isinstance(contents, Failed):
                    why = in_a_line(contents.error.__cause__ or contents.error)
                    lost = f"it was bound to {bound.memory.kind}, which is lost ({why})"
                else:
                    np.copyto(session.arrays[index], contents)
        elif session is not None:
            contents = bound.read()
            session.put(index, None)
            session.settle()  # what was lent is not for these contents
            if session.arrays[index].flags.writeable:  # no constant
                np.copyto(session.arrays[index], contents)
        del self.bound[index]
        bound.close()
        return lost

    def apply(self, session: Session) -> None:
        """Let a new session of the same model have what the last one had.

        Raises:
            As `bind`: of another shape, or on another device, what was bound may not fit.
        """
        for index, bound in list(self.bound.items()):
            try:
                made = self._placed(session, bound.port, bound.memory)
            except TflgpuError as error:
                raise type(error)(
                    f"{error} (it was bound before the model was prepared anew; bind something "
                    "else after unbind())"
                ) from error
            if made.buffer is not bound.buffer:
                bound.close()
            self.bound[index] = made

    def check_inputs(self) -> None:
        """See, before a run, that no input is bound to a buffer that its owner has closed.

        Raises:
            StateError: an input's buffer or its device is closed.
        """
        for bound in self.bound.values():
            if bound.buffer is not None and bound.port.is_input:
                bound.check_open()

    def contents(self, index: int) -> Array:
        """For `Interpreter.get_tensor`: what a bound tensor has.

        Raises:
            StateError: reading was ruled out, or what it is bound to is closed.
            DeviceError: the device failed.
        """
        bound = self.bound[index]
        held = self._held(bound)
        return bound.read() if held is None else held.copy()

    def view(self, index: int) -> Array:
        """For `Interpreter.tensor`: host memory with the contents of a bound tensor.

        Raises:
            StateError, DeviceError: as `contents`; or an input is bound to a buffer of the device,
                from which no host array is read.
        """
        bound = self.bound[index]
        if bound.memory.array is not None:
            return _seen_as(bound.memory.array, bound.shape, bound.dtype)
        if bound.port.is_input:
            raise StateError(
                f"{bound.port.told} is bound to {bound.memory.kind} and has no memory that the "
                "host sees; set_tensor writes to it"
            )
        held = self._held(bound)
        seen = bound.read() if held is None else held.view()
        seen.setflags(write=False)
        return seen

    def close(self) -> None:
        """Let go of everything."""
        while self.bound:
            self.bound.popitem()[1].close()

    # Inside

    def _held(self, bound: Bound) -> Array | None:
        """Of an output that is only read when that is asked for: what was read."""
        if not self.leaves_outputs or bound.port.is_input or bound.memory.array is not None:
            return None
        held = bound.readable
        if held is None:
            raise StateError(
                f"{bound.port.told} is in {bound.memory.kind} only, since "
                "set_allow_buffer_handle_output(True) was called; call "
                "ensure_tensor_data_is_readable first"
            )
        return held

    def _check_apart(self, port: Port, memory: ForeignMemory) -> None:
        """No run may write host memory that another tensor is bound to: an input would be another
        one in the next run. (Buffers of the device know their memory themselves.)"""
        old = self.bound.get(port.index)
        if old is not None and old.port.is_input is not port.is_input:
            raise UnsupportedError(
                f"{port.told} is input and output, which is one tensor, bound as {old.port.told} "
                "already: what is bound serves as both; unbind it first to bind something else"
            )
        for index, other in self.bound.items():
            theirs = other.memory.array
            if index == port.index or memory.array is None or theirs is None:
                continue
            is_written = not (port.is_input and other.port.is_input)
            if is_written and _overlap(memory.array, theirs):
                raise DeviceError(
                    f"{port.told} and {other.port.told} cannot be bound to the same memory, "
                    "which a run writes; give each an array of its own"
                )

    def _placed(self, session: Session, port: Port, memory: ForeignMemory) -> Bound:
        """Put a tensor's home where ``memory`` is."""
        if port.index not in session.arrays:
            raise UnsupportedError(
                f"{port.told} cannot be bound: its shape depends on what the model computes"
            )
        if port.index in session.kept:
            raise UnsupportedError(
                f"{port.told} cannot be bound: it is state, which each run leaves to the next in "
                "memory of its own; use get_tensor and set_tensor"
            )
        own = session.arrays[port.index]
        shape, dtype = own.shape, own.dtype
        _check_fit(port, memory, shape, dtype)
        if memory.array is None:
            buffer: Buffer | None = _imported(session, port, memory)
            assert buffer is not None
            answer = _put(session, port, buffer, memory, own.nbytes)
            if answer is not None:
                if not memory.owned:
                    buffer.close()
                raise UnsupportedError(
                    f"{port.told} cannot be bound to {memory.kind}: {answer.reason}; a NumPy "
                    "array can"
                )
        else:
            array = _seen_as(memory.array, shape, dtype)
            buffer = _host_in_place(session, port, memory, array)
            if buffer is None:
                answer = session.put(port.index, array)
                if answer is not None:
                    raise UnsupportedError(f"{port.told} cannot be bound: {answer.reason}")
        return Bound(port, memory, shape, dtype, buffer, self.traffic)


def _overlap(one: Array, other: Array) -> bool:
    """Whether two arrays have an element in common; also where that is too hard to tell."""
    try:
        return bool(np.shares_memory(one, other, max_work=_MOST_WORK))
    except (RuntimeError, OverflowError):  # NumPy's TooHardError is one
        return True


def _repeats(array: Array) -> bool:
    """Whether elements of an array may lie in the same memory, as those of a broadcast one do."""
    span = array.itemsize  # what the axes with smaller strides take
    for stride, size in sorted(
        (abs(s), n) for s, n in zip(array.strides, array.shape, strict=True)
    ):
        if size > 1 and stride < span:
            return array.size > 0
        span += stride * (size - 1)
    return False


def _check_fit(port: Port, memory: ForeignMemory, shape: Shape, dtype: np.dtype[Any]) -> None:
    wanted = f"{port.told} is {dtype}{listed(shape)}"
    if memory.dtype is not None and (memory.dtype != dtype or memory.shape != shape):
        how = "" if memory.dtype == dtype else f"; nothing is converted on the way to {dtype}"
        raise InputError(
            f"{wanted}, and {memory.kind} of {memory.dtype}{listed(memory.shape or ())} was "
            f"given{how}"
        )
    array = memory.array
    if array is None:
        return
    nbytes = int(np.prod(shape)) * dtype.itemsize
    if array.nbytes != nbytes:
        raise InputError(f"{wanted} ({nbytes} bytes), and {memory.kind} has {array.nbytes} bytes")
    if not port.is_input and not array.flags.writeable:
        raise InputError(f"{port.told} cannot be written to {memory.kind}, which is read-only")
    if not port.is_input and _repeats(array):
        raise InputError(
            f"{port.told} cannot be written to {memory.kind} with strides "
            f"{listed(array.strides)}, some of whose elements are the same memory; give one with "
            "memory for each"
        )


def _seen_as(array: Array, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Bytes of any meaning as the tensor; an array of elements as it is."""
    if array.dtype == dtype and array.shape == shape:
        return array
    found: Array = array.view(dtype).reshape(shape)
    return found


def _imported(session: Session, port: Port, memory: ForeignMemory) -> Buffer:
    if memory.owned:
        mine: Buffer = memory.source
        return mine
    device = session.device
    if device is None:
        raise UnsupportedError(
            f"{port.told} cannot be bound to {memory.kind}: no part of the model runs on a device "
            "that runs kernels; bind a NumPy array"
        )
    found = device.import_buffer(memory.source)
    if isinstance(found, Unsupported):
        raise UnsupportedError(f"{port.told} cannot be bound to {memory.kind}: {found.reason}")
    return found


def _put(
    session: Session, port: Port, buffer: Buffer, memory: ForeignMemory, nbytes: int
) -> Unsupported | None:
    if buffer.nbytes < nbytes:
        if not memory.owned:
            buffer.close()
        raise InputError(
            f"{port.told} takes {nbytes} bytes, and {memory.kind} has {buffer.nbytes} bytes"
        )
    try:
        return session.put(port.index, buffer)
    except BaseException:
        if not memory.owned:
            buffer.close()
        raise


def _host_in_place(
    session: Session, port: Port, memory: ForeignMemory, array: Array
) -> Buffer | None:
    """The device's buffer over an array, None where it has to be copied."""
    device = session.device
    if device is None or not array.flags.c_contiguous:
        return None
    pages = pages_of(array)
    found = device.import_buffer(array if pages is None else pages)
    if isinstance(found, Unsupported):
        return None
    if found.nbytes < array.nbytes or _put(session, port, found, memory, array.nbytes) is not None:
        found.close()
        return None
    return found
