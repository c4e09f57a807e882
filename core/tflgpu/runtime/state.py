"""State tensors between runs: in host memory, or in device buffers until host code reads them.

    at home    host arrays -> inputs of the recording;  outputs -> host arrays, after each run
    away       run 1: A -> recording -> B;  run 2: B -> the same plan, recorded once more -> A;  ...

A plan has the state of its nodes behind its inputs, and what becomes of it behind its outputs. It
begins in host memory. After several runs in a row without a read of the state, each tensor of it
gets two buffers of the device, and the plan is recorded a second time, bound to them the other way
round: what one run writes the next one reads, and no run copies any of it. A run that fails, or is
interrupted, has written to the buffers that do not count yet, so that the state is what it was. A
read of the state copies it back to its arrays, which count from then on, since the reader may write
to them.

What a device cannot do (it has no buffers, or no memory for another recording) leaves the state at
home. So does a device that tflgpu chose itself: when it fails, the CPU goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tflgpu.backend_kit.forks import Holder
from tflgpu.contract.buffers import Buffer
from tflgpu.contract.device import Device, DispatchTime, Recording
from tflgpu.contract.pending import Pending
from tflgpu.errors import DeviceError, StateError, TflgpuError
from tflgpu.errors.blame import LOG, Failed, attempt, in_a_line
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.reason import Unsupported

#: Runs in a row without a read of the state, before it goes to the device; so many times more
#: where it was asked for soon after it had gone.
QUIET = 2
_MORE = 8
#: Bytes of memory of its own (not weights, which recordings share) that a second recording may
#: take, and as many times the state's: a large cache is what is worst to move.
_MOST_BYTES = 64 << 20
_MOST_TIMES = 8
_ANEW = "reset_all_variables() lets it begin anew"


class StateBuffers(Holder):
    """A `Recording` of a plan with state, used like one without: the state tensors are kept from
    run to run, in buffers of the device or in host memory.

    A run takes the state from before it, and what it makes of it counts after `commit`.

    Attributes:
        copied: Bytes that moving the state has copied, to the device and to the host, since the
            last count.
        edition: Another number whenever `copies` may have changed.
        commits: How often the state was replaced by what a run made of it.
        why_home: Why the state never goes to the device; "" where it does.
    """

    def __init__(
        self,
        first: Recording,
        again: Callable[[], Recording],
        device: Device,
        homes: Mapping[int, Array],
        *,
        nbytes: int,
        may_leave: bool = True,
    ) -> None:
        """Keep state at home.

        Args:
            first: A recording of the plan.
            again: Loads another.
            device: Whose they are.
            homes: The state's arrays, by value id, in the order of the plan's last inputs and
                outputs.
            nbytes: What another recording takes besides weights.
            may_leave: Whether the state may go to the device.
        """
        self._recordings = [first]
        self._again, self._device = again, device
        self._homes = dict(homes)
        self._given = len(first.inputs) - len(self._homes)
        self._made = len(first.outputs) - len(self._homes)
        self._inputs = tuple(first.inputs[: self._given])
        self._outputs = tuple(first.outputs[: self._made])
        before, after = first.inputs[self._given :], first.outputs[self._made :]
        self._forms = [(a.shape, a.dtype, a.nbytes) for a in before]
        self.why_home = "" if may_leave else "somebody may have to go on without the device"
        if may_leave:
            self.why_home = too_large(nbytes, sum(a.nbytes for a in before))
        if self._forms != [(a.shape, a.dtype, a.nbytes) for a in after]:
            self.why_home = "a run makes another form of it than it reads"
        self._may_leave = not self.why_home
        # Inputs and outputs that are bound to buffers of callers, by index.
        self._elsewhere: tuple[dict[int, Buffer], dict[int, Buffer]] = ({}, {})
        # Between their arrays and those of the second recording: to where, from where.
        self._before: list[tuple[Array, Array]] = []
        self._after: list[tuple[Array, Array]] = []
        self._pairs: list[tuple[Buffer, Buffer]] = []  # two of each tensor, once it was away
        self._turn = 0  # which of the two counts, and which recording reads it
        #: Whether the state is on the device, and what its arrays hold is old.
        self.is_away = False
        self._ran: int | None = None  # the recording of a run that is not committed
        self._can_step_back = False
        self._quiet, self._patience = 0, QUIET
        self._lost = ""
        self._closed = False
        self._is_shared = getattr(first, "copies", None) == (0, 0)  # memory of host and device
        self.copied = [0, 0]
        self.edition = self.commits = 0
        self.belongs_to_process()

    def __getattr__(self, name: str) -> Any:
        if name == "_recordings":  # not made yet
            raise AttributeError(name)
        return getattr(self._recordings[0], name)

    # The recording

    @property
    def inputs(self) -> Sequence[Array]:
        """The plan's inputs, in order, without the state."""
        return self._inputs

    @property
    def outputs(self) -> Sequence[Array]:
        """The plan's outputs, in order, without the state."""
        return self._outputs

    def run(self) -> None:
        """Run the recording that reads the current state."""
        recording = self._begin()
        recording.run()
        self._end(recording)

    def submit(self) -> Pending:
        """Submit the recording that reads the current state; the new one counts after `commit`."""
        recording = self._begin()
        return _Submitted(recording.submit(), lambda: self._end(recording))

    def bind(
        self,
        inputs: Mapping[int, Buffer | None] | None = None,
        outputs: Mapping[int, Buffer | None] | None = None,
    ) -> Unsupported | None:
        """As `Recording.bind`. The state comes home; the second recording is bound likewise when it
        goes away again."""
        for side, count in ((inputs, self._given), (outputs, self._made)):
            for index in side or ():
                if not 0 <= index < count:
                    raise DeviceError(f"there is no input or output {index} to bind")
        self._settle()
        answer = self._recordings[0].bind(inputs, outputs)
        if answer is None:
            for held, changes in zip(self._elsewhere, (inputs, outputs), strict=True):
                held.update({i: b for i, b in (changes or {}).items() if b is not None})
                for i, buffer in (changes or {}).items():
                    if buffer is None:
                        held.pop(i, None)
        return answer

    def profile(self) -> Sequence[DispatchTime] | Unsupported:
        """Profile the recording that reads the current state; the new one counts after
        `commit`."""
        recording = self._begin()
        times = recording.profile()
        self._end(recording)
        return times

    def close(self) -> None:
        """As `Recording.close`. The state comes home, if the device still gives it."""
        self._closed = True
        first: TflgpuError | None = None
        for recording in self._recordings:
            try:
                recording.close()
            except TflgpuError as error:
                first = first or error
        if not self.inherited:
            if self.is_away:
                failed = attempt(self._fetch)
                if isinstance(failed, Failed):
                    self._lost = in_a_line(failed.error)
                self.is_away = False
            self._free()
        if first is not None:
            raise first

    # The state

    @property
    def values(self) -> frozenset[int]:
        """Whose state it keeps, by value id."""
        return frozenset(self._homes)

    def bring_home(self) -> None:
        """Copy the state back to its host arrays, which count from then on.

        Raises:
            StateError: it was on a device that is lost, or of the process that this one was forked
                from.
            DeviceError: the device failed.
        """
        is_soon, self._quiet = self._quiet < _MORE, 0
        if self._lost:
            raise StateError(
                "the model's state was on the device, which did not give it back "
                f"({self._lost}); {_ANEW}"
            )
        if not self.is_away:
            return
        if self.inherited:
            raise StateError(
                "the model's state stayed on the device, in the process that this one was forked "
                f"from; {_ANEW}"
            )
        self._fetch()
        self.is_away = self._can_step_back = False
        if is_soon:
            self._patience *= _MORE

    def peek(self, value_id: int) -> Array:
        """A copy of one tensor of the state, which stays where it is.

        Raises:
            StateError, DeviceError: as `bring_home`.
        """
        if self._lost or (self.is_away and self.inherited):
            self.bring_home()  # says so
        home = self._homes[value_id]
        found: Array = np.array(home)
        if not self.is_away:
            return found
        at = list(self._homes).index(value_id)
        shape, dtype, nbytes = self._forms[at]
        read: Array = np.empty(shape, dtype)
        self._pairs[at][self._turn].read(read)
        self.copied[1] += 0 if self._is_shared else nbytes
        np.copyto(found, read.reshape(home.shape), casting="unsafe")
        return found

    def begin_anew(self) -> None:
        """All zeros."""
        self._quiet, self._lost = 0, ""
        self.is_away = self._can_step_back = False
        for array in self._homes.values():
            array[...] = 0

    def commit(self) -> None:
        """Let the state be what the last run made of it."""
        ran, self._ran = self._ran, None
        if ran is None:
            return
        self.commits += 1
        if self.is_away:
            self._turn, self._can_step_back = 1 - ran, True
        else:
            made = self._recordings[0].outputs[self._made :]
            for home, array in zip(self._homes.values(), made, strict=True):
                np.copyto(home, array, casting="unsafe")
        self._quiet += 1

    def step_back(self) -> None:
        """Let the state be what it was before the last run. State at home is not stepped back: a
        caller that may need it keeps a copy."""
        if self._can_step_back:
            self._turn, self._can_step_back = 1 - self._turn, False

    def stay(self) -> None:
        """Keep the state in host memory from now on: its arrays are read and written without a call
        here.

        Raises:
            StateError, DeviceError: as `bring_home`.
        """
        self._may_leave = False
        self.why_home = self.why_home or "it is read and written without asking"
        self._settle()

    # Inside

    def _begin(self) -> Recording:
        """The recording that is next, with what it reads."""
        self._can_step_back = False
        if not self.is_away:
            if self._lost:
                self.bring_home()  # says so
            if len(self._recordings) > 1:
                if self._quiet < self._patience > QUIET:
                    self._settle()
                else:
                    self._send()
            elif self._may_leave and self._quiet >= self._patience:
                self._leave()
        self._ran = turn = self._turn if self.is_away else 0
        recording = self._recordings[turn]
        if not self.is_away:
            given = recording.inputs[self._given :]
            for home, array in zip(self._homes.values(), given, strict=True):
                np.copyto(array, home, casting="unsafe")
        if turn:
            for its, mine in self._before:
                np.copyto(its, mine)
        return recording

    def _end(self, recording: Recording) -> None:
        """The results are where those of the first recording are."""
        if recording is not self._recordings[0]:
            for mine, its in self._after:
                np.copyto(mine, its)

    def _leave(self) -> None:
        """Let the state go to the device; where that cannot be, it stays at home for good."""
        try:
            refused = self._move_out()
        except TflgpuError as error:
            refused = Unsupported(in_a_line(error))
        if refused is not None:
            self._may_leave, self.why_home = False, refused.reason
            LOG.info("tflgpu: state stays in host memory: %s", refused.reason)

    def _move_out(self) -> Unsupported | None:
        buffers: list[Buffer] = []
        twin: Recording | None = None
        try:
            for _, _, nbytes in self._forms:
                for _ in range(2):
                    buffer = self._device.allocate(nbytes)
                    if isinstance(buffer, Unsupported):
                        return buffer
                    buffers.append(buffer)
            twin = self._again()
            self._pairs = list(zip(buffers[::2], buffers[1::2], strict=True))
            for turn, recording in enumerate((twin, self._recordings[0])):
                refused = self._bound(recording, 1 - turn)
                if refused is not None:
                    return refused
            self._turn = 0
            self._send()
            given, made = self._elsewhere
            before = zip(twin.inputs, self._inputs, strict=False)
            after = zip(self._outputs, twin.outputs, strict=False)
            self._before = [pair for i, pair in enumerate(before) if i not in given]
            self._after = [pair for i, pair in enumerate(after) if i not in made]
            self._recordings.append(twin)
        finally:
            if len(self._recordings) == 1:
                # As it was. A recording that cannot even be given its own memory fails when it
                # runs.
                self.is_away, self._pairs = False, []
                attempt(self._unbind)
                if twin is not None:
                    attempt(twin.close)
                for buffer in buffers:
                    attempt(buffer.close)
        self.edition += 1
        return None

    def _bound(self, recording: Recording, turn: int) -> Unsupported | None:
        (inputs, outputs), pairs = self._elsewhere, enumerate(self._pairs)
        given: dict[int, Buffer | None] = {**inputs}
        made: dict[int, Buffer | None] = {**outputs}
        for i, pair in pairs:
            given[self._given + i], made[self._made + i] = pair[turn], pair[1 - turn]
        return recording.bind(given, made)

    def _unbind(self) -> None:
        count = range(len(self._homes))
        self._recordings[0].bind(
            {self._given + i: None for i in count}, {self._made + i: None for i in count}
        )

    def _settle(self) -> None:
        """Bring the state home, and use the first recording only, in memory of its own."""
        self.bring_home()
        if len(self._recordings) > 1:
            self._unbind()
            self._before, self._after = [], []
            self._recordings.pop().close()
            self._free()
            self.edition += 1

    def _send(self) -> None:
        """Copy the state from its arrays to the buffers that count."""
        for home, form, pair in zip(self._homes.values(), self._forms, self._pairs, strict=True):
            shape, dtype, nbytes = form
            pair[self._turn].write(home.astype(dtype).reshape(shape))
            self.copied[0] += 0 if self._is_shared else nbytes
        self.is_away = True

    def _fetch(self) -> None:
        """Copy the state from the buffers that count to its arrays."""
        found = []
        for (shape, dtype, nbytes), pair in zip(self._forms, self._pairs, strict=True):
            array: Array = np.empty(shape, dtype)
            pair[self._turn].read(array)
            self.copied[1] += 0 if self._is_shared else nbytes
            found.append(array)
        for home, array in zip(self._homes.values(), found, strict=True):
            np.copyto(home, array, casting="unsafe")

    def _free(self) -> None:
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for buffer in pair:
                attempt(buffer.close)


def too_large(nbytes: int, state: int) -> str:
    """Why a second recording takes too much memory for a state of so many bytes; or ""."""
    most = max(_MOST_BYTES, _MOST_TIMES * state)
    if nbytes <= most:
        return ""
    return (
        f"a second recording would take {nbytes >> 20} MiB, which is more than {most >> 20} MiB, "
        f"for a state of {state} bytes"
    )


class _Submitted:
    """A `Pending` after which something is left to do."""

    def __init__(self, inner: Pending, after: Callable[[], None]) -> None:
        self._inner = inner
        self._after: Callable[[], None] | None = after

    def done(self) -> bool:
        """Whether the device's run is over."""
        return self._inner.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the run, then do the rest; False where the run is not over in ``timeout``
        seconds."""
        if not self._inner.wait(timeout):
            return False
        after, self._after = self._after, None
        if after is not None:
            after()
        return True
