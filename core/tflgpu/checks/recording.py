"""Checks what a recording returns (see `tflgpu.checks.device`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from tflgpu.checks.buffers import checked_reason, inner_buffers
from tflgpu.checks.edge import Edge
from tflgpu.checks.pending import CheckedPending
from tflgpu.checks.plugin_caller import PluginCaller
from tflgpu.contract.buffers import Buffer
from tflgpu.contract.device import DispatchTime, Recording
from tflgpu.contract.pending import Pending
from tflgpu.errors.blame import shown
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.reason import Unsupported


class CheckedRecording:
    """A `Recording` around a plugin's recording; attributes that it lacks are the plugin's."""

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
        self._inner, self._party = inner, party
        self._edges = {"inputs": tuple(inputs), "outputs": tuple(outputs)}
        self._planned = dispatches
        self._closed = False
        self._has_run = False
        self._submits: type | None = None  # what was looked at, of our own backends once
        self._given: dict[str, Any] = {}
        self._seen: dict[str, tuple[Array, ...]] = {}
        for side in self._edges:
            self._given[side] = party.call(side, getattr, inner, side)
            self._seen[side] = self._checked(side, self._given[side])
        self._check_apart()
        count = party.call("dispatches", getattr, inner, "dispatches", dispatches or 0)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise party.broke(f"dispatches is {shown(count)}, not how many there are")
        if dispatches is not None and count != dispatches:
            raise party.broke(f"dispatches is {count}, and the plan has {dispatches}")
        #: Kernels that it launches in a run, for reports.
        self.dispatches = count
        self._prepare()

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # not made yet
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def inputs(self) -> Sequence[Array]:
        """Writable host arrays, one per input."""
        return self._seen["inputs"]

    @property
    def copies(self) -> tuple[int, int] | None:
        """Bytes that a run copies to the device and to the host, as it is bound now; None where it
        does not say.

        Raises:
            DeviceError: what it says is no two numbers of bytes.
        """
        said = self._party.call("copies", getattr, self._inner, "copies", None)
        if said is None:
            return None
        if (
            not isinstance(said, tuple)
            or len(said) != 2
            or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in said)
        ):
            raise self._party.broke(f"copies is {shown(said)}, not two numbers of bytes")
        return said

    @property
    def outputs(self) -> Sequence[Array]:
        """Host arrays, one per output."""
        self._compare("outputs")
        return self._seen["outputs"]

    def run(self) -> None:
        """Run, and see to it that the arrays are still the same.

        Raises:
            StateError: it is closed.
            DeviceError: it failed, or broke the contract; names the plugin.
        """
        if not self._has_run:
            self._first_run()
            return
        try:
            self._inner.run()
        except Exception as error:  # noqa: BLE001
            self._party.blame("run", error)
        self._after_run()

    def submit(self) -> Pending:
        """As `Recording.submit`.

        Raises:
            StateError: it is closed.
            DeviceError: it failed, or what it gave is no `Pending`.
        """
        before = None if self._has_run else self._held()
        pending = self._party.call("submit", self._inner.submit)
        if type(pending) is not self._submits or not self._party.shipped:
            self._check_pending(pending)
        return CheckedPending(pending, self._party, partial(self._after_submitted, before))

    def _check_pending(self, pending: object) -> None:
        lacking = [n for n in ("done", "wait") if not self._party.call(n, has_part, pending, n)]
        if lacking:
            raise self._party.broke(
                f"submit gave {shown(pending)}, which is no Pending: it has no "
                + ", ".join(lacking)
            )
        self._submits = type(pending)

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
            "bind", self._inner.bind, inner_buffers(inputs), inner_buffers(outputs)
        )
        return None if answer is None else checked_reason(answer, self._party, "bind")

    def profile(self) -> Sequence[DispatchTime] | Unsupported:
        """Run with timers.

        Raises:
            StateError, DeviceError: as `run`; or what came is neither a list of times nor a reason.
        """
        times = self._party.call("profile", self._inner.profile)
        self._after_run()
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
        self._given = dict.fromkeys(self._edges, ())
        self._inputs, self._outputs = (), ()
        self._seen = dict.fromkeys(self._edges, ())
        self._watched: tuple[Any, ...] = ()
        self._party.call("close", self._inner.close)

    # Inside

    def _checked(self, side: str, arrays: Any) -> tuple[Array, ...]:
        """A side's arrays, each of the shape and type that it must have."""
        edges = self._edges[side]
        try:
            found = tuple(arrays)
        except TypeError:
            raise self._party.broke(f"{side} is {shown(arrays)}, not {len(edges)} arrays") from None
        if len(found) != len(edges):
            raise self._party.broke(f"{side} has {len(found)} arrays, not {len(edges)}")
        for i, (edge, array) in enumerate(zip(edges, found, strict=True)):
            problem = edge.misfit(array, writable=side == "inputs")
            if problem is not None:
                raise self._party.broke(f"{side}[{i}] ({edge.name}) {problem}")
        return found

    def _check_apart(self) -> None:
        """No two arrays share memory: what is written to one would change the other."""
        spans = []
        for side, arrays in self._seen.items():
            for i, array in enumerate(arrays):
                start = array.__array_interface__["data"][0]
                if array.nbytes:
                    spans.append((start, start + array.nbytes, f"{side}[{i}]"))
        spans.sort()
        for (_, end, one), (start, _, other) in pairwise(spans):
            if start < end:
                raise self._party.broke(f"{one} and {other} share memory")

    def _prepare(self) -> None:
        """What is compared after every run. The sequences themselves say enough where they are
        tuples; of our own backends' arrays, the suite shows that they keep shape and type."""
        self._inputs, self._outputs = self._given["inputs"], self._given["outputs"]
        self._fixed = isinstance(self._inputs, tuple) and isinstance(self._outputs, tuple)
        self._watched = tuple(
            (array, array.shape, array.dtype)
            for arrays in self._seen.values()
            for array in arrays
            if not self._party.shipped
        )

    def _first_run(self) -> None:
        """A run that also shows whether the inputs are left alone; later ones are believed to do
        as the first did, since looking takes as long as copying the inputs."""
        before = self._held()
        self._party.call("run", self._inner.run)
        self._after_submitted(before)

    def _held(self) -> list[bytes] | None:
        """What the inputs hold before the first run; None of our own backends, of which the suite
        shows that they leave inputs alone. Inputs may lie in memory of the device that the host
        writes fast and reads slowly: looking took a quarter of a start from a saved model."""
        if self._party.shipped:
            return None
        return [array.tobytes() for array in self._seen["inputs"]]

    def _after_submitted(self, before: list[bytes] | None) -> None:
        """After a run, the first with what the inputs were."""
        if before is not None:
            self._inputs_left_alone(before)
        self._after_run()
        self._has_run = True

    def _inputs_left_alone(self, before: list[bytes]) -> None:
        for i, (array, held) in enumerate(zip(self._seen["inputs"], before, strict=False)):
            if array.tobytes() != held:
                raise self._party.broke(
                    f"run changed inputs[{i}] ({self._edges['inputs'][i].name}); a run leaves "
                    "its inputs alone"
                )

    def _after_run(self) -> None:
        try:
            inner = self._inner
            same = self._fixed and inner.outputs is self._outputs and inner.inputs is self._inputs
        except Exception as error:  # noqa: BLE001
            self._party.blame("outputs", error)
        if not same:
            for side in ("inputs", "outputs"):
                self._compare(side)
        for array, shape, dtype in self._watched:
            if array.dtype is not dtype or array.shape != shape:
                raise self._party.broke(
                    f"run made of an array of {dtype}{list(shape)} one of "
                    f"{array.dtype}{list(array.shape)}"
                )

    def _compare(self, side: str) -> None:
        """That a side's arrays are those that they were."""
        if self._closed:
            return
        try:
            given = getattr(self._inner, side)
        except Exception as error:  # noqa: BLE001
            self._party.blame(side, error)
        if given is self._given[side] and isinstance(given, tuple):
            return
        seen = self._seen[side]
        if isinstance(given, (list, tuple)) and len(given) == len(seen):
            for now, then in zip(given, seen, strict=True):
                if now is not then:
                    break
            else:
                return
        self._replace(side, given)

    def _replace(self, side: str, given: Any) -> None:
        """Other arrays than before: only views of the same memory will do."""
        found = self._checked(side, given)
        for i, (now, then) in enumerate(zip(found, self._seen[side], strict=True)):
            if now.nbytes and _address(now) != _address(then):
                raise self._party.broke(
                    f"{side}[{i}] ({self._edges[side][i].name}) is somewhere else after a run; "
                    "arrays stay at the same address"
                )


def has_part(inner: object, name: str) -> bool:
    """Whether there is something of the name; a method, but for arrays."""
    value = getattr(inner, name, None)
    return value is not None and (name in ("inputs", "outputs") or callable(value))


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _is_time(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        return False
    return math.isfinite(value) and float(value) >= 0
