"""Handles of drivers after a fork: a child may not use those that its parent opened.

A fork copies memory but neither the driver's threads nor its state in the kernel, so that a call
with an inherited handle, even one that releases it, may wait for ever. Objects that hold such
handles register here. In a child each of them is told, lives as long as the process (so that
nothing is released behind its back), refuses to be used, and closes without a call.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from tflgpu.errors import DeviceError, StateError

T = TypeVar("T")
#: Seconds that a driver may take for opening a device and running something small.
_PATIENCE = 30.0

#: What to do in a child, for messages.
REMEDY = "start the child by multiprocessing's 'spawn' method"
#: Why something of a device is closed that is still used, for messages.
CLOSED_EARLY = "a delegate is closed after the interpreters and models that use it"

_LOCKS: Any = (type(threading.Lock()), type(threading.RLock()))
_holders: weakref.WeakSet[Holder] = weakref.WeakSet()
_arrays: dict[int, weakref.ref[Any]] = {}
_calls: list[Callable[[], object]] = []
_frozen: list[None] = []  # empty where the collector is as the program has it


class OfProcess:
    """What cannot be copied: the copy would close what the other uses, or be of another process."""

    def __reduce__(self) -> NoReturn:
        """Refuses what `copy` and `pickle` do.

        Raises:
            StateError: always.
        """
        raise StateError(
            f"a {type(self).__name__} cannot be copied or pickled: it holds a device or memory "
            "of this process; hand on the path and the options, and make one where it is needed"
        )


class Holder(OfProcess):
    """What holds handles of a driver, or other things of the process that opened it.

    Attributes:
        inherited: Whether this process is a child of the one that it was made in, by a fork. Always
            False where that does not matter.
    """

    inherited = False

    def belongs_to_process(self) -> None:
        """Take part; called when the object is made."""
        _holders.add(self)

    def after_fork(self) -> None:
        """In a child, where its own locks are free again. To be extended."""
        self.inherited = True

    def check_inherited(self, what: str) -> None:
        """Refuse in a child.

        Raises:
            StateError: ``what`` was opened before the fork.
        """
        if self.inherited:
            raise inherited_error(what)


class ForkWatch(Holder):
    """Watches for forks on behalf of an object whose own names are its users': in a child the
    object lives as long as the process, and `check_inherited` refuses."""

    def __init__(self, owner: object) -> None:
        self._owner = weakref.ref(owner)
        self.belongs_to_process()

    def after_fork(self) -> None:
        """In a child: nothing of the object is released there."""
        super().after_fork()
        immortal(self._owner())


class Begun(Holder):
    """What a library begins once in a process and a child has not, though it takes it for begun:
    the threads of PoCL's devices, or what CUDA's cuInit sets up.

    Attributes:
        begun: Whether that was done, by this process or by one that it was forked from. Where
            `inherited` is true it was the parent.
    """

    begun = False

    def __init__(self) -> None:
        self.belongs_to_process()

    def after_fork(self) -> None:
        """Begun by the parent, if at all."""
        self.inherited = self.begun


def inherited_error(what: str) -> StateError:
    """What to raise where a child uses ``what`` its parent opened."""
    return StateError(
        f"{what} was opened before this process was forked, and a device cannot be used across a "
        f"fork; make a GpuDelegate and an Interpreter in the child, or {REMEDY}"
    )


def keep_in_child(array: Any) -> None:
    """An array over a driver's memory, which a child must not release either."""
    key = id(array)
    _arrays[key] = weakref.ref(array, lambda _: _arrays.pop(key, None))


def call_in_child(function: Callable[[], object]) -> None:
    """Call ``function`` in every child, for what belongs to a module."""
    _calls.append(function)


def free_in_child() -> threading.Lock:
    """A lock that is free in a forked child, even if a thread of the parent held it at the fork."""
    lock = threading.Lock()
    call_in_child(lock._at_fork_reinit)  # type: ignore[attr-defined]  # noqa: SLF001
    return lock


def immortal(thing: object) -> None:
    """Never release an object. A list would not do: modules are emptied when Python ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def try_in_child(what: str, action: Callable[[], T]) -> T:
    """Do something with a driver that was in use before the fork. Some can be used in the child
    from the start again, others fail, and others never return.

    Raises:
        DeviceError: it failed, or took longer than any driver should.
    """
    done: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            done.append(action())
        except BaseException as error:  # noqa: BLE001  (raised below)
            errors.append(error)

    thread = threading.Thread(target=work, name="tflgpu-after-fork", daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    if done:
        return done[0]
    story = f"this process was forked from one that had used the same driver; {REMEDY}"
    if errors and isinstance(errors[0], DeviceError) and REMEDY not in str(errors[0]):
        raise DeviceError(f"{errors[0]} ({story})") from errors[0]
    if errors:
        raise errors[0]
    raise DeviceError(f"{what} does not answer: {story}")


def leave_without_drivers() -> None:
    """Let this process end without what drivers do at the end of one, as Mesa's do: they stop
    their threads, which a child does not have, and crash. What Python does at its end is done.

    Only where the C library can: glibc.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        # The last to be registered is called first, with the status of the process.
        library.on_exit(library._exit, None)  # noqa: SLF001
        library.on_exit(library.fcloseall, None)  # writes what is buffered


def _after_fork() -> None:
    # A child never collects what was there before: also what no holder knows of any more.
    _frozen.clear()
    gc.freeze()
    inherited = False
    for holder in list(_holders):
        for value in list(vars(holder).values()):
            if isinstance(value, _LOCKS):  # which a thread of the parent may have held
                value._at_fork_reinit()  # noqa: SLF001
        # One that fails must not keep the others from being told.
        with contextlib.suppress(Exception):
            holder.after_fork()
        if holder.inherited:
            inherited = True
            immortal(holder)
    for reference in list(_arrays.values()):
        array = reference()
        if array is not None:
            immortal(array)
    for function in _calls:
        with contextlib.suppress(Exception):
            function()
    if inherited:
        leave_without_drivers()


def _freeze() -> None:
    """Let Python's collector take nothing of what was there before the fork: in a child it would
    release what lay in circles, and a driver may wait there for threads that only the parent
    has."""
    # All that is frozen is let go of at once. Of a program's own freeze that is its own to do.
    if not gc.get_freeze_count():
        _frozen.append(None)
        gc.freeze()


def _unfreeze() -> None:
    if _frozen:
        _frozen.clear()
        gc.unfreeze()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_freeze, after_in_parent=_unfreeze, after_in_child=_after_fork)
