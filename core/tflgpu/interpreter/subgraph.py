"""One subgraph of a model while it is in use: its tensors by index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tflgpu.errors import DeviceError, InputError, NotAllocatedError, StateError
from tflgpu.interpreter.arguments import array_of, as_index, check_view, tensor_array
from tflgpu.interpreter.copies import copy
from tflgpu.interpreter.opened_subgraph import DEVICE, OpenedSubgraph
from tflgpu.interpreter.resizing import named, no_tensor
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Shape
from tflgpu.runtime.session import Session
from tflgpu.tflite.model_file import TensorInfo

#: Bytes from which on results are taken over rather than copied.
_LENT = 256 << 10
T = TypeVar("T")
#: What LiteRT says of a tensor that is to be set and has no memory.
_UNSET = ("Cannot set tensor: Tensor is unallocated.", "Try calling allocate_tensors() first")


class Subgraph(OpenedSubgraph):
    """A subgraph that is fed and read. One thread at a time."""

    def tensor(self, index: int) -> TensorInfo:
        """A tensor as the file has it.

        Raises:
            InputError: there is no such tensor.
            ArgumentError: ``index`` is not a number.
        """
        index = as_index(index)
        tensors = self.info.tensors
        if not 0 <= index < len(tensors):
            raise InputError(no_tensor(index, len(tensors)))
        return tensors[index]

    def as_array(self, index: int, value: Any) -> Array:
        """A value for a tensor as an array, before any lock is held: it may call the value's own
        code.

        Raises:
            InputError, ArgumentError: as `tensor`.
        """
        return tensor_array(self.tensor(index), value)

    def get(self, index: int) -> Array:
        """A tensor's contents, for the caller alone; a NumPy scalar where it has no dimensions.

        They are copied, unless the device can let go of the memory that it wrote them to.

        Raises:
            As `array`.
        """
        memory = self._memory
        if memory is not None and not self._lost and not self.bound:
            is_known = self._known.is_of(memory.session) and memory.session.complete
            known = self._known.copied(index, is_alone=True) if is_known else None
            if known is not None:
                return known
        source = self.array(index)
        if self._lost and int(index) in self._lost:
            raise StateError(self._lost[int(index)])
        if int(index) in self.bound:
            bound = self.bindings.contents(int(index))
            return bound[()] if not bound.ndim else bound
        if not source.ndim or source.dtype.hasobject:  # texts stay an array
            found: Array = source.copy() if source.dtype.hasobject else source.copy()[()]
            return found
        if memory is not None and source.nbytes < _LENT:
            self._known.learn(memory.session, int(index), source, is_input=False)
        elif memory is not None and not memory.views and self.traffic.runs != self._written:
            lent = self._reading(memory.session, lambda s: s.lend(int(index)))
            if lent is not None:
                return lent
            source = self.array(index)
        return self._pool.copied(source)

    def set(self, index: int, value: Any) -> None:
        """Copy ``value`` into a tensor.

        Raises:
            InputError: another type or shape than the tensor has, or a constant.
            NotAllocatedError, ArgumentError: as `array`.
        """
        memory = self._memory
        # In the session's arrays, and nowhere else.
        if memory is not None and not self._lost and not self.bound:  # noqa: SIM102
            if self._known.is_of(memory.session) and self._known.put(index, value, is_alone=True):
                return
        target = self.array(index, *_UNSET)
        info = self.info.tensors[as_index(index)]
        if not target.flags.writeable:
            raise InputError(f"{named(info)} is a constant of the model and cannot be set")
        source = array_of(info, value)
        if source.shape != target.shape:
            raise InputError(
                f"{_mismatch(info, source.shape, target.shape)} {named(info)} has shape "
                f"{list(target.shape)}, the value has {list(source.shape)}; reshape it, or call "
                "resize_tensor_input and allocate_tensors first"
            )
        bound = self.bound.get(info.index)
        is_input = info.index in self.info.inputs
        if self._memory is not None and bound is None and not is_input:
            # A result may have been lent: what is written now is not for who has it.
            self._reading(self._memory.session, Session.settle)
            self._wrote_result(self._memory.session)
            target = self.array(index)
        self.touch()
        if bound is not None:
            bound.write(source)
        else:
            copy(target, source)
            is_like = source.dtype == target.dtype and not source.dtype.hasobject
            if self._memory is not None and is_input and is_like:
                self._known.learn(self._memory.session, info.index, target, is_input=True)
        self._lost.pop(info.index, None)

    def input_array(self, index: int) -> Array:
        """The array of an input that is not bound to anything, about to be written to.

        Raises:
            As `array`.
        """
        check_view(self.tensor(index))
        self.touch()
        self._lost.pop(index, None)
        return self.array(index)

    @property
    def edition(self) -> object:
        """Equal to what it was where no input has changed since; None where that cannot be
        known."""
        return None if self.has_views or self.bound else self._known.edition

    def value(self, index: int) -> Array:
        """The contents of an input, wherever they are; not to be changed.

        Raises:
            StateError, DeviceError: what it is bound to cannot be read.
        """
        bound = self.bound.get(index)
        return self.array(index) if bound is None else bound.read()

    def view(self, index: int) -> Array:
        """A view of a tensor's memory; constants are read-only.

        Raises:
            As `array`.
        """
        array = self.array(index)
        check_view(self.tensor(index))
        if self._memory is not None:
            self._reading(self._memory.session, Session.settle)
            self.touch()
            self._lost.pop(int(index), None)
            if int(index) in self.bound:
                return self.bindings.view(int(index))
            if int(index) not in self.info.inputs:
                self._wrote_result(self._memory.session)  # its holder may
            return self._memory.view(self.array(index))
        view: Array = array.view()
        return view

    def array(
        self,
        index: int,
        what: str = "Tensor data is null.",
        advice: str = "Run allocate_tensors() first",
    ) -> Array:
        """The array that a tensor lives in. ``what`` and ``advice`` begin messages, in LiteRT's
        words.

        Raises:
            InputError: no such tensor, or one that is not kept in memory.
            NotAllocatedError: tensors have not been allocated.
            ArgumentError: ``index`` is not a number.
        """
        info = self.tensor(index)
        if info.data is not None:
            return info.data
        memory = self._memory
        session = (
            self._session(f"{what} {advice}: {named(info)}") if memory is None else memory.session
        )
        session.check_inherited(DEVICE)
        if not session.complete and info.index not in self.info.inputs:
            self._check_complete(info, session)
        if info.index not in self._visible:
            raise InputError(
                f"{what} {named(info)} is an intermediate result, which is not kept; make the "
                "interpreter with experimental_preserve_all_tensors=True to read it"
            )
        if session.comes_by_run and info.index not in session.arrays:
            raise NotAllocatedError(
                f"{named(info)} is not there before invoke(): its shape depends on what the model "
                "computes"
            )
        return (session.variables if info.index in session.kept else session.arrays)[info.index]

    # Inside

    def _reading(self, session: Session, read: Callable[[Session], T]) -> T | None:
        """What is read of the last results; None where the run had to be made again for them."""
        try:
            return read(session)
        except DeviceError as error:
            if self.bound or self._ran_on != self._known.edition:
                raise  # that run cannot be made again
            session.step_back()
            self.recovery.failed(session, error, self._policy, self._again)
            return None

    def _check_complete(self, info: TensorInfo, session: Session) -> None:
        if info.index not in session.kept:
            raise StateError(
                f"{named(info)} has no results: the last run failed or was interrupted; invoke() "
                "runs the model again"
            )


def _mismatch(info: TensorInfo, given: Shape, wanted: Shape) -> str:
    """How LiteRT says that a value has the wrong shape."""
    begin, what = "Cannot set tensor: Dimension mismatch.", f"input {info.index}."
    if len(given) != len(wanted):
        return f"{begin} Got {len(given)} but expected {len(wanted)} for {what}"
    at = next(i for i, sizes in enumerate(zip(given, wanted, strict=True)) if len(set(sizes)) > 1)
    return f"{begin} Got {given[at]} but expected {wanted[at]} for dimension {at} of {what}"
