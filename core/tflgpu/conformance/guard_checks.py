"""Level 5: nothing is written outside its buffer, and what a cache gives back is the same."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np

from tflgpu.compiler.stored_numbers import numerics_for
from tflgpu.conformance.merge import merge_plans
from tflgpu.conformance.op_checks import Question, judge
from tflgpu.conformance.run import Prepared, Tensors, prepare, run_one
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable, Outcome
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import Accuracy, OpDef


def guard_checks(ops: Iterable[OpDef]) -> list[Check]:
    """One check an op, and the cache."""
    checks = [Check(f"5/guards/{op.name}", partial(_guards, op), op.name) for op in ops]
    checks.append(Check("5/cache/reload", partial(_cache, False)))
    return [*checks, Check("5/cache/damaged", partial(_cache, True))]


def _guards(op: OpDef, target: DeviceUnderTest) -> Outcome:
    """A few samples, each alone between guard bands, with odd channels where there are some."""
    device = target.device
    if not isinstance(device, Device):
        return NotApplicable("the device runs nodes; it has no buffers to guard")
    refused: Unsupported | None = None
    done = 0
    samples = list(op.samples())
    if not samples:
        return NotApplicable(f"{op.name} has no samples")
    for i, sample in enumerate([samples[0], samples[len(samples) // 2], samples[-1]]):
        tensors = Tensors.INTERNAL if i % 2 else Tensors.EDGE
        case = Question(op, sample, Precision.F32, tensors).case()
        compiled_for = target.compiled_for(Precision.F32, numerics_for(op))
        refused = compiled_for.refusal(case.node)
        if refused is None:
            item = prepare(case, compiled_for, tensors)
            judge(target, case, run_one(device, item, guard_bands=True), half=False)
            done += 1
    return None if done else refused


# The cache


@contextlib.contextmanager
def _cache_folder() -> Iterator[Path]:
    """An empty cache, for devices that are opened inside."""
    with tempfile.TemporaryDirectory() as name, mock.patch.dict(os.environ, TFLGPU_CACHE_DIR=name):
        yield Path(name)


def _kept(folder: Path) -> list[Path]:
    """The files that have something in them, which locks do not."""
    return [p for p in folder.rglob("*") if p.is_file() and p.stat().st_size]


def _of_each_kind(ops: Iterable[OpDef]) -> list[OpDef]:
    """What the cache is filled from: the first op of every class of accuracy, which are kernels of
    several kinds."""
    found: dict[Accuracy, OpDef] = {}
    for op in ops:
        if op.samples() and op.state is None:
            found.setdefault(op.accuracy, op)
    return list(found.values())


def _outputs(target: DeviceUnderTest) -> list[Array]:
    """What a newly opened device computes."""
    with closing(target.reopen()) as other:
        device = other.device
        assert isinstance(device, Device)
        compiled_for = other.compiled_for(Precision.F32)
        items: list[Prepared] = []
        for op in _of_each_kind(other.ops.values()):
            case = Question(op, op.samples()[0], Precision.F32, Tensors.EDGE).case()
            if compiled_for.refusal(case.node) is None:
                items.append(prepare(case, compiled_for, Tensors.EDGE))
        recording = device.load(merge_plans([i.plan for i in items]))
        inputs = list(recording.inputs)
        for item in items:
            item.fill([inputs.pop(0) for _ in item.plan.inputs])
        recording.run()
        found = [np.array(a) for a in recording.outputs]
        recording.close()
    return found


def _equal(got: list[Array], want: list[Array], what: str) -> None:
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if a.tobytes() != b.tobytes():
            raise AssertionError(f"output {i} is not the same {what}")


def _cache(damages: bool, target: DeviceUnderTest) -> Outcome:
    """What is in the cache gives the same; files that were cut short, or overwritten, are made
    anew."""
    if not isinstance(target.device, Device):
        return NotApplicable("the device runs nodes; it compiles nothing")
    with _cache_folder() as folder:
        first = _outputs(target)
        files = _kept(folder)
        for i, file in enumerate(sorted(files) if damages else ()):
            data = file.read_bytes()
            file.write_bytes(data[: len(data) // 2] if i % 2 else b"\xa5" * len(data))
        how = "after the cache was damaged" if damages else "from the cache"
        _equal(_outputs(target), first, how)
    return None if files else NotApplicable("the backend keeps nothing in TFLGPU_CACHE_DIR")
