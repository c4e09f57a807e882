"""Workgroups of a bucket's plan are left out, or return, where they make nothing that counts. What
they leave out is not a number here, between guard bands, and must not be seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.compiler import compile_graph
from tflgpu.compiler.plan import ConstRef, Plan, PlannedDispatch
from tflgpu.compiler.target import Target
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.precision import Precision
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.bucket import Bucket, bucket_of, corner
from tflgpu.passes.registry import default_passes
from tflgpu.runtime import opening
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu_cpu_ref import device as cpu_ref
from tflgpu_cpu_ref.device import CpuRefDevice

from tests.interpreter.bucket_models import encoder
from tests.interpreter.test_buckets import at, opened, same, text
from tests.passes.chance import made
from tests.passes.harness import evaluate

GUARDED: dict[str, Any] = {
    "backend": "cpu_ref", "device": 1, "guard_bands": True, "enable_serialization": False,
}  # fmt: skip
#: Has matrix tiles, which the interpreter of the kernel language computes.
MATRICES = DeviceCaps(
    f16_arithmetic=True, is_gpu=True, cache_bytes=1 << 30, shared_bytes=48 << 10,
    subgroup_shuffle=32, matrix_tiles=True, compute_units=132, vendor="nvidia", max_bindings=64,
)  # fmt: skip


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Those that were compiled, in order."""
    found: list[Plan] = []
    real = opening.compile_or_load

    def kept(*given: Any) -> Any:
        compiled = real(*given)
        found.extend(part.plan for part in compiled.parts if part.plan)
        return compiled

    monkeypatch.setattr(opening, "compile_or_load", kept)
    return found


def left(plan: Plan, absent: int) -> dict[str, float]:
    """Of each launch that has fewer workgroups or ends some early, by its label: the share of those
    that remain."""
    found = {}
    for launch in plan.dispatches:
        if launch.fewer:
            x, y, z = launch.fitted(absent).groups
            done = x * y * z
            if launch.kernel.buffers[-1].name == "absent_count":
                ref = launch.refs[-2]
                assert isinstance(ref, ConstRef)
                done = int((plan.constants[ref.index] + absent < 0).sum())
            found[launch.label] = done / math.prod(launch.groups)
    return found


def test_an_encoder_computes_the_rows_that_there_are(
    plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two buffers more than a kernel has otherwise: of what every API promises, some have all.
    monkeypatch.setattr(cpu_ref, "CAPS", attrs.evolve(cpu_ref.CAPS, max_bindings=64))
    with tflgpu.GpuDelegate(**GUARDED, shape_buckets=(96,)) as on:
        mine, theirs = opened(encoder(), on), opened(encoder(), None)
        for size in (96, 33, 1, 95, 32, 2, 64, 96):
            inputs = text(size)
            same(at(mine, inputs), at(theirs, inputs))
        mine.close()
    plan, _ = plans  # that of the bucket, and that of the size in the file
    shares = {label: share for label, share in left(plan, 64).items() if share < 1}
    # The layers (queries, keys and values too), attention, and norms.
    assert len(shares) >= 6
    assert any("ATTENTION" in label for label in shares)
    assert any("#16 FULLY_CONNECTED" in label for label in shares)
    assert set(left(plan, 0).values()) == {1.0}


@pytest.mark.parametrize("precision", ["f16", "f32_f16"])
def test_kernels_on_matrix_tiles_do_so_too(
    precision: Any, plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_ref, "CAPS", MATRICES)
    model, options = encoder(width=64, heads=2), {**GUARDED, "precision": precision}
    with (
        tflgpu.GpuDelegate(**options, shape_buckets=(160,)) as on,
        tflgpu.GpuDelegate(**options) as exact,
    ):
        mine, theirs = opened(model, on), opened(model, exact)
        for size in (33, 160, 1, 32, 90):
            inputs = text(size)
            for got, wanted in zip(at(mine, inputs), at(theirs, inputs), strict=True):
                bound = 2e-2 if precision == "f16" else 1e-3  # tensors between kernels are f16
                np.testing.assert_allclose(got, wanted, rtol=0, atol=bound)
        mine.close()
    plan = plans[0]
    attention = "attention_whole" if precision == "f16" else "attention_matrix"
    kernels = {launch.kernel.name for launch in plan.dispatches}
    assert {attention, "fully_connected_matrix"} <= kernels
    shares = [share for label, share in left(plan, 128).items() if "FULLY_CONNECTED" in label]
    assert len(shares) >= 4
    assert max(shares) < 0.5


def graph_at(size: int, width: int) -> Graph:
    """An encoder's at one size."""
    model = read_model(encoder(width=width, heads=width // 64))
    shapes = dict.fromkeys(model.subgraphs[0].inputs, (1, size))
    return build_graph(model, 0, builtin_ops(), shapes)


def launches(graph: Graph, precision: str) -> dict[str, PlannedDispatch]:
    """Those of a graph's plan on matrix tiles, by what they say of themselves."""
    target = Target.plain(MATRICES, Precision(precision), alignment=256)
    compiled = compile_graph(graph, attrs.evolve(target, passes=default_passes()))
    plan = compiled.parts[0].plan
    assert plan is not None
    return {launch.label: launch for launch in plan.dispatches}


def groups(found: Mapping[str, PlannedDispatch], label: str, absent: int = 0) -> tuple[int, ...]:
    (launch,) = (each for name, each in found.items() if name.startswith(label))
    return launch.fitted(absent).groups


@pytest.mark.parametrize(
    ("precision", "width", "label"),
    [("f32", 384, "#26"), ("f32_f16", 384, "#26"), ("f16", 768, "#11")],
)
def test_kernels_are_cut_for_half_of_the_rows_too(precision: str, width: int, label: str) -> None:
    """Layers and attention launch what a plan for little more than half would, where that is as
    good for all rows, and not what a plan for all rows would."""
    whole, half = graph_at(512, width), graph_at(257, width)
    bucket = bucket_of(whole, half, builtin_ops())
    assert isinstance(bucket, Bucket)
    found = launches(bucket.graph, precision)
    fitted = groups(found, label, absent=255)
    assert fitted == groups(launches(half, precision), label)
    assert fitted < groups(found, label) != groups(launches(whole, precision), label)


def test_masks_are_computed_where_extremes_are_read() -> None:
    bucket = bucket_of(graph_at(512, 768), graph_at(200, 768), builtin_ops())
    assert isinstance(bucket, Bucket)
    found = launches(bucket.graph, "f16")
    assert "#45 SELECT_V2 + #47 REDUCE_MAX" in found
    assert not [label for label in found if label.endswith(" SELECT_V2") and "+" not in label]


class Loaded:
    """The plan of a bucket's graph, on a device. None are its parts where it is more than one."""

    def __init__(self, device: CpuRefDevice, bucket: Bucket) -> None:
        plain = Target.plain(device.caps, Precision.F32, alignment=device.alignment)
        compiled = compile_graph(bucket.graph, attrs.evolve(plain, passes=default_passes()))
        self.part = compiled.parts[0]
        self.plan = self.part.plan if len(compiled.parts) == 1 else None
        if self.plan is not None:
            self.places = [v.id for v in bucket.graph.inputs]
            self.recording = device.load(self.plan, guard_bands=True)

    def run(self, arrays: list[Array], absent: int) -> Array:
        assert self.plan is not None
        by_id = dict(zip(self.places, arrays, strict=True))
        for value, place in zip(self.part.inputs, self.recording.inputs, strict=True):
            place[...] = by_id[value.id]
        self.recording.fit(absent, [io.nbytes for io in self.plan.outputs])
        self.recording.run()
        return self.recording.outputs[0].copy()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_graphs_by_chance() -> None:
    """Each at three sizes, of which the bucket is more than a workgroup, by one plan."""
    device, run, early, tables = CpuRefDevice(1), 0, 0, 0
    for seed in range(60):
        loaded: Loaded | None = None
        for size in (130, 5, 1):
            narrow = made(seed, size)
            bucket = bucket_of(made(seed, 200), narrow, builtin_ops())
            if not isinstance(bucket, Bucket):
                continue
            loaded = loaded or Loaded(device, bucket)
            if loaded.plan is None:
                break
            data = np.random.default_rng(seed).uniform(0.5, 1.5, narrow.inputs[0].shape)
            whole = np.zeros(bucket.graph.inputs[0].shape, np.float32)
            whole[corner(data.shape)] = data
            extra = [bucket.contents[v.id] for v in bucket.graph.inputs[1:]]
            (wanted,) = evaluate(narrow, [data.astype(np.float32)])
            got = loaded.run([whole, *extra], 200 - size)
            run += 1
            early += any(share < 1 for share in left(loaded.plan, 200 - size).values())
            tables += any(
                d.kernel.buffers[-1].name == "absent_count" for d in loaded.plan.dispatches
            )
            np.testing.assert_allclose(
                got[corner(wanted.shape)], wanted, rtol=2e-3, atol=1e-4, err_msg=f"{seed} {size}"
            )
    device.close()
    assert run > early > 40
    assert early > tables > 5
