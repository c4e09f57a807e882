"""Guard bands: what a kernel writes outside its buffers is found, and named."""

from __future__ import annotations

from functools import partial

import numpy as np

from tflgpu.compiler.plan import ArenaRef, InputRef, OutputRef, Ref
from tflgpu.conformance.contract.tools import (
    SIZES,
    fill,
    gives,
    loaded,
    refused,
    same,
    says,
    shared,
    whole,
    works,
)
from tflgpu.conformance.plans import (
    affine,
    chain,
    chain_expected,
    dispatch,
    elementwise,
    io,
    plan,
    stray,
)
from tflgpu.conformance.target import Check
from tflgpu.contract.device import Device
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import DType
from tflgpu.language.types import Scalar

_COUNT = 33
#: Elements outside a buffer of `_COUNT`: just before it, just after it, and far from it.
_STRAYS = {"before": -1, "after": _COUNT, "far_after": 700}


def band_checks() -> list[Check]:
    """Plans that are right, plans that are not, and memory that was not written."""
    return [
        *(shared(f"guard_bands/chain/{n}", partial(_right, n)) for n in SIZES),
        *(
            shared(f"guard_bands/{where}/{name}", partial(_stray, where, at))
            for where in ("output", "arena")
            for name, at in _STRAYS.items()
        ),
        shared("guard_bands/not_written", _not_written),
    ]


def _right(count: int, device: Device) -> None:
    """Bands change nothing where no kernel meets them."""
    with loaded(device, chain(count, device.alignment), guard_bands=True) as recording:
        for seed in range(2):
            x = whole(count, seed)
            gives(recording, chain_expected(x), f"run {seed} between bands", x)
        fill(recording, whole(count, 2))
        recording.profile()
        got = np.array(recording.outputs[0])
        same(got, chain_expected(whole(count, 2)), "a profile between bands: its output")


def _stray(where: str, at: int, device: Device) -> None:
    """The dispatch, the buffer and the place are named, and the recording has failed for good."""
    step = device.alignment
    ref: Ref = OutputRef(0) if where == "output" else ArenaRef(step, _COUNT * 4)
    made = plan(
        [
            dispatch(affine(_COUNT), _COUNT, [InputRef(0), OutputRef(0)], "innocent"),
            dispatch(stray(_COUNT, at), _COUNT, [ref], "culprit"),
        ],
        [io("x", (_COUNT,))],
        [io("y", (_COUNT,))],
        arena=max(4096, 4 * step),
        alignment=step,
    )
    with loaded(device, made, guard_bands=True) as recording:
        what = f"a store to element {at} of {_COUNT}"
        error = refused(recording.run, what, DeviceError)
        says(error, what, "culprit", "stray")
        assert "innocent" not in str(error), f"the wrong dispatch is blamed: {error}"
        # By its place in the plan, or by its name in the kernel.
        says(error, what, f"arena bytes {step}|dst" if where == "arena" else "output y|dst")
        says(error, what, f"offset {4 * at}|[{at}]")
        what = "running a recording that failed"
        says(refused(recording.run, what, DeviceError), what, "culprit")
        refused(recording.profile, "profiling a recording that failed", DeviceError)
    works(device, "a plan loaded after another one failed")


def _not_written(device: Device) -> None:
    """Between bands, what no kernel wrote in this run is no number, and -1 among integers."""
    copy = elementwise("copy", 8, lambda k, i, src: k.load(src, i), scalar=Scalar.I32)
    arena = ArenaRef(0, 32)
    made = plan(
        [
            dispatch(affine(8), 8, [arena, OutputRef(0)], "of the arena"),
            dispatch(copy, 8, [arena, OutputRef(2)], "as it is"),
            dispatch(affine(8), 8, [InputRef(0), arena], "too late"),
        ],
        [io("x", (8,))],
        [io("y", (8,)), io("z", (3,)), io("n", (8,), DType.I32)],
        arena=1024,
        alignment=device.alignment,
    )
    with loaded(device, made, guard_bands=True) as recording:
        for turn in range(2):
            fill(recording, whole(8, turn))
            recording.run()
            y, z, n = (np.array(a) for a in recording.outputs)
            assert np.isnan(y).all(), f"run {turn}: what is read from an unwritten region is {y}"
            assert np.isnan(z).all(), f"run {turn}: an output that no kernel wrote is {z}"
            assert (n == -1).all(), f"run {turn}: integers of an unwritten region are {n}"
