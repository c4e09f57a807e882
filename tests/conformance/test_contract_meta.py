"""Level 0 notices devices that break one promise each: the kernel interpreter, spoilt."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.compiler.plan import Plan
from tflgpu.conformance.contract import device_checks
from tflgpu.conformance.target import DeviceUnderTest, NotApplicable
from tflgpu.contract.device import DeviceInfo, DispatchTime, NodeRun, Recording
from tflgpu.contract.memory_use import MemoryUse
from tflgpu.contract.pending import FINISHED, Pending
from tflgpu.errors import TflgpuError
from tflgpu.ir.dtypes import Array
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.kernel import Kernel
from tflgpu.plugins.registry import registry
from tflgpu_cpu_ref.device import CpuRefDevice
from tflgpu_cpu_ref.recording import CpuRefRecording
from tflgpu_cpu_ref.references import ReferenceDevice


class Spoilt:
    """A device whose recordings are made by ``spoil(recording, plan, bands)``, from right ones."""

    def __init__(self, spoil: Callable[[Any, Plan, bool], Recording]) -> None:
        self._device = CpuRefDevice()
        self._spoil = spoil

    @property
    def info(self) -> DeviceInfo:
        return self._device.info

    @property
    def caps(self) -> DeviceCaps:
        return self._device.caps

    @property
    def alignment(self) -> int:
        return self._device.alignment

    def load(self, plan: Plan, *, guard_bands: bool = False) -> Recording:
        loaded = self._device.load(plan, guard_bands=guard_bands)
        return self._spoil(loaded, plan, guard_bands)

    def allocate(self, nbytes: int) -> Any:
        return self._device.allocate(nbytes)

    def import_buffer(self, source: object) -> Any:
        return self._device.import_buffer(source)

    def source(self, kernel: Kernel) -> str:
        return self._device.source(kernel)

    def close(self) -> None:
        self._device.close()


class Wrapped:
    """A recording that does what another does."""

    def __init__(self, inner: CpuRefRecording, plan: Plan, guarded: bool) -> None:
        self.inner, self.plan, self.guarded = inner, plan, guarded

    @property
    def inputs(self) -> Sequence[Array]:
        return self.inner.inputs

    @property
    def outputs(self) -> Sequence[Array]:
        return self.inner.outputs

    def run(self) -> None:
        self.inner.run()

    def submit(self) -> Pending:
        self.run()
        return FINISHED

    def bind(self, inputs: Any = None, outputs: Any = None) -> Any:
        return self.inner.bind(inputs, outputs)

    def profile(self) -> Sequence[DispatchTime]:
        return self.inner.profile()

    def close(self) -> None:
        self.inner.close()


def spoilt(base: type = Wrapped, **changes: Any) -> Any:
    """A class of which some methods or attributes are others."""
    return type(base.__name__, (base,), changes)


class Consumed(Wrapped):
    """A run leaves nothing in its inputs."""

    def run(self) -> None:
        super().run()
        for array in self.inputs:
            array.fill(0)


class Backwards(Wrapped):
    """Dispatches do not wait for those before them."""

    def run(self) -> None:
        self.inner._bound.reverse()
        self.inner.run()
        self.inner._bound.reverse()


class ClosedOnce(Wrapped):
    """Closing twice is an error of its own."""

    closed = False

    def close(self) -> None:
        if self.closed:
            raise KeyError("no such handle")
        self.closed = True
        super().close()


class Forgiving(Wrapped):
    """Runs again after it failed, as if nothing had happened."""

    def run(self) -> None:
        if not self.inner._failure:
            self.inner.run()


class Late(Wrapped):
    """Times of a plan that was not run."""

    def profile(self) -> Sequence[DispatchTime]:
        kept = [np.array(a) for a in self.outputs]
        times = self.inner.profile()
        for array, old in zip(self.outputs, kept, strict=True):
            array[...] = old
        return times


class Zeroed(Wrapped):
    """Guard bands come with memory that is zero."""

    def run(self) -> None:
        self.inner.run()
        if self.guarded:
            for array in self.outputs:
                np.nan_to_num(array, copy=False)


KEPT: list[Array] = []


class Leaking(Wrapped):
    """Keeps what it was loaded with."""

    def close(self) -> None:
        KEPT.append(np.ones(1 << 18, np.float32))
        super().close()


class Circular(Wrapped):
    """Leaves what it was loaded with in objects that refer to each other."""

    def close(self) -> None:
        circle: list[object] = [np.ones(1 << 18, np.float32)]
        circle.append(circle)
        super().close()


class Freed(Wrapped):
    """Writes over its arrays when it is closed."""

    def close(self) -> None:
        for array in (*self.inputs, *self.outputs):
            array.fill(0)
        super().close()


class OneThread(Wrapped):
    """Works in the thread only that loaded the test's modules."""

    def run(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("another thread")
        self.inner.run()


class Swallowing(Wrapped):
    """Ends a run that is interrupted as if it had been done."""

    def run(self) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            super().run()


class Translating(Wrapped):
    """Makes of Ctrl-C an error of its own."""

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:
            raise OSError(-5, "the wait was interrupted") from error


class Resuming(Wrapped):
    """Goes on where it was interrupted, whatever its inputs are by now."""

    done = 0

    def run(self) -> None:
        if not self.done:
            self.inner._outputs.for_run()
            self.inner._memory.poison()
        while self.done < len(self.inner._bound):
            self.inner._dispatch_alone(self.done)
            self.done += 1
        self.done = 0


class Stuck(Wrapped):
    """Fails after it was interrupted, by an error that nobody takes for a device's."""

    begun = False

    def run(self) -> None:
        if self.begun:
            raise RuntimeError("a run is in flight")
        self.begun = True
        super().run()
        self.begun = False


_SHARED: dict[tuple[Any, ...], Wrapped] = {}


def one_for_all(inner: CpuRefRecording, plan: Plan, guarded: bool) -> Recording:
    """Plans with the same inputs and outputs share a recording."""
    found = _SHARED.setdefault((plan.inputs, plan.outputs), Wrapped(inner, plan, guarded))
    return Wrapped(found.inner, plan, guarded)


#: What is spoilt, which cases have to say so, and what they say.
SPOILT: dict[str, tuple[Callable[[Any, Plan, bool], Recording], Sequence[str], str]] = {
    "fresh outputs": (
        spoilt(outputs=property(lambda self: [np.array(a) for a in self.inner.outputs])),
        ["arrays_stay"],
        "host arrays moved between runs",
    ),
    "consumed inputs": (Consumed, ["arrays_stay"], "an input after a run: element"),
    "any order": (
        Backwards,
        ["chain/*", "dispatches_in_order", "arena_in_turns"],
        "element 0 is .*nan",
    ),
    "runs after close": (
        spoilt(close=lambda self: None),
        ["a_run_after_close"],
        "running a closed .* raised nothing",
    ),
    "closes once": (ClosedOnce, ["recording_closes_twice"], "no such handle"),
    "forgets failures": (
        Forgiving,
        ["guard_bands/output/*", "guard_bands/arena/*"],
        "running a recording that failed raised nothing",
    ),
    "milliseconds": (
        spoilt(
            profile=lambda self: [
                attrs.evolve(t, seconds=t.seconds * 1000) for t in self.inner.profile()
            ]
        ),
        ["profile"],
        "by the device's timers",
    ),
    "starts at once": (
        spoilt(profile=lambda self: [attrs.evolve(t, start=0.0) for t in self.inner.profile()]),
        ["profile"],
        "step 1 begins before what it reads",
    ),
    "counts kernels": (
        spoilt(dispatches=1),
        ["dispatch_count"],
        "of 4 dispatches says that it has 1",
    ),
    "no run to profile": (Late, ["profile"], "profile 0: its output: element"),
    "zero between bands": (Zeroed, ["guard_bands/not_written"], "an unwritten region is"),
    "leaking": (Leaking, ["loads_take_no_memory"], "every 40 loads took"),
    "in a circle": (Circular, ["loads_take_no_memory"], "every 40 loads took"),
    "arrays freed": (Freed, ["arrays_outlive_their_device"], "an output after close: element"),
    "one thread": (OneThread, ["threads"], "thread 0 of 4: RuntimeError: another thread"),
    "swallows signals": (Swallowing, ["interrupted_runs"], "interrupted .* to no effect"),
    "translates signals": (
        Translating,
        ["interrupted_runs"],
        "raised OSError.* not what the signal's handler raised",
    ),
    "resumes": (Resuming, ["interrupted_runs"], "the output of a run after .* interrupted"),
    "stuck": (Stuck, ["interrupted_runs"], "RuntimeError.*in flight.* which is no DeviceError"),
    "one for all": (one_for_all, ["recordings_apart", "another_device"], "share memory"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_broken_promise_is_noticed(name: str) -> None:
    spoil, wanted, message = SPOILT[name]
    checks = [c for c in device_checks() if any(fnmatchcase(c.id, f"0/{w}") for w in wanted)]
    target = DeviceUnderTest(registry(), "cpu_ref", 1, Spoilt(spoil), opener=lambda: Spoilt(spoil))
    try:
        assert len(checks) >= len(wanted)
        for check in checks:
            with pytest.raises((AssertionError, KeyError), match=message):
                check.run(target)
    finally:
        KEPT.clear()
        _SHARED.clear()
        target.close()


def test_free_memory_of_the_process_hides_no_leak() -> None:
    """glibc keeps what is freed below a piece that is in use, and gives it to the next caller."""
    np.ones(1 << 18, np.float32)  # Freed, it teaches glibc to take such arrays from its heap.
    free = [np.ones(1 << 18, np.float32) for _ in range(200)]
    above = [np.ones(1 << 14, np.float32) for _ in range(3)]
    free.clear()
    test_a_broken_promise_is_noticed("leaking")
    assert len(above) == 3


class Warming(Wrapped):
    """Its first runs wait for their device in many more lines than the later ones."""

    waits = iter([9_000, 9_000])

    def run(self) -> None:
        for _ in range(next(self.waits, 0)):
            pass
        super().run()


def test_signals_come_within_runs_that_wait_less_than_those_counted() -> None:
    (check,) = (c for c in device_checks() if c.id == "0/interrupted_runs")
    opened = Spoilt(Warming)
    target = DeviceUnderTest(registry(), "cpu_ref", 1, opened, opener=lambda: Spoilt(Warming))
    assert check.run(target) is None
    target.close()


class Nodes(ReferenceDevice):
    """References whose recordings close without a trace, and whose device does not close."""

    def load_nodes(self, run: NodeRun) -> Recording:
        self._closed = False
        recording = super().load_nodes(run)
        recording.close = lambda: None  # type: ignore[method-assign]
        return recording


def test_a_node_device_that_does_not_close_is_noticed() -> None:
    target = DeviceUnderTest(registry(), "cpu_ref", 0, Nodes(), opener=Nodes)
    for name in ("recording_closes", "device_closes"):
        (check,) = (c for c in device_checks() if c.id == f"0/nodes/{name}")
        with pytest.raises(AssertionError, match=r"closed .* raised nothing; StateError was due"):
            check.run(target)
    target.close()


class Hasty(ReferenceDevice):
    """A node device that takes a run which was interrupted for done."""

    def load_nodes(self, run: NodeRun) -> Recording:
        recording = super().load_nodes(run)
        whole = recording.run

        def hasty() -> None:
            with contextlib.suppress(KeyboardInterrupt):
                whole()

        recording.run = hasty  # type: ignore[method-assign]
        return recording


@pytest.mark.parametrize("kind", [ReferenceDevice, Hasty])
def test_a_node_device_that_swallows_signals_is_noticed(kind: type[ReferenceDevice]) -> None:
    target = DeviceUnderTest(registry(), "cpu_ref", 0, kind(), opener=kind)
    (check,) = (c for c in device_checks() if c.id == "0/nodes/interrupted_runs")
    if kind is ReferenceDevice:
        assert check.run(target) is None
    else:
        with pytest.raises(AssertionError, match=r"interrupted .* to no effect"):
            check.run(target)
    target.close()


class Unchecked(Spoilt):
    """Takes plans that its memory does not fit, and kernels over its limits."""

    def load(self, plan: Plan, *, guard_bands: bool = False) -> Recording:
        try:
            return super().load(plan, guard_bands=guard_bands)
        except TflgpuError:
            return super().load(Plan(0, 16, (), plan.inputs, plan.outputs, ()))


class Counting(CpuRefDevice):
    """Counts what it takes, and keeps every promise."""

    @property
    def memory(self) -> MemoryUse:
        return self.counted(super().memory)

    def counted(self, use: MemoryUse) -> MemoryUse:
        return use


class NeverLess(Counting):
    """Does not notice that something was given back."""

    most = 0

    def counted(self, use: MemoryUse) -> MemoryUse:
        self.most = max(self.most, use.arena)
        return attrs.evolve(use, arena=self.most)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            spoilt(
                Counting,
                counted=lambda self, use: MemoryUse(
                    use.arena // 2, use.weights // 2, use.staging // 2, use.buffers // 2
                ),
            ),
            "makes MemoryUse",
        ),
        (NeverLess, "after a recording was closed there is"),
        (spoilt(Counting, footprint=lambda self, plan: MemoryUse()), "an arena of .* bytes"),
        (spoilt(Counting, limit_memory=lambda self, nbytes: None), "over the limit raised nothing"),
    ],
)
def test_whoever_miscounts_memory_is_noticed(kind: type[Counting], message: str) -> None:
    (check,) = (c for c in device_checks() if c.id == "0/memory_counted")
    for device, wrong in ((Counting, ""), (kind, message)):
        target = DeviceUnderTest(registry(), "cpu_ref", 1, device(), opener=device)
        if wrong:
            with pytest.raises(AssertionError, match=wrong):
                check.run(target)
        else:
            assert check.run(target) is None
        target.close()


class Foreign(Spoilt):
    """Lets its driver's errors through."""

    def load(self, plan: Plan, *, guard_bands: bool = False) -> Recording:
        try:
            return super().load(plan, guard_bands=guard_bands)
        except TflgpuError as error:
            raise OSError(-6, str(error)) from error


@pytest.mark.parametrize("kind", [Unchecked, Foreign])
def test_whoever_refuses_nothing_is_noticed(kind: type[Spoilt]) -> None:
    target = DeviceUnderTest(registry(), "cpu_ref", 1, kind(Wrapped), opener=lambda: kind(Wrapped))
    ids = ("0/bindings/*", "0/limits/*", "0/a_broken_kernel")
    checks = [c for c in device_checks() if any(fnmatchcase(c.id, i) for i in ids)]
    assert len(checks) > 10
    for check in checks:
        with pytest.raises(AssertionError, match=r"raised nothing|which is no"):
            check.run(target)
    target.close()


def test_the_wrapper_itself_keeps_every_promise() -> None:
    target = DeviceUnderTest(
        registry(), "cpu_ref", 1, Spoilt(Wrapped), opener=lambda: Spoilt(Wrapped)
    )
    # test_submit_meta.py asks of signals; runs that take memory are told by no spoilt device.
    left_out = ("0/submit/interrupted_*", "0/runs_take_no_memory")
    for check in device_checks():
        if not any(fnmatchcase(check.id, each) for each in left_out):
            outcome = check.run(target)
            assert outcome is None or isinstance(outcome, NotApplicable), check.id
    target.close()
