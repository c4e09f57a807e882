"""The base of recordings: the lock, closing, a lasting failure, and outputs that can be lent."""

from __future__ import annotations

import contextlib
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from tflgpu.backend_kit.forks import CLOSED_EARLY, Holder
from tflgpu.backend_kit.output_sets import NoRoomError, OutputSets, S
from tflgpu.backend_kit.waiting import manner, wait_until
from tflgpu.compiler.plan import PlannedDispatch
from tflgpu.contract.buffers import Buffer
from tflgpu.contract.device import DispatchTime
from tflgpu.contract.pending import FINISHED, Pending, Submission
from tflgpu.errors import DeviceError, StateError, TflgpuError
from tflgpu.errors.blame import describe
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.reason import Unsupported

T = TypeVar("T")
#: Recordings with a run in flight, or one that ended before its time: what the device may read and
#: write lives until the end was seen (`BaseRecording.let_go_if_idle` looks, too), or the recording
#: closed (as its device does).
_in_flight: set[Any] = set()


class BaseRecording(Holder, ABC, Generic[S]):
    """A `tflgpu.contract.device.Recording` and `tflgpu.contract.offers.Lender`.

    A subclass sets ``_inputs`` and ``_sets``, and has `_profile`, `_wait_idle` and `_release`; and
    `_begin`, `_watch`, `_is_over` and `_end`, or, where a run cannot go on by itself, `_run`.

    One run is in flight at a time: every other call waits for it first. A
    signal may end any of the methods anywhere (Ctrl-C raises KeyboardInterrupt): a run that was
    neither finished nor handed out as a `Pending` leaves the recording unusable, and `close`
    waits for what may still be on the device. A `close` that was interrupted goes on when called
    again.
    """

    #: Whether a run goes on by itself once `_begin` and `_watch` have returned.
    _goes_on = True

    def __init__(self, lock: threading.RLock | None = None) -> None:
        """With ``lock`` everything happens under that one: a device's, say."""
        self._lock: threading.Lock | threading.RLock = threading.Lock() if lock is None else lock
        self._closed = False
        self._released = False
        self._unfinished = False  # something was begun on the device, and its end was not seen
        self._seen_idle = False  # and it was over all the same, later
        self._in_flight: Submission | None = None  # who will see the end
        self._failure = ""
        self._inputs: tuple[Array, ...] = ()
        self._sets: OutputSets[S] | None = None
        self._waits: list[Callable[[], None]] = []  # for others who use what it is bound to
        self.belongs_to_process()

    # For subclasses to write

    def _begin(self) -> None:
        """Submit a run that leaves the outputs in ``_outputs.for_run()``."""
        raise NotImplementedError

    def _end(self) -> None:
        """Wait for the run that was begun; the outputs are there afterwards."""
        raise NotImplementedError

    def _watch(self) -> None:
        """Between `_begin` and `_end`, where `_is_over` will be asked: see to it that the device
        starts, and that it can be."""

    def _sleep(self) -> None:
        """Return when `_is_over` is true. Where a driver can wait, a subclass lets it: no signal is
        to be let through."""
        wait_until(self._is_over)

    def _is_over(self) -> bool:
        """Whether `_end` would return at once. Asks the device."""
        raise NotImplementedError

    def _run(self) -> None:
        """A whole run."""
        self._begin()
        self._end()

    @abstractmethod
    def _profile(self) -> Sequence[DispatchTime] | Unsupported:
        """The same with timers, or without and the reason why."""

    def _wait_idle(self) -> None:
        """Return when nothing of this recording is on the device any more. Called where a run did
        not end as it should; signals should get through (`tflgpu.backend_kit.waiting`)."""

    def _is_idle(self) -> bool:
        """Whether `_wait_idle` would return at once; asks the device, and does not wait. Where that
        cannot be told, False: the recording is kept until it is closed."""
        return False

    @abstractmethod
    def _release(self) -> None:
        """Release everything of the device, which is done with it."""

    # What users of a recording have

    @property
    def inputs(self) -> Sequence[Array]:
        """Writable host arrays, one per plan input."""
        return self._inputs

    @property
    def outputs(self) -> Sequence[Array]:
        """Host arrays, one per plan output."""
        return () if self._sets is None or self._closed else self._sets.current.arrays

    def run(self) -> None:
        """Upload, run every dispatch, download; return when the outputs are there.

        Raises:
            StateError: the recording is closed.
            DeviceError: the device failed, now or in an earlier run, or, with guard bands, a
                kernel wrote outside its buffers.
        """
        for wait in self._waits:
            wait()
        with self._lock:
            if self._closed or self._unfinished:
                self._check_usable()
            # As `_attempt`, in one call less: it is made for each run.
            self._unfinished = True
            try:
                self._run()
            except BaseException as error:
                self._failed(error)
                raise
            self._unfinished = False

    def submit(self) -> Pending:
        """Begin a run; what it gives tells when the outputs are there.

        Raises:
            StateError: the recording is closed.
            DeviceError: the device refused it, or failed in an earlier run.
        """
        if not self._goes_on:
            self.run()
            return FINISHED
        for wait in self._waits:
            wait()
        with self._lock:
            self._check_usable()
            submission = Submission(self._ask, self._wait_for)
            self._unfinished = True
            try:
                self._begin()
                self._watch()
            except BaseException as error:
                _in_flight.add(self)
                self._failure = str(error) or type(error).__name__
                raise
            # A device that writes to memory which nobody holds any more writes to somebody else's.
            _in_flight.add(self)
            self._in_flight = submission
            return submission

    def bind(
        self,
        inputs: Mapping[int, Buffer | None] | None = None,
        outputs: Mapping[int, Buffer | None] | None = None,
    ) -> Unsupported | None:
        """As `Recording.bind`; there are no buffers unless a subclass has them.

        Raises:
            StateError: the recording or a buffer is closed.
            DeviceError: a buffer does not fit, or the device failed.
        """
        return Unsupported(f"a {type(self).__name__} uses memory of its own only")

    def profile(self) -> Sequence[DispatchTime] | Unsupported:
        """Run once with a timer around every dispatch, as `Recording.profile`.

        Raises:
            StateError: the recording is closed.
            DeviceError: as `run`.
        """
        for wait in self._waits:
            wait()
        with self._lock:
            self._check_usable()
            return self._attempt(self._profile)

    def lend(self, index: int) -> Array | None:
        """As `Lender.lend`; None for what is not copied to the host.

        Raises:
            StateError: the recording is closed.
            DeviceError: the device failed, now or in an earlier run.
        """
        with self._lock:
            self._check_usable()
            return self._attempt(lambda: self._outputs.lend(index))

    def settle(self) -> None:
        """As `Lender.settle`.

        Raises:
            StateError: the recording is closed.
            DeviceError: the device failed, now or in an earlier run, or memory ran out.
        """
        with self._lock:
            self._check_usable()
            self._attempt(self._outputs.settle)

    def close(self) -> None:
        """Release everything; twice is harmless. Arrays that someone holds stay valid."""
        if self.inherited:
            return
        with self._lock:
            if self._released:
                return
            self._closed = True
            self._inputs = ()
            if self._unfinished and not self._seen_idle:
                # A device that is lost cannot be waited for, and runs nothing.
                with contextlib.suppress(DeviceError):
                    self._wait_idle()
            self._in_flight = None
            _in_flight.discard(self)
            if self._sets is not None:
                self._sets.release()
            self._release()
            self._sets = None
            self._released = True

    def let_go_if_idle(self) -> None:
        """Drop the reference that keeps a recording alive after a run that a signal ended or that
        was never waited for, if the device is done with that run. Called by its device, under the
        device's lock; waits for nothing."""
        if self not in _in_flight or self.inherited:
            return
        # Whoever has the lock is at it, and will see the end.
        if self._lock.acquire(blocking=False):
            try:
                self._leave_if_idle()
            finally:
                self._lock.release()

    def after_fork(self) -> None:
        """A child may not touch it."""
        super().after_fork()
        self._closed = True
        self._inputs = ()

    # Inside

    @property
    def _outputs(self) -> OutputSets[S]:
        assert self._sets is not None
        return self._sets

    def _check_usable(self) -> None:
        if self._closed:
            self.check_inherited("this recording")
            raise StateError(f"this recording is closed: {CLOSED_EARLY}")
        if self._in_flight is not None:
            self._collect(self._in_flight)
        if self._unfinished:
            reason = self._failure or "it was interrupted"
            raise DeviceError(f"an earlier run of this recording failed: {reason}")

    def _ask(self, submission: Submission) -> bool:
        """Whether a submission is over; asks the device and does not wait."""
        if submission.end is not None or self._closed:
            return True
        if not self._lock.acquire(blocking=False):
            return False  # another thread waits for it
        try:
            return submission is not self._in_flight or self._is_over()
        except DeviceError:
            return True  # which `wait` tells
        finally:
            self._lock.release()

    def _wait_for(self, submission: Submission, timeout: float | None) -> bool:
        """Wait for a submission; False after ``timeout`` seconds."""
        with self._lock:
            if submission is self._in_flight and not self._closed:
                return self._collect(submission, timeout)
        if submission.end is True:
            return True
        if submission.end is None:
            self.check_inherited("this recording")
            raise StateError("this recording was closed before its run was waited for")
        raise DeviceError(submission.end)

    def _collect(self, submission: Submission, timeout: float | None = None) -> bool:
        """Wait for the run in flight, and take its outputs. False where it took longer."""
        try:
            if manner.by_driver and timeout is None:
                self._sleep()
            elif not wait_until(self._is_over, math.inf if timeout is None else timeout):
                return False
            # From here on an interruption leaves the outputs half written.
            self._in_flight, submission.end = None, "the run was interrupted at its end"
            self._end()
        except DeviceError as error:
            self._in_flight, submission.end = None, str(error)
            self._failure = str(error)
            raise
        self._unfinished, submission.end = False, True
        _in_flight.discard(self)
        return True

    def _leave_if_idle(self) -> None:
        if self._closed:
            return
        with contextlib.suppress(DeviceError):
            if self._in_flight is not None:
                self._collect(self._in_flight, 0.0)
            elif self._is_idle():
                self._seen_idle = True
                _in_flight.discard(self)

    def _attempt(self, action: Callable[[], T]) -> T:
        """Do what no later run may follow if it fails."""
        # Before and after, rather than where an exception is caught: a signal may come there too.
        self._unfinished = True
        try:
            result = action()
        except BaseException as error:
            self._failed(error)
            raise
        self._unfinished = False
        return result

    def _failed(self, error: BaseException) -> None:
        """What was attempted ended in an error.

        Raises:
            DeviceError: in the place of an error that is not tflgpu's.
        """
        if isinstance(error, NoRoomError):
            self._unfinished = False
            return
        # Where nobody closes it, the device may be at work in its memory for a long time yet.
        _in_flight.add(self)
        self._failure = str(error) or type(error).__name__
        if isinstance(error, Exception) and not isinstance(error, TflgpuError):
            raise DeviceError(f"{type(self).__name__} raised {describe(error)}") from error


def stray_write(damage: str, dispatch: PlannedDispatch | None) -> DeviceError:
    """What to raise where ``damage`` was found at a guard band.

    Args:
        damage: What was overwritten, and where.
        dispatch: The one that ran before, if it has the damaged buffer.
    """
    blame = "some dispatch that does not use it"
    if dispatch is not None:
        blame = f"dispatch {dispatch.label}, kernel {dispatch.kernel.name}"
    return DeviceError(f"{blame}: {damage}")
