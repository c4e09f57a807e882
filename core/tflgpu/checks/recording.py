"""Checks what a recording returns, one that lends its outputs too (see `tflgpu.checks.device`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tflgpu.checks.buffers import checked_reason, inner_buffers
from tflgpu.checks.plugin_caller import PluginCaller, PluginProxy, close_quietly
from tflgpu.contract.buffers import Buffer
from tflgpu.contract.device import DispatchTime, Recording
from tflgpu.contract.offers import Lender, offers
from tflgpu.contract.pending import Pending
from tflgpu.errors import DeviceError
from tflgpu.errors.blame import shown
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Shape
from tflgpu.lowering.reason import Unsupported


class CheckedPending:
    """A `Pending` around another's."""

    def __init__(self, inner: Any, party: PluginCaller, after: Callable[[], object]) -> None:
        """``after`` looks at the recording once the run is over."""
        self._inner, self._party, self._after = inner, party, after

    def done(self) -> bool:
        """As `Pending.done`.

        Raises:
            DeviceError: it failed on the question, or did not answer it.
        """
        return self._answer("done", self._party.call("done", self._inner.done))

    def wait(self, timeout: float | None = None) -> bool:
        """As `Pending.wait`.

        Raises:
            StateError: the recording was closed.
            DeviceError: the run failed, or broke the contract; names the plugin.
        """
        over = self._answer("wait", self._party.call("wait", self._inner.wait, timeout))
        if timeout is None and not over:
            raise self._party.broke(
                "wait without a timeout gave False; it returns when all is over"
            )
        if over:
            self._after()
        return over

    def _answer(self, what: str, answer: object) -> bool:
        if not isinstance(answer, (bool, np.bool_)):
            raise self._party.broke(f"{what} gave {shown(answer)}, neither True nor False")
        return bool(answer)


class Edge(Protocol):
    """An input or output of a recording: a plan's, or a value."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def shape(self) -> Shape:
        """Of its array."""

    @property
    def dtype(self) -> DType:
        """The type of its elements."""


class CheckedRecording(PluginProxy):
    """A `Recording` around a plugin's recording. Its arrays are looked at when it is loaded, and
    its outputs after every run."""

    _lends = False

    def __init__(
        self,
        inner: Recording,
        party: PluginCaller,
        inputs: Sequence[Edge],
        outputs: Sequence[Edge],
        dispatches: int | None,
    ) -> None:
        """Look at a recording; ``dispatches`` is how many its plan has, None without a plan.

        Raises:
            DeviceError: its arrays are not those that were asked for.
        """
        super().__init__(inner, party)
        self._edges = {"inputs": tuple(inputs), "outputs": tuple(outputs)}
        self._planned = dispatches
        self._closed = False
        self._arrays: dict[str, tuple[Array, ...]] = {}
        for side in self._edges:
            self._look_at(side)
        count = party.call("dispatches", getattr, inner, "dispatches", dispatches or 0)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise party.broke(f"dispatches is {shown(count)}, not how many there are")
        if dispatches is not None and count != dispatches:
            raise party.broke(f"dispatches is {count}, and the plan has {dispatches}")
        #: Kernels that it launches in a run, for reports.
        self.dispatches = count

    @property
    def inputs(self) -> Sequence[Array]:
        """Writable host arrays, one per input."""
        return self._look_at("inputs")

    @property
    def outputs(self) -> Sequence[Array]:
        """Host arrays, one per output."""
        return self._look_at("outputs")

    @property
    def copies(self) -> tuple[int, int] | None:
        """Bytes that a run copies to the device and to the host, as it is bound now; None where it
        does not say.

        Raises:
            DeviceError: what it says is no two numbers of bytes.
        """
        said = self._party.call("copies", getattr, self.inner, "copies", None)
        if said is None:
            return None
        if (
            not isinstance(said, tuple)
            or len(said) != 2
            or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in said)
        ):
            raise self._party.broke(f"copies is {shown(said)}, not two numbers of bytes")
        return said

    def run(self) -> None:
        """As `Recording.run`.

        Raises:
            StateError, DeviceError: as there; names the plugin.
        """
        try:
            self.inner.run()
        except Exception as error:  # noqa: BLE001
            self._party.blame("run", error)
        self._look_at("outputs")

    def submit(self) -> Pending:
        """As `Recording.submit`.

        Raises:
            StateError: it is closed.
            DeviceError: it failed, or what it gave is no `Pending`.
        """
        pending = self._party.call("submit", self.inner.submit)
        lacking = self._party.lacking(pending, ("done", "wait"), ())
        if lacking:
            raise self._party.broke(
                f"submit gave {shown(pending)}, which is no Pending: it has no {lacking}"
            )
        return CheckedPending(pending, self._party, lambda: self._look_at("outputs"))

    def bind(
        self,
        inputs: Mapping[int, Buffer | None] | None = None,
        outputs: Mapping[int, Buffer | None] | None = None,
    ) -> Unsupported | None:
        """As `Recording.bind`.

        Raises:
            StateError, DeviceError: as there; or it answered neither None nor a reason.
        """
        answer = self._party.call(
            "bind", self.inner.bind, inner_buffers(inputs), inner_buffers(outputs)
        )
        return None if answer is None else checked_reason(answer, self._party, "bind")

    def profile(self) -> Sequence[DispatchTime] | Unsupported:
        """Run with timers.

        Raises:
            StateError, DeviceError: as `run`; or what came is neither a list of times nor a reason.
        """
        times = self._party.call("profile", self.inner.profile)
        self._look_at("outputs")
        broke = self._party.broke
        if isinstance(times, Unsupported):
            return checked_reason(times, self._party, "profile")
        if not isinstance(times, (list, tuple)):
            raise broke(f"profile gave {shown(times)}, not a list of DispatchTime")
        for i, time in enumerate(times):
            if not isinstance(time, DispatchTime):
                raise broke(f"profile gave {shown(time)} at {i}, not a DispatchTime")
            if not isinstance(time.label, str) or not isinstance(time.kernel, str):
                raise broke(f"profile gave the names {shown((time.label, time.kernel))} at {i}")
            if not _is_time(time.seconds):
                raise broke(
                    f"profile gave {shown(time.seconds)} seconds for {time.label}; a time is a "
                    "finite number from 0 on"
                )
            if time.start is not None and not _is_time(time.start):
                raise broke(
                    f"profile gave {shown(time.start)} as the start of {time.label}; it is a "
                    "finite number from 0 on, or None"
                )
        if self._planned is not None and times and len(times) != self._planned:
            raise broke(
                f"profile gave {len(times)} times for the {self._planned} dispatches of the plan"
            )
        return times

    def close(self) -> None:
        """Release everything; twice is harmless.

        Raises:
            DeviceError: it failed at that.
        """
        self._closed = True
        super().close()

    # Inside

    def _look_at(self, side: str) -> tuple[Array, ...]:
        """A side's arrays, each of the shape and type that it must have; none once it is closed."""
        if self._closed:
            return ()
        found = self._checked(side, self._party.call(side, getattr, self.inner, side))
        if not self._lends:
            for i, (now, then) in enumerate(zip(found, self._arrays.get(side, ()), strict=False)):
                if now.nbytes and _address(now) != _address(then):
                    raise self._party.broke(
                        f"{side}[{i}] ({self._edges[side][i].name}) is somewhere else after a run; "
                        "arrays stay at the same address"
                    )
        self._arrays[side] = found
        return found

    def _checked(self, side: str, arrays: Any) -> tuple[Array, ...]:
        edges = self._edges[side]
        try:
            found = tuple(arrays)
        except TypeError:
            raise self._party.broke(f"{side} is {shown(arrays)}, not {len(edges)} arrays") from None
        if len(found) != len(edges):
            raise self._party.broke(f"{side} has {len(found)} arrays, not {len(edges)}")
        for i, (edge, array) in enumerate(zip(edges, found, strict=True)):
            problem = misfit(edge, array, writable=side == "inputs")
            if problem is not None:
                raise self._party.broke(f"{side}[{i}] ({edge.name}) {problem}")
        return found


def misfit(edge: Edge, array: object, *, writable: bool) -> str | None:
    """What is wrong with the array of an input or output, None where it fits."""
    # Asked of every array that is lent: words are made where something is wrong only.
    dtype = edge.dtype.numpy
    if not isinstance(array, np.ndarray):
        return f"is a {type(array).__name__}, not an array of {dtype}{list(edge.shape)}"
    if array.shape != edge.shape or array.dtype != dtype:
        return f"is {array.dtype}{list(array.shape)}, not {dtype}{list(edge.shape)}"
    if not array.flags.c_contiguous:
        return f"is not packed row-major (its strides are {array.strides})"
    if writable and not array.flags.writeable:
        return "cannot be written"
    return None


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _is_time(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        return False
    return math.isfinite(value) and float(value) >= 0


_NEEDED = ("inputs", "outputs", "run", "submit", "bind", "profile", "close")


class CheckedLender(CheckedRecording):
    """The same around a recording that lends its outputs, which move then."""

    _lends = True

    def lend(self, index: int) -> Array | None:
        """As `Lender.lend`.

        Raises:
            StateError: it is closed.
            DeviceError: it failed, or what it lent is not the output that was asked for.
        """
        array = self._party.call("lend", self.inner.lend, index)
        if array is None:
            return None
        problem = misfit(self._edges["outputs"][index], array, writable=True)
        if problem is not None:
            raise self._party.broke(f"lend({index}) gave what {problem}")
        lent: Array = array
        return lent

    def settle(self) -> None:
        """As `Lender.settle`.

        Raises:
            StateError: it is closed.
            DeviceError: it failed.
        """
        self._party.call("settle", self.inner.settle)


def checked_recording(
    inner: object,
    party: PluginCaller,
    inputs: Sequence[Edge],
    outputs: Sequence[Edge],
    dispatches: int | None = None,
) -> Recording:
    """A recording that was just loaded, checked; it is closed where it is not what it must be.

    Raises:
        DeviceError: names the plugin and what it broke.
    """
    lacking = party.lacking(inner, _NEEDED, ("inputs", "outputs"))
    if lacking:
        raise party.broke(
            f"it loaded a {type(inner).__name__}, which is no recording: it has no {lacking}"
        )
    try:
        lends = party.call("lend", offers, inner, Lender)
        kind = CheckedLender if lends else CheckedRecording
        return kind(inner, party, inputs, outputs, dispatches)  # type: ignore[arg-type]
    except DeviceError:
        close_quietly(inner)
        raise
