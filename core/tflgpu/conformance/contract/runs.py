"""What runs compute, from and into which arrays."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from tflgpu.compiler.plan import ArenaRef, ConstRef, InputRef, OutputRef, Ref
from tflgpu.conformance.contract.tools import (
    SIZES,
    fill,
    gives,
    loaded,
    run_plan,
    same,
    shared,
    small,
    whole,
)
from tflgpu.conformance.plans import (
    add,
    affine,
    backwards,
    chain,
    chain_expected,
    dispatch,
    halves,
    io,
    plan,
)
from tflgpu.conformance.target import Check, NotApplicable, Outcome
from tflgpu.contract.device import Device, DispatchTime
from tflgpu.ir.dtypes import DType
from tflgpu.language.types import Scalar
from tflgpu.lowering.reason import Unsupported


def run_checks() -> list[Check]:
    """Data there and back, constants, the arena, empty plans, arrays, timers."""
    return [
        *(shared(f"round_trip/{n}", partial(_round_trip, n)) for n in SIZES),
        *(shared(f"chain/{n}", partial(_chain, n)) for n in SIZES),
        *(shared(f"round_trip_f16/{n}", partial(_halves, n, 1)) for n in SIZES),
        shared("round_trip_f16/vectors", partial(_halves, 17, 4)),
        shared("several_inputs_and_outputs", _several_inputs_and_outputs),
        shared("constants", _constants),
        shared("arena_in_turns", _arena_in_turns),
        shared("dispatches_in_order", _dispatches_in_order),
        shared("kernels_of_one_name", _kernels_of_one_name),
        shared("no_dispatches", _no_dispatches),
        shared("empty_buffers", _empty_buffers),
        shared("arrays_stay", _arrays_stay),
        shared("recordings_apart", _recordings_apart),
        shared("profile", _profile),
        shared("dispatch_count", _dispatch_count),
        shared("source", _source),
    ]


def _round_trip(count: int, device: Device) -> None:
    made = plan(
        [dispatch(affine(count, 1.0, 0.0), count, [InputRef(0), OutputRef(0)])],
        [io("x", (count,))],
        [io("y", (count,))],
        alignment=device.alignment,
    )
    with loaded(device, made) as recording:
        for seed in range(2):
            x = whole(count, seed)
            gives(recording, x, f"run {seed}: {count} floats there and back", x)


def _chain(count: int, device: Device) -> None:
    """Dispatches that wait for each other, through the arena."""
    with loaded(device, chain(count, device.alignment, steps=6)) as recording:
        for seed in range(3):
            x = whole(count, seed)
            gives(
                recording,
                chain_expected(x, steps=6),
                f"run {seed} of a chain over {count} floats",
                x,
            )


def _halves(count: int, width: int, device: Device) -> Outcome:
    """16-bit elements, stored as such also by devices that compute in 32 bits. Odd numbers of them
    end in the middle of a word."""
    if not device.caps.f16_storage:
        return NotApplicable("the device does not store 16-bit floats")
    made = plan(
        [dispatch(halves(count, width), count, [InputRef(0), OutputRef(0)])],
        [io("x", (count * width,), DType.F16)],
        [io("y", (count * width,), DType.F16)],
        alignment=device.alignment,
    )
    x = whole(count * width).astype(np.float16)
    for guarded in (False, True):
        (y,) = run_plan(device, made, x, guard_bands=guarded)
        same(y, x * np.float16(0.5), f"{count * width} halved halves{_bands(guarded)}")
    return None


def _several_inputs_and_outputs(device: Device) -> None:
    """Of several types and shapes, and not bound in their order. Sums of integers wrap around."""
    made = plan(
        [
            dispatch(add(35, Scalar.I32), 35, [InputRef(0), InputRef(2), OutputRef(1)]),
            dispatch(add(35), 35, [InputRef(1), ConstRef(1), OutputRef(0)]),
        ],
        [io("i", (5, 7), DType.I32), io("f", (35,)), io("j", (1, 35, 1), DType.I32)],
        [io("g", (7, 5)), io("k", (35,), DType.I32)],
        constants=[np.ones(3, np.float32), whole(35, 9)],
        alignment=device.alignment,
    )
    i, j = np.random.default_rng(5).integers(-(2**31), 2**31, (2, 35)).astype(np.int32)
    f = whole(35, 4)
    for guarded in (False, True):
        with loaded(device, made, guard_bands=guarded) as recording:
            for kind, arrays, ios in (
                ("input", recording.inputs, made.inputs),
                ("output", recording.outputs, made.outputs),
            ):
                for array, one in zip(arrays, ios, strict=True):
                    assert array.shape == one.shape, f"{kind} {one.name} has shape {array.shape}"
                    assert array.dtype == one.dtype.numpy, f"{kind} {one.name} is {array.dtype}"
        g, k = run_plan(device, made, i, f, j, guard_bands=guarded)
        same(g, (f + whole(35, 9)).reshape(7, 5), f"the first output{_bands(guarded)}")
        same(k, i + j, f"the second output{_bands(guarded)}")


def _bands(guarded: bool) -> str:
    return ", between guard bands" if guarded else ""


def _constants(device: Device) -> None:
    """Of several sizes, one of them empty."""
    constants = [whole(1999, 1), whole(3, 2), whole(0), whole(507, 3)]
    refs: list[list[Ref]] = [[ConstRef(i), OutputRef(i)] for i in range(len(constants))]
    made = plan(
        [
            dispatch(affine(c.size, 1.0, 0.0), c.size, r)
            for c, r in zip(constants, refs, strict=True)
        ],
        outputs=[io(f"y{i}", (c.size,)) for i, c in enumerate(constants)],
        constants=constants,
        alignment=device.alignment,
    )
    for i, (got, want) in enumerate(zip(run_plan(device, made), constants, strict=True)):
        same(got, want, f"a copy of constant {i}")
    x = whole(101)
    (y,) = run_plan(device, small(device, 101), x)
    same(y, x + np.arange(101, dtype=np.float32), "a sum with a constant")


def _arena_in_turns(device: Device) -> None:
    """Regions that overlap, each with data of its own at its own time."""
    step = device.alignment
    count = step  # floats, so that a region has several steps of the arena
    regions = [ArenaRef(0, 4 * count), ArenaRef(step, 4 * count), ArenaRef(2 * step, 4 * count)]
    made = plan(
        [
            item
            for i, region in enumerate(regions)
            for item in (
                dispatch(affine(count, 1.0, i), count, [InputRef(0), region], f"write {i}"),
                dispatch(affine(count, 2.0, 0.0), count, [region, OutputRef(i)], f"read {i}"),
            )
        ],
        [io("x", (count,))],
        [io(f"y{i}", (count,)) for i in range(len(regions))],
        arena=2 * step + 4 * count,
        alignment=step,
    )
    x = whole(count)
    for i, y in enumerate(run_plan(device, made, x)):
        same(y, 2 * (x + np.float32(i)), f"what went through region {i}")


def _dispatches_in_order(device: Device) -> None:
    """Each step reads what the last workgroups of the one before wrote: if it did not wait, it
    would read them too early, or find what the arena held before."""
    count, steps = 1 << 20, 12
    x = whole(count)
    with loaded(device, backwards(count, device.alignment, steps)) as recording:
        for turn in range(3):
            gives(
                recording,
                x + np.float32(steps),
                f"run {turn} of {steps} steps over {count} floats",
                x,
            )


def _kernels_of_one_name(device: Device) -> None:
    """A kernel is what it does, not what it is called; equal ones may come several times."""
    factors = (2, 3, 2, 3)
    made = plan(
        [
            dispatch(affine(8, factor), 8, [InputRef(0), OutputRef(i)], f"times {factor}")
            for i, factor in enumerate(factors)
        ],
        [io("x", (8,))],
        [io(f"y{i}", (8,)) for i in range(len(factors))],
        alignment=device.alignment,
    )
    x = whole(8)
    for turn in range(2):
        for factor, y in zip(factors, run_plan(device, made, x), strict=True):
            same(y, x * factor + np.float32(1), f"load {turn}: affine with factor {factor}")


def _no_dispatches(device: Device) -> None:
    made = plan([], [io("x", (5,))], [], arena=device.alignment, alignment=device.alignment)
    run_plan(device, made, whole(5))
    run_plan(device, plan([], alignment=device.alignment))
    empty = plan([], [io("x", (0, 3))], [io("y", (0,)), io("z", (2,))], alignment=device.alignment)
    with loaded(device, empty) as recording:
        recording.run()
        shapes = [a.shape for a in (*recording.inputs, *recording.outputs)]
        assert shapes == [(0, 3), (0,), (2,)], f"the arrays' shapes are {shapes}"
        times = recording.profile()
        assert isinstance(times, Unsupported) or not list(times), f"no dispatches took {times}"


def _empty_buffers(device: Device) -> None:
    """Bindings of no bytes, and a dispatch of no workgroups."""
    made = plan(
        [
            dispatch(affine(0), 32, [ArenaRef(0, 0), OutputRef(0)], "nothing to do"),
            dispatch(add(0), 0, [ConstRef(0), InputRef(0), OutputRef(0)], "no groups"),
        ],
        [io("x", (0,))],
        [io("y", (0,))],
        constants=[np.zeros(0, np.float32)],
        alignment=device.alignment,
    )
    for guarded in (False, True):
        with loaded(device, made, guard_bands=guarded) as recording:
            recording.run()
            assert recording.outputs[0].shape == (0,), str(recording.outputs[0].shape)
            times = recording.profile()
            labels = [] if isinstance(times, Unsupported) else [t.label for t in times]
            assert labels in ([], ["nothing to do", "no groups"]), f"profile names {labels}"


def _arrays_stay(device: Device) -> None:
    with loaded(device, small(device, 65)) as recording:
        x_array, y_array = arrays = [*recording.inputs, *recording.outputs]
        before = [a.ctypes.data for a in arrays]
        assert x_array.flags.writeable, "an input cannot be written"
        for seed in range(2):
            x = whole(65, seed)
            x_array[...] = x
            for _ in range(2):
                recording.run()
                after = [a.ctypes.data for a in (*recording.inputs, *recording.outputs)]
                assert after == before, "host arrays moved between runs"
                same(np.array(x_array), x, "an input after a run")
                want = x + np.arange(65, dtype=np.float32)
                same(np.array(y_array), want, "an output, by an array taken before the runs")


def _recordings_apart(device: Device) -> None:
    """One plan, loaded twice."""
    made = small(device, 33)
    first, second = device.load(made), device.load(made)
    first.inputs[0][...] = 1
    second.inputs[0][...] = 2
    first.run()
    second.run()
    assert (second.outputs[0] - first.outputs[0] == 1).all(), "two recordings share memory"
    first.close()
    second.inputs[0][...] = 3
    second.run()
    got = np.array(second.outputs[0])
    second.close()
    same(got, 3 + np.arange(33, dtype=np.float32), "a run after another recording was closed")


def _profile(device: Device) -> Outcome:
    made = chain(257, device.alignment, steps=4)
    x = whole(257)
    want = chain_expected(x, 4)
    with loaded(device, made) as recording:
        fill(recording, x)
        for turn in range(2):
            start = time.perf_counter()
            times = recording.profile()
            elapsed = time.perf_counter() - start
            same(np.array(recording.outputs[0]), want, f"profile {turn}: its output")
            if isinstance(times, Unsupported) or not times:
                continue
            labels = [t.label for t in times]
            assert labels == [d.label for d in made.dispatches], f"profile names {labels}"
            kernels = [t.kernel for t in times]
            assert kernels == ["affine"] * 4, f"profile names the kernels {kernels}"
            seconds = [t.seconds for t in times]
            assert all(s > 0 for s in seconds), f"some dispatches took no time: {seconds}"
            # A tick of another length, or the wrong unit, is off by far more.
            assert sum(seconds) < elapsed, (
                f"four dispatches took {seconds} seconds by the device's timers, and profile() "
                f"{elapsed} in all"
            )
            _check_starts(times, elapsed)
        gives(recording, chain_expected(x + 1, 4), "a run after a profile", x + 1)
    if isinstance(times, Unsupported):
        return NotApplicable(times.reason)
    return None if times else NotApplicable("the device has no timers")


def _check_starts(times: Sequence[DispatchTime], elapsed: float) -> None:
    """Each dispatch reads what the one before wrote, so that none begins before that has ended."""
    starts = [t.start for t in times]
    if None in starts:
        assert set(starts) == {None}, f"some dispatches have no start: {starts}"
        return
    end = 0.0
    for each in times:
        assert each.start is not None
        # A clock may tick in steps of a microsecond.
        assert each.start >= end - 2e-6, f"{each.label} begins before what it reads: {times}"
        end = each.start + each.seconds
    assert times[0].start == 0, f"the first dispatch begins at {times[0].start}, not at 0"
    assert end < elapsed, f"dispatches end {end} s after the first, profile() took {elapsed}"


def _dispatch_count(device: Device) -> Outcome:
    """A kernel that is launched twice counts twice, though it is compiled once."""
    for steps in (1, 4):
        with loaded(device, chain(257, device.alignment, steps=steps)) as recording:
            count = getattr(recording, "dispatches", None)
            if count is None:
                return NotApplicable("the recording does not say how many dispatches it has")
            assert count == steps, f"a recording of {steps} dispatches says that it has {count}"
    return None


def _source(device: Device) -> None:
    text = device.source(affine(8))
    assert isinstance(text, str), f"source gives {type(text).__name__}"
    assert text.strip(), "source gives an empty text"
    other = device.source(affine(8, 3.0, name="another"))
    assert other != text, "two kernels have the same source"
