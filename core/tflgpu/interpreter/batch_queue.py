"""The queue of a `Pool`: which request is in which batch, and on which copy of the model, where
devices were lost, too."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from tflgpu.backend_kit.forks import Holder
from tflgpu.errors import DeviceLostError, QueueFullError, StateError
from tflgpu.errors.blame import in_a_line
from tflgpu.interpreter.model import Model
from tflgpu.interpreter.requests import Batch, ModelCopy, Request, RequestChecks

_LOG = logging.getLogger("tflgpu")


class LostDevices:
    """Leaves copies out. All of it is called under the lock of the pool.

        a device is lost    -> its copies are left out, if there is another device
        the CPU took over   -> that copy is left out (the option ``on_error``), likewise
        no device is left   -> copies that the CPU took over are back; otherwise a request gets
                               the error, and the next one opens the last device anew

    Args:
        copies: All copies of the pool.
    """

    def __init__(self, copies: Sequence[ModelCopy]) -> None:
        self._copies = copies
        self._has_several = len({each.device for each in copies}) > 1

    def leave_out(self, lost: ModelCopy, error: DeviceLostError) -> bool:
        """Leave all copies on the device of one of them out; False where there is no other."""
        if not self._has_others(lost):
            return False
        for each in self._copies:
            if each.device == lost.device:
                each.is_left_out = True
        _LOG.warning(
            "tflgpu: device %d of a pool is lost, and the others answer its requests: %s",
            lost.device,
            in_a_line(error),
        )
        return True

    def free_after_run(self, mine: ModelCopy) -> Sequence[ModelCopy]:
        """The copies that are free after a run of one of them: that one, as a rule."""
        if not self._has_several:
            return (mine,)
        if mine.is_left_out:
            return ()
        if not mine.gave_way:
            return (mine,)
        if self._has_others(mine):
            mine.is_left_out = True
            return ()
        back = [each for each in self._copies if each.is_left_out and each.gave_way]
        for each in back:
            each.is_left_out = False
        return (mine, *(each for each in back if each.batch is None))

    def _has_others(self, mine: ModelCopy) -> bool:
        return any(
            each.device != mine.device and not (each.is_left_out or each.gave_way)
            for each in self._copies
        )


#: Batches that tell how large the next one will be.
_LAST = 4


class BatchQueue(Holder):
    """Puts requests into batches on copies that are free. Methods that begin with an underscore are
    called under the lock.

    Args:
        copies: Models by their batch, of each copy: all have the same batches, the largest of which
            is the most that is gathered.
        deadline: Seconds that a request waits for others.
        devices: The number of the device of each copy.
        queue_limit: Most requests that wait for a copy; None is any number.

    Attributes:
        free: The copies that are.
    """

    def __init__(
        self,
        copies: Sequence[Mapping[int, Model]],
        deadline: float,
        devices: Sequence[int],
        queue_limit: int | None,
    ) -> None:
        sizes = sorted(copies[0])
        self._most, self._deadline, self._queue_limit = sizes[-1], deadline, queue_limit
        self._names = copies[0][self._most].output_names
        self._gathers = self._most > 1
        #: The smallest model for so many items.
        self._size_for = [next(n for n in sizes if n >= items) for items in range(self._most + 1)]
        self._last = deque(sizes[:1], _LAST)  # what the last batches needed
        self._checks = RequestChecks(copies[0][self._most], gathers=self._gathers)
        # A signal's handler may call the pool wherever a thread of it is.
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)  # a run is over, and a thread closes the pool
        self._copies = [
            ModelCopy(models, device, self._lock)
            for models, device in zip(copies, devices, strict=True)
        ]
        self._lost = LostDevices(self._copies)
        self.free = deque(self._copies)
        self._open: Batch | None = None  # what is being gathered
        self._queue: deque[Request] = deque()  # empty where a copy is free, but for the leader
        self._submits = not self._gathers  # whether runs go on by themselves, as far as is known
        self._leads = False  # whether a thread answers what is in the queue
        self._closed = False
        self._runs: Counter[int] = Counter()
        self.belongs_to_process()

    @property
    def runs(self) -> dict[int, int]:
        """How many runs there were, by the number of requests' items in them."""
        with self._lock:
            return dict(sorted(self._runs.items()))

    @property
    def is_in_a_future(self) -> bool:
        """Whether this thread has the lock of a future (in a signal's handler). The pool's threads
        may wait for that lock, so that it must not wait for them."""
        requests = [*self._queue, *(r for each in self._copies for r in each.requests())]
        return any(request.has_lock for request in requests)

    def replace(self, copies: Sequence[Mapping[int, Model]]) -> None:
        """Let copies have other models, with the same inputs and outputs; each as soon as it is
        free. Copies that are left out keep theirs.

        Args:
            copies: As the pool was made of, of all copies.

        Raises:
            StateError: closed, perhaps in the middle.
        """
        with self._lock:
            for each, models in zip(self._copies, copies, strict=True):
                each.next_models = models
                if each.batch is None:
                    each.take_next()
            self._checks = RequestChecks(copies[0][self._most], gathers=self._gathers)
            while any(each.next_models is not None for each in self._copies):
                if self._closed:
                    raise StateError("this pool is closed")
                self._idle.wait()

    # Inside

    def _forget(self, request: Request) -> bool:
        """Take a request out of the queue; False where it is in a batch, or will be at once."""
        with self._lock:
            if request.batch is not None:
                return False
            if request in self._queue:
                if self._queue.index(request) < len(self.free) and not request.left:
                    return False
                self._queue.remove(request)
            return True

    def _left_out(self, batch: Batch, error: DeviceLostError) -> bool:
        """Leave a lost device out, and let other devices answer the batch's requests, which are the
        next in the queue; False where there is no other device."""
        with self._lock:
            if self._closed or not self._lost.leave_out(batch.copy, error):
                return False
            for each in [each for each in self.free if each.is_left_out]:
                self.free.remove(each)
            requests, batch.requests = batch.requests, []
            for request in requests:
                request.put_back()
            self._queue.extendleft(request for request in reversed(requests) if not request.left)
            return True

    def _gathered(self, request: Request) -> Batch | None:
        """The batch that a request is in now; None where no copy is free for it."""
        batch = self._open
        if batch is not None and not (
            0 < request.items <= self._most - batch.items
            and request.shapes == batch.requests[0].shapes
        ):
            self._end(batch)
            batch.copy.notify()
            batch = None
        if batch is None:
            if not self.free:
                return None
            batch = self._open = self._begun(self.free[0], request)
        request.batch, request.at = batch, batch.items
        batch.requests.append(request)
        batch.items += request.items
        if batch.items >= self._most or not request.items:
            self._end(batch)
        else:
            if request.due < batch.due:
                batch.due, batch.timekeeper = request.due, None
            if batch.timekeeper is None and batch.due < batch.copy.until:
                batch.copy.notify()
        return batch

    def _check_room(self) -> None:
        """Check that one more request may wait.

        Raises:
            QueueFullError: as many as may wait do.
        """
        limit = self._queue_limit
        # With a copy free, the thread that answers the queue is about to take the next.
        if limit is not None and len(self._queue) >= limit + len(self.free):
            raise QueueFullError(
                f"{limit} requests wait for this pool already, its queue_limit; come again later, "
                "make the pool or its queue larger, or let fewer callers come"
            )

    def _begun(self, mine: ModelCopy, first: Request) -> Batch:
        size = max(self._last)
        model = mine.models[size]
        rows = model._input_rows(first.shapes) if self._gathers else None  # noqa: SLF001
        batch = mine.batch = Batch(mine, size, rows, first.due, self._names)
        if first.keeps_time and not first.queued:
            batch.timekeeper = first
        self.free.popleft()
        return batch

    def _end(self, batch: Batch) -> None:
        """Nothing is added to a batch any more."""
        batch.closed, batch.timekeeper = True, None
        if self._open is batch:
            self._open = None

    def _next(self, mine: ModelCopy) -> Batch | None:
        """A batch that the thread of a copy is to run now; None where there will be none."""
        patience = self._deadline  # saves being woken by the first request of each batch
        while True:
            batch = mine.batch
            if self._closed and (batch is None or batch.runner is None):
                return None
            if batch is None:
                mine.wait(patience or threading.TIMEOUT_MAX)
                patience = 0.0
            elif batch.is_ready:
                batch.runner = mine
                return batch
            elif batch.closed or batch.timekeeper is not None:
                mine.wait()
            else:
                left = batch.due - time.monotonic()
                if left > 0:
                    mine.wait(left)
                else:
                    self._end(batch)

    def _give_back(self, over: Batch) -> None:
        """A copy is free; what is in the queue has come while all were busy."""
        mine = over.copy
        over.over = True
        mine.told.add(over)
        mine.batch = None
        self.free.extend(self._lost.free_after_run(mine))
        if mine.next_models is not None:
            mine.take_next()
            self._idle.notify_all()
        while self._queue and not self._leads:
            batch = self._from_queue()
            if batch is None:
                break
            self._leads |= self._submits
            batch.copy.notify()
        if self._closed:
            mine.notify()
            self._idle.notify_all()

    def _from_queue(self) -> Batch | None:
        """The batch that the next in the queue is in now; None where none is, or no copy is free
        for it."""
        batch = None
        while self._queue and batch is None:
            request = self._queue[0]
            if request.future is None or not request.future.cancelled():
                batch = self._gathered(request)
                if batch is None:
                    break
            self._queue.popleft()
        return batch
