"""The methods of `Interpreter` that bind inputs and outputs to the caller's memory."""

from __future__ import annotations

from typing import Any

from tflgpu.backend_kit.host_memory import in_pages
from tflgpu.contract.buffers import ForeignMemory
from tflgpu.errors import InputError, StateError, UnsupportedError
from tflgpu.errors.blame import shown
from tflgpu.interpreter.arguments import as_index
from tflgpu.interpreter.bindings import Port
from tflgpu.interpreter.cuda_buffer import CudaBuffer, allocate
from tflgpu.interpreter.device_buffer import DeviceBuffer
from tflgpu.interpreter.foreign_memory import memory_of
from tflgpu.interpreter.parts import InterpreterParts
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.reason import Unsupported
from tflgpu.options import truth
from tflgpu.values import frozen


@frozen
class Copied:
    """Bytes that were copied between host and device.

    Attributes:
        to_device: Inputs, by runs and by ``set_tensor``.
        to_host: Outputs, by runs and by ``get_tensor``.
    """

    to_device: int
    to_host: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.to_device + self.to_host


class BufferMethods(InterpreterParts):
    """The part of `Interpreter` that is about whose memory inputs and outputs lie in."""

    def bind_input(self, which: int | str, buffer: Any) -> None:
        """Let runs read an input from ``buffer``, until another is bound or `unbind` is called.

        A buffer of the device is used in place, and so is host memory where host and device share
        it; what a run has to copy of host memory it copies, which `copied` tells. What is in the
        buffer may change between two runs. It is to be left alone while one is under way.

        Args:
            which: ``index`` in the input's details, or its name (in the file, or in a signature).
            buffer: A `tflgpu.DeviceBuffer`; a NumPy array, or what has Python's buffer protocol or
                ``__dlpack__``; or a buffer of the API (docs/buffers.md), of the device that runs
                the model.

        Raises:
            InputError: no such input; or another shape, type or size than the input has.
            ArgumentError: nothing that could be bound.
            UnsupportedError: this input cannot be bound to that, or not on this device; says why.
            DeviceError: the buffer is of another device, or of an output of the model.
            StateError: not allocated, closed, in use, a closed buffer, or a view made by `tensor`
                is still held.
        """
        memory = memory_of(buffer)
        with self._busy:
            self._bind(self._port(which, is_input=True), memory)

    def bind_output(self, which: int | str, buffer: Any) -> None:
        """Let runs write an output to ``buffer``, until another is bound or `unbind` is called.

        As `bind_input`. Nothing is copied to the host then, except by `get_tensor`.

        Raises:
            InputError: as `bind_input`; or the buffer cannot be written.
            ArgumentError, UnsupportedError, DeviceError, StateError: as `bind_input`.
        """
        memory = memory_of(buffer)
        with self._busy:
            self._bind(self._port(which, is_input=False), memory)

    def unbind(self, which: int | str | None = None) -> None:
        """Give an input or output (without a name: each) its own memory back, with the contents
        that it has. Where nothing is bound, nothing happens.

        Raises:
            InputError: no such input or output.
            StateError: closed, in use, or what it was bound to is closed already.
            DeviceError: the device failed.
        """
        with self._busy:
            main = self._main
            ports = tuple(main.bound) if which is None else (self._either(which).index,)
            main.unbind(ports)

    def allocate_buffer(self, which: int | str) -> DeviceBuffer:
        """Memory of the device that runs the model, all zeros, of the shape and type that an input
        or output has. It stays the caller's, and can be bound to any model on that device.

        Raises:
            InputError: no such input or output.
            UnsupportedError: the model does not run on a device that has buffers.
            StateError: not allocated, closed or in use.
            DeviceError: memory ran out.
        """
        with self._busy:
            port = self._either(which)
            session = self._main.ready_to_bind(port.told)
            device = session.device
            if device is None:
                raise UnsupportedError(
                    f"there is no device for a buffer of {port.told}: no part of the model runs "
                    "on one that runs kernels; bind a NumPy array"
                )
            array = session.arrays[port.index]
            found = device.allocate(array.nbytes)
            if isinstance(found, Unsupported):
                raise UnsupportedError(f"a buffer for {port.told}: {found.reason}")
            return DeviceBuffer(found, array.shape, array.dtype)

    def allocate_cuda(self, which: int | str) -> CudaBuffer:
        """As `allocate_buffer`, in memory that CUDA sees too: a tensor of PyTorch, CuPy or Numba
        over it is what runs read or write (docs/buffers.md). With the Vulkan backend on a device of
        CUDA's.

        Raises:
            InputError: no such input or output.
            UnsupportedError: the model's device shares no memory; says why.
            StateError: not allocated, closed or in use.
            DeviceError: there is no CUDA, or not for that device, or it refused.
        """
        with self._busy:
            port = self._either(which)
            session = self._main.ready_to_bind(port.told)
            if session.device is None or port.index not in session.arrays:
                raise UnsupportedError(
                    f"there is no device for a buffer of {port.told}: no part of the model runs "
                    "on one that runs kernels, or its shape is only known at run time"
                )
            own = session.arrays[port.index]
            return allocate(session.device, own.shape, own.dtype, port.told)

    def allocate_array(self, which: int | str) -> Array:
        """A NumPy array of zeros, of the shape and type that an input or output has, in memory that
        a device uses in place if it uses any of the host's: whole pages. Bound where host and
        device share memory, runs read it and write it without a copy; elsewhere it is as good as
        any other.

        Raises:
            InputError: no such input or output.
            UnsupportedError: its shape is only known at run time.
            StateError: not allocated, closed or in use.
        """
        with self._busy:
            port = self._either(which)
            session = self._main.ready_to_bind(port.told)
            if port.index not in session.arrays:
                raise UnsupportedError(
                    f"{port.told} has no array: its shape depends on what the model computes"
                )
            own = session.arrays[port.index]
            return in_pages(own.shape, own.dtype)

    def _input_array(self, tensor_index: int) -> Array:
        """Where the next run reads an input, to be written to without a lease, and not to be
        read."""
        with self._busy:
            return self._main.input_array(tensor_index)

    @property
    def copied(self) -> Copied:
        """What runs, ``set_tensor`` and ``get_tensor`` have copied between host and device since
        the interpreter was made, or since `reset_copied`. Copies within the host's memory are not
        counted, nor is memory that host and device share."""
        with self._busy:
            traffic = self._main.traffic
            return Copied(traffic.to_device, traffic.to_host)

    def reset_copied(self) -> None:
        """Count from zero."""
        with self._busy:
            traffic = self._main.traffic
            traffic.to_device = traffic.to_host = 0

    # By the names of TensorFlow Lite's delegates

    def bind_buffer_to_tensor(self, buffer: Any, tensor_index: int) -> None:
        """`bind_input` or `bind_output`, by what the tensor is; the order of arguments is that of
        ``TfLiteGpuDelegateBindBufferToTensor``.

        Raises:
            As these.
        """
        memory = memory_of(buffer)
        with self._busy:
            self._bind(self._either(as_index(tensor_index)), memory)

    def set_allow_buffer_handle_output(self, allow_buffer_handle_output: bool) -> None:
        """Whether outputs that are bound to buffers may stay there, as in TensorFlow Lite.

        Without it (the default) `get_tensor` and `tensor` copy such an output to the host when they
        are asked for it. With it they raise `StateError` until `ensure_tensor_data_is_readable` has
        copied it after a run, so that nothing is copied without being asked for.

        Raises:
            OptionError: no truth value.
            StateError: closed or in use.
        """
        with self._busy:
            self._main.bindings.leaves_outputs = truth(
                "allow_buffer_handle_output", allow_buffer_handle_output
            )

    def ensure_tensor_data_is_readable(self, tensor_index: int) -> None:
        """Copy an output that is bound to a buffer to the host, where `get_tensor` and `tensor`
        find it until the next run. Nothing is to be done for other tensors.

        Raises:
            InputError: no such tensor.
            StateError: not allocated, closed, in use, or a closed buffer.
            DeviceError: the device failed.
        """
        with self._busy:
            main = self._main
            main.array(tensor_index)
            bound = main.bound.get(as_index(tensor_index))
            if bound is not None and bound.memory.array is None:
                bound.ensure()

    # Inside

    def _check_outputs_free(self) -> None:
        """Before a run whose outputs go to memory of its own.

        Raises:
            StateError: an output is bound to memory, which would keep what it has.
        """
        for bound in self._main.bound.values():
            if not bound.port.is_input:
                raise StateError(
                    f"{bound.port.told} is bound to {bound.memory.kind}, which invoke_async does "
                    "not write: its runs have results of their own; unbind it, or call invoke"
                )

    def _bind(self, port: Port, memory: ForeignMemory) -> None:
        main, i = self._main, port.index
        main.check_views()
        session, old = main.ready_to_bind(port.told), main.bound.get(i)
        # An input that is bound as an output keeps what it was set to.
        is_both = not port.is_input and i in main.info.inputs and i in session.arrays
        given = (session.arrays[i].copy() if old is None else old.read()) if is_both else None
        main.bindings.bind(session, port, memory)
        if given is not None:
            main.bound[i].write(given)

    def _either(self, which: int | str) -> Port:
        """An input or output."""
        found = [p for is_input in (True, False) for p in self._found(which, is_input=is_input)]
        return self._only(found, which, "input or output", (True, False))

    def _port(self, which: int | str, *, is_input: bool) -> Port:
        kind = "input" if is_input else "output"
        return self._only(self._found(which, is_input=is_input), which, kind, (is_input,))

    def _only(
        self, found: list[Port], which: int | str, kind: str, sides: tuple[bool, ...]
    ) -> Port:
        if len({port.index for port in found}) == 1:
            return found[0]
        known = [port.told for side in sides for port in self._ports(is_input=side)]
        told = ", ".join(known) or "none"
        if found:
            raise InputError(f"several are called {shown(which)}: {told}; give the index")
        raise InputError(f"there is no {kind} {shown(which)}; there are {told}")

    def _found(self, which: int | str, *, is_input: bool) -> list[Port]:
        ports = self._ports(is_input=is_input)
        if not isinstance(which, str):
            index = as_index(which)
            return [port for port in ports if port.index == index]
        named: set[int] = set()
        for signature in self._model.signatures:
            side = signature.inputs if is_input else signature.outputs
            if signature.subgraph == self._main.index and which in side:
                named.add(side[which])
        return [p for p in ports if p.index in named or (not named and p.name == which)]

    def _ports(self, *, is_input: bool) -> list[Port]:
        info = self._main.info
        indices = info.inputs if is_input else info.outputs
        return [Port(i, info.tensors[i].name, is_input) for i in indices]
