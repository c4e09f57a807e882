"""Running and loading again and again takes no memory of the process.

What a driver keeps for each command shows here too; what it holds on a GPU of its own does not.
Python's collector is off meanwhile. What objects that refer to each other hold when they are closed
counts as leaked: it would stay until the collector comes, which is a matter of chance.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tflgpu.compiler.plan import InputRef, OutputRef
from tflgpu.conformance.contract.tools import loaded, shared, small
from tflgpu.conformance.plans import affine, dispatch, io, plan
from tflgpu.conformance.target import Check, NotApplicable, Outcome
from tflgpu.contract.device import Device


def leak_checks() -> list[Check]:
    """Many runs of one recording, and many recordings."""
    return [
        shared("runs_take_no_memory", _runs_take_no_memory),
        shared("loads_take_no_memory", _loads_take_no_memory),
    ]


def resident() -> int | None:
    """Bytes of memory that this process has, None where the system does not tell.

    glibc gives its free pages back first (``malloc_trim``). A leak would else take those that
    something before it freed, and the process would not grow."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return None
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


_ROUNDS = 3


def leak(turn: Callable[[], None], what: str, first: int, times: int, most: int) -> Outcome:
    """Whether ``times`` turns take more than ``most`` bytes, after ``first`` that may fill what
    is kept. What leaks does so in every round; an allocator that settles, in one of them."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return _leak_of_rounds(turn, what, first, times, most)
    finally:
        if collects:
            gc.enable()


def _leak_of_rounds(
    turn: Callable[[], None], what: str, first: int, times: int, most: int
) -> Outcome:
    for _ in range(first):
        turn()
    taken = []
    for _ in range(_ROUNDS):
        before = resident()
        for _ in range(times):
            turn()
        after = resident()
        if before is None or after is None:
            return NotApplicable("the system has no /proc; the process's memory is not known")
        taken.append(after - before)
        if taken[-1] < most:
            return None
    raise AssertionError(
        f"every {times} {what} took {taken} bytes in turn, {min(taken) // times} or more each"
    )


def _runs_take_no_memory(device: Device) -> Outcome:
    with loaded(device, small(device, 17)) as recording:
        return leak(recording.run, "runs", 3000, 10_000, 2 << 20)


def _loads_take_no_memory(device: Device) -> Outcome:
    floats = 1 << 18
    made = plan(
        [dispatch(affine(64), 64, [InputRef(0), OutputRef(0)])],
        [io("x", (floats,))],
        [io("y", (floats,))],
        constants=[np.ones(floats, np.float32)],
        arena=4 * floats,
        alignment=device.alignment,
    )

    def turn() -> None:
        with loaded(device, made) as recording:
            recording.inputs[0][...] = 1
            recording.run()

    # If any one of the plan's four buffers of 1 MiB stayed, it would be 40 MiB or more.
    return leak(turn, "loads", 20, 40, 16 << 20)
