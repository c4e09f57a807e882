"""What runs one subgraph of a model while it is in use: a session, opened for the shapes of its
inputs, and replaced where a fork, an error or a signal has left it of no use."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from tflgpu.compiler.report import DelegationReport
from tflgpu.contract.pending import Pending
from tflgpu.errors import AllocationError, DeviceError, ModelError, NotAllocatedError, StateError
from tflgpu.errors.blame import LOG
from tflgpu.interpreter.bindings import Bindings, Bound
from tflgpu.interpreter.copies import ResultPool, TensorCache
from tflgpu.interpreter.recovery import MADE_AGAIN, Recovery
from tflgpu.interpreter.resizing import all_named, new_shape, told
from tflgpu.interpreter.session_opener import SessionOpener
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Shape, at_rest
from tflgpu.options import OnError
from tflgpu.runtime.loaded_part import Traffic
from tflgpu.runtime.session import Session
from tflgpu.tflite.model_file import ModelFile

DEVICE = "this interpreter's device"


class ViewBase:
    """The base object of a view that a user holds; it dies with the last slice of that view."""

    __slots__ = ("__array_interface__", "__weakref__", "_array", "_memory")

    def __init__(self, array: Array, memory: SessionMemory) -> None:
        self.__array_interface__: dict[str, Any] = array.__array_interface__
        self._array = array
        self._memory = memory


class SessionMemory:
    """A session, closed when neither this object nor a view that a user holds is left."""

    __slots__ = ("__weakref__", "_close", "session", "views")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.views: set[weakref.ref[ViewBase]] = set()
        self._close = weakref.finalize(self, session.close)

    def view(self, array: Array) -> Array:
        """A view of one of the session's arrays that keeps the session open while it is held."""
        lease = ViewBase(array, self)
        self.views.add(weakref.ref(lease, self.views.discard))
        return np.asarray(lease)

    def release(self) -> None:
        """Close the session now, or as soon as the last view is gone."""
        if not self.views:
            self.session.close()
            self._close.detach()


class OpenedSubgraph:
    """Allocates and runs one subgraph. One thread at a time. A `Subgraph` is one whose tensors are
    read and set, too.

    Attributes:
        index: Position in the model.
        info: What the file says of it.
        bound: What tensors are bound to, by index.
        traffic: What runs and reading have copied between host and device.
    """

    def __init__(
        self,
        model: ModelFile,
        index: int,
        opener: SessionOpener,
    ) -> None:
        self.index = index
        self.info = model.subgraphs[index]
        self.traffic = Traffic()
        self._opener = opener
        self._pool = ResultPool()
        self._known = TensorCache(self._pool)
        self._resized: dict[int, Shape] = {}
        self._shapes: Mapping[int, Shape] = {}
        self._memory: SessionMemory | None = None
        self._visible: Collection[int] = ()
        self._warned: set[str] = set()
        self.bound: dict[int, Bound] = {}
        self._policy = OnError.RAISE  # what follows an error of the session in use
        self._ran_on = -1  # the edition of the last run, which can be repeated where it is the same
        self._written = -1  # the run after which somebody wrote to its results
        self._lost: dict[int, str] = {}  # inputs whose contents are gone, and why
        given = {i: self.info.tensors[i].default for i in self.info.inputs}
        self._defaults = {i: a for i, a in given.items() if a is not None}

    # State

    @cached_property
    def bindings(self) -> Bindings:
        """What changes `bound`."""
        return Bindings(self.bound, self.traffic)

    @cached_property
    def recovery(self) -> Recovery:
        """What follows a run that failed."""
        return Recovery(self._opener)

    def touch(self) -> None:
        """Inputs or state are about to change."""
        self._known.edition += 1

    @property
    def allocated(self) -> bool:
        """Whether it can run."""
        return self._memory is not None

    @property
    def has_views(self) -> bool:
        """Whether a caller still has a view of a tensor (`Interpreter.tensor`)."""
        return self._memory is not None and bool(self._memory.views)

    @property
    def report(self) -> DelegationReport:
        """Where its operators run.

        Raises:
            NotAllocatedError: it has not been allocated.
        """
        return self._session("the delegation report").report

    def allocate(self) -> None:
        """Make it ready to run at the shapes of its inputs; nothing where it is.

        Raises:
            AllocationError: the operators do not work out at these shapes, or memory ran out.
            UnsupportedError: an operator that neither the device nor the CPU can run.
            DeviceError: the device could not take its part.
        """
        if self._memory is None:
            self._memory, self._lost = self._opened(), {}
        elif self._memory.session.is_broken:
            self._open_again(self._memory)

    def reopen(self) -> None:
        """Open a session anew, where there is one: with the same inputs and state, and without
        results.

        Raises:
            AllocationError, UnsupportedError, DeviceError: as `allocate`.
        """
        if self._memory is not None:
            self._open_again(self._memory)

    @property
    def resized(self) -> dict[int, Shape]:
        """The shapes that inputs were given."""
        return dict(self._resized)

    @property
    def variables(self) -> Mapping[int, Array]:
        """State tensors by index; none before it is allocated."""
        return {} if self._memory is None else self._memory.session.variables

    def begin(self) -> Pending | None:
        """Begin a run, to be ended by `finish`; None where `run` has to make it.

        Raises:
            NotAllocatedError, StateError, DeviceError: as `run`.
        """
        session, self._ran_on = self._before_run(), self._known.edition
        try:
            return session.submit()
        except DeviceError as error:
            self.recovery.failed(session, error, self._policy, self._again)
            return MADE_AGAIN

    def finish(self, pending: Pending, timeout: float | None) -> bool:
        """Wait for a run that was begun: True; False where it takes longer than ``timeout``.

        Raises:
            StateError, DeviceError: as `run`.
        """
        assert self._memory is not None
        session = self._memory.session
        if pending is MADE_AGAIN:
            return True
        try:
            if not pending.wait(timeout):
                return False
            session.finish()
        except DeviceError as error:
            self.recovery.failed(session, error, self._policy, self._again)
        return True

    def run(self, session: Session | None = None) -> None:
        """Run it on what the input arrays hold; ``session`` is that of the `shortcut` which the run
        before has left.

        Raises:
            NotAllocatedError: tensors have not been allocated.
            StateError: inputs are lost, or as `Session.run`.
            DeviceError: the device failed, for good where something follows.
        """
        session = session or self._before_run()
        self._ran_on = self._known.edition
        try:
            session.run()
        except DeviceError as error:
            self.recovery.failed(session, error, self._policy, self._again)

    @property
    def shortcut(self) -> TensorCache | None:
        """For the next `run`, unless anything but setting and reading tensors comes between; None
        where it needs more: something is bound, lost or viewed, or there is state to be kept."""
        memory, known = self._memory, self._known
        if memory is None or self.bound or self._lost or memory.views:
            return None
        session = memory.session
        is_plain = session.complete and not session.comes_by_run and not session.is_watched
        keeps = session.kept and self._policy is not OnError.RAISE
        if not is_plain or session.inherited or keeps:
            return None
        known.turn_to(session)
        known.session = session
        return known

    def check_views(self) -> None:
        """That no view of a tensor is held.

        Raises:
            StateError: one is.
        """
        memory = self._memory
        if memory is not None and memory.views:
            raise StateError(
                "There is at least 1 reference to internal data: a NumPy view of a tensor is still "
                "held; keep the function that tensor() returned, and call it each time"
            )

    def _before_run(self) -> Session:
        """What is to run, with all that it needs; kept is what the run may have to be made again
        with."""
        memory, bound = self._memory, self.bound
        if memory is None or bound or self._lost or not memory.session.complete:
            memory = self._ready()
        session = memory.session
        # What is bound to the caller's memory may change without a word to us.
        if self._policy is not OnError.RAISE:
            self.recovery.keep_state(session)
        return session

    def _ready(self) -> SessionMemory:
        memory = self._memory
        if memory is None:
            raise NotAllocatedError(
                "Invoke called on model that is not ready: call allocate_tensors() first, and "
                "again after resize_tensor_input()"
            )
        memory.session.check_inherited(DEVICE)
        if self._lost:
            lost, why = all_named(self.info, sorted(self._lost)), next(iter(self._lost.values()))
            raise StateError(f"{why}; set it again: {lost}")
        if self.bound:
            self.bindings.check_inputs()
        if memory.session.is_broken:
            memory = self._open_again(memory)
        return memory

    def _again(self) -> Session:
        assert self._memory is not None
        return self._open_again(self._memory).session

    def _open_again(self, old: SessionMemory) -> SessionMemory:
        """A session in the place of one that a driver's error or a signal has left in the middle
        of a run: with the same inputs and state. Where it cannot be opened the old one stays, so
        that the next run tries again."""
        session = old.session
        session.check_inherited(DEVICE)
        self._opener.release(session.close)  # waits for what is still on the device
        state = session.variables  # which the device may have had, and may be lost
        memory: SessionMemory = self.recovery.reopened(session, self._opened)
        new = memory.session
        for index in {*self.info.inputs, *state}:
            if index in session.arrays and index in new.arrays:
                target = new.arrays[index]
                if target.flags.writeable:
                    np.copyto(target, session.arrays[index])
        self._known.forget()
        new.complete = False  # the run that ended in the middle has left no results
        self._memory = memory
        return memory

    def _opened(self) -> SessionMemory:
        try:
            session, shapes, visible = self._opener.open(self.index, self._resized, self._warn)
            memory = SessionMemory(session)
            # What the CPU runs is as good after an error as before.
            is_safe = not session.comes_by_run and all(part.on_cpu for part in session.parts)
            self._policy = OnError.RAISE if is_safe else self._opener.provider.on_error
            for i, default in self._defaults.items():
                begin = session.arrays[i]  # of several items, where a batch is computed
                begin[...] = np.resize(default, begin.shape)
            session.traffic = self.traffic
            if self.bound:
                self.bindings.apply(session)
        except ModelError as error:
            if isinstance(error, RuntimeError):
                raise
            raise AllocationError(f"{error}{told(self.info, self._resized)}") from error
        except MemoryError as error:
            raise AllocationError(
                f"not enough memory for the model's tensors{told(self.info, self._resized)}"
            ) from error
        self._shapes, self._visible = shapes, visible
        return memory

    def _warn(self, text: str) -> None:
        """Say what is wrong with the file, but not again at each preparation."""
        if text not in self._warned:
            self._warned.add(text)
            LOG.warning("%s", text)

    def release(self) -> None:
        """Give the session up; it is closed when no view of its arrays is left."""
        self._known.forget()
        if self._memory is not None:  # once more, where a signal ended it before
            self._opener.release(self._memory.release)
        self._memory = None

    @property
    def session(self) -> Session | None:
        """What runs it, if it has been allocated."""
        return None if self._memory is None else self._memory.session

    def ready_to_bind(self, what: str = "it") -> Session:
        """A session that is whole: one that was left in the middle of a run is replaced.

        Raises:
            NotAllocatedError: there is none; ``what`` is asked of it.
        """
        self._session(what)
        self.allocate()
        return self._session(what)

    def unbind(self, tensors: Collection[int]) -> None:
        """As `Bindings.unbind`, of several. A session that broke is not opened anew for it, which
        what is bound may keep from being done: it may be of a device that is lost, or given up.

        Raises:
            StateError, DeviceError: as there.
        """
        session = self.session
        self.touch()
        for index in tensors:
            lost = self.bindings.unbind(session, index)
            if lost:
                self._lost[index] = lost
            if session is not None and index not in self.info.inputs:
                self._wrote_result(session)

    def reset_variables(self) -> None:
        """Set every state tensor to its rest value (`tflgpu.ir.graph.at_rest`), and inputs marked
        as variables too."""
        self.touch()
        session = self.session
        if session is None:
            return
        session.reset_variables()
        for i in self.info.inputs:
            tensor = self.info.tensors[i]
            if tensor.is_variable and i not in self.bound:
                session.arrays[i][...] = at_rest(tensor.dtype, tensor.quantization)

    def resize(self, index: int, size: Any, *, strict: bool = False) -> None:
        """Give an input another shape. Where it differs, `allocate` must follow.

        Raises:
            ResizeError: no such input, a negative or far too large size, or, if ``strict``, a
                change of what the file fixes.
            InputError: ``size`` is not a list of whole numbers.
            ArgumentError: ``index`` is not a number, or ``size`` is None.
        """
        index, shape = new_shape(self.info, index, size, self._resized, strict=strict)
        if shape != self.shape(index):
            if self.session is not None:
                self.session.forget_states()
                for i in self._defaults:  # of one that was set, that stays
                    self._defaults[i] = self.session.arrays[i].copy()
            self.release()
            self._resized[index] = shape

    def shape(self, index: int) -> Shape:
        """The shape of a tensor now: as resized, as last allocated, or as in the file."""
        resized = self._resized.get(index)
        if resized is not None:
            return resized
        session = None if self._memory is None else self._memory.session
        if session is not None and session.comes_by_run and index in session.arrays:
            return session.arrays[index].shape  # of the last run
        return self._shapes.get(index, self.info.tensors[index].shape)

    # Inside

    def _wrote_result(self, session: Session) -> None:
        """That a result is not what the device made. Were it lent, the device would be asked for
        its own the next time."""
        self._written = session.traffic.runs

    def _session(self, what: str = "it") -> Session:
        if self._memory is None:
            raise NotAllocatedError(
                f"{what} is not there before allocate_tensors() "
                "(which also has to follow resize_tensor_input())"
            )
        return self._memory.session
