"""What is WebGPU's own about its device; what every device must do is asked by level 0 of the
conformance suite (`tests/conformance/test_suite.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import tflgpu
from tflgpu.compiler.plan import ArenaRef, InputRef, OutputRef
from tflgpu.conformance.plans import add, affine, biased, chain, chain_expected, dispatch, io, plan
from tflgpu.errors import CompileError, DeviceError, KernelError
from tflgpu.language.builder import Builder
from tflgpu.language.kernel import Kernel
from tflgpu.language.types import Scalar
from tflgpu.plugins.registry import registry
from tflgpu_wgpu.dialect import WgslDialect

from tests.api_devices import (  # noqa: F401 (collected here)
    test_it_does_less_where_less_counts,
    test_what_the_probe_does_not_find_the_device_has_not,
)
from tests.lifetimes import child


def whole(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Whole numbers, which small sums and products keep exact."""
    return np.random.default_rng(seed).integers(-50, 50, count).astype(np.float32)


class TestRuns:
    @pytest.mark.parametrize("steps", [15, 16, 17, 18])
    def test_chains_longer_than_a_command_buffer(self, device: Any, steps: int) -> None:
        recording = device.load(chain(257, device.alignment, steps=steps))
        x = whole(257)
        recording.inputs[0][...] = x
        recording.run()
        assert (recording.outputs[0] == chain_expected(x, steps)).all()

    def test_more_dispatches_than_a_query_set_holds(self, device: Any) -> None:
        recording = device.load(chain(3, device.alignment, steps=1500))
        times = recording.profile()
        assert len(times) in (0, 1500)

    @pytest.mark.needs("wgpu")
    def test_a_later_time_that_is_smaller(self) -> None:
        from tflgpu_wgpu.native import Launch
        from tflgpu_wgpu.timers import Timers

        made: Any = Timers.__new__(Timers)
        made._device, made._queries, made._results, made._period = MagicMock(), None, None, 2.0
        stamps = np.array([2**60 + 9, 2**60 + 4, 2**60 + 4, 2**60 + 5], np.uint64)
        made._device.queue.read_buffer.return_value = stamps.tobytes()
        spans = made.run([Launch(None, None, (1, 1, 1))] * 2)
        assert spans == [(0.0, 0.0), (-1e-8, 2e-9)]


class TestArena:
    """Regions are buffers of their own, as WebGPU wants, and are read through other names too."""

    def test_regions_that_overlay_each_other(self, device: Any) -> None:
        step = device.alignment
        made = plan(
            [
                dispatch(affine(64), 64, [InputRef(0), ArenaRef(0, 256)], "write all"),
                dispatch(affine(8, 1, 0), 8, [ArenaRef(step, 32), ArenaRef(512, 32)], "read part"),
                dispatch(affine(8, 1, 0), 8, [ArenaRef(512, 32), OutputRef(0)], "read it again"),
            ],
            [io("x", (64,))],
            [io("y", (8,))],
            arena=1024,
            alignment=step,
        )
        recording = device.load(made)
        x = whole(64)
        recording.inputs[0][...] = x
        recording.run()
        first = step // 4
        assert (recording.outputs[0] == x[first : first + 8] * 2 + 1).all()

    def test_a_region_read_and_written_by_one_dispatch(self, device: Any) -> None:
        made = plan(
            [
                dispatch(affine(33), 33, [InputRef(0), ArenaRef(0, 132)]),
                dispatch(affine(33), 33, [ArenaRef(0, 132), ArenaRef(0, 132)], "in place"),
                dispatch(affine(33), 33, [ArenaRef(0, 132), OutputRef(0)]),
            ],
            [io("x", (33,))],
            [io("y", (33,))],
            arena=256,
        )
        recording = device.load(made)
        x = whole(33)
        recording.inputs[0][...] = x
        recording.run()
        assert (recording.outputs[0] == chain_expected(x)).all()


class TestCompiling:
    def test_equal_sources_are_compiled_once(self, device: Any) -> None:
        kernels = [affine(8, 2), affine(8, 3), affine(8, 2), affine(8, 3)]
        made = plan(
            [dispatch(k, 8, [InputRef(0), OutputRef(i)]) for i, k in enumerate(kernels)],
            [io("x", (8,))],
            [io(f"y{i}", (8,)) for i in range(4)],
        )
        for _ in range(2):
            recording = device.load(made)
            recording.inputs[0][...] = np.arange(8)
            recording.run()
            for output, factor in zip(recording.outputs, (2, 3, 2, 3), strict=True):
                assert (output == np.arange(8) * factor + 1).all()
            assert device.compiled == 2

    def test_a_refusal_has_the_source_and_the_log(self, open_device: Callable[..., Any]) -> None:
        class Broken:
            def source(self, kernel: Kernel) -> str:
                return "@compute @workgroup_size(1) fn main() { undeclared_thing(); }"

        with pytest.raises(CompileError) as caught:
            open_device(dialect=Broken()).load(biased(8))
        message = str(caught.value)
        assert "refused kernel add" in message
        log, source = message.split("--- source\n")
        assert "undeclared_thing" in source
        assert "undeclared_thing" in log.split("--- log\n")[1]

    def test_source_is_what_is_compiled(self, open_device: Callable[..., Any]) -> None:
        seen: list[str] = []

        class Spy:
            def source(self, kernel: Kernel) -> str:
                seen.append(WgslDialect().source(kernel))
                return seen[-1]

        open_device(dialect=Spy()).load(biased(8))
        assert seen == [open_device().source(add(8))]


# Nothing is released while the device still uses it: `wait_idle` returns when it is idle.


@pytest.mark.needs("wgpu")
def test_idle_is_when_all_is_done() -> None:
    from tflgpu_wgpu.native import poll, wait_idle

    device = registry().open_device("wgpu", 0, tflgpu.DelegateOptions())
    recording: Any = device.load(child.slow_plan(device, 16, 4))  # type: ignore[union-attr]
    recording.run()
    handle = recording._device._internal
    assert poll(handle)  # there is nothing to wait for
    for _ in range(3):  # what was wrong depended on what was in a register
        recording._begin()
        wait_idle(handle)
        # What is left of a run is to hear, by asking once, that the host has its turn.
        assert recording._is_over()
        recording._end()
    recording.close()
    device.close()


# What a refused command leaves, and what a closed device lets go.


def test_a_refused_command_ends_the_recording(device: Any) -> None:
    from tflgpu_wgpu.native import Commands, Launch

    recording = device.load(biased(33))
    other = device.load(chain(33, device.alignment))
    # Bindings for another kernel's buffers: what wgpu refuses when the encoding is finished.
    wrong = Launch(recording._launches[0].pipeline, other._launches[0].bind_group, (1, 1, 1))
    outputs = recording._outputs.current
    working, outputs.commands = outputs.commands, Commands(device._device, [], [wrong], [])
    with pytest.raises(DeviceError, match=r"(?is)running.*bind group"):
        recording.run()
    outputs.commands = working
    with pytest.raises(DeviceError, match=r"(?is)earlier run.*bind group"):
        recording.run()
    with pytest.raises(DeviceError, match="earlier run"):
        recording.profile()
    recording.close()
    other.run()
    assert (other.outputs[0] == chain_expected(np.zeros(33))).all()


def test_closed_devices_keep_no_threads(open_device: Callable[..., Any]) -> None:
    before = set(threading.enumerate())
    closed = []
    for _ in range(3):
        device = open_device()
        recording = device.load(biased(9))
        device.close()
        closed += [device, recording]
    # Whoever still holds the closed objects does not hold what they held.
    assert not set(threading.enumerate()) - before


def test_arrays_outlive_their_device(open_device: Callable[..., Any]) -> None:
    """They lie in memory of wgpu's, which ends with the last of them."""
    from tflgpu_wgpu.mapping import has_arrays

    device = open_device()
    handle = device._device
    recording = device.load(biased(33))
    recording.inputs[0][...] = whole(33)
    recording.run()
    lent, expected = recording.lend(0), recording.outputs[0].copy()
    device.close()
    assert has_arrays(handle)
    np.testing.assert_array_equal(lent, expected)
    del lent
    assert not has_arrays(handle)


# Shuffles of an opened WebGPU device: as many neighbours as its adapter allows and the probe
# finds.


NVIDIA, AMD, INTEL, APPLE, MESA = 0x10DE, 0x1002, 0x8086, 0x106B, 0x10005


def exchange(mask: int) -> Kernel:
    k = Builder("exchange", (32, 1, 1))
    dst = k.buffer("dst", Scalar.I32, 1, "write")
    k.store(dst, k.global_id(0), k.subgroup_shuffle_xor(k.local_id(0), mask))
    return k.build()


@pytest.mark.parametrize(("vendor", "least", "widest"), [
    (NVIDIA, {}, 32), (APPLE, {"subgroup_min_size": 4}, 32), (MESA, {"subgroup_min_size": 4}, 32),
    (INTEL, {"subgroup_min_size": 8}, 8), (AMD, {"stackgroup_min_size": 32}, 32),
    (AMD, {"subgroup_min_size": 64}, 32), (INTEL, {}, 0),
])  # fmt: skip
@pytest.mark.needs("wgpu")
def test_what_an_adapter_allows(vendor: int, least: dict[str, int], widest: int) -> None:
    from tflgpu_wgpu.adapters import widest_shuffle

    info = {"vendor_id": vendor, **least}
    assert widest_shuffle(info, {"subgroup", "shader-f16"}) == widest
    assert widest_shuffle(info, {"shader-f16"}) == 0


def test_the_probe_finds_what_is_known(device: Any) -> None:
    """A printer that is wrong would only look like a device without shuffles."""
    if device.caps.vendor not in ("mesa", "nvidia"):
        pytest.skip(f"{device.info.name}: it is not known in which order it fills subgroups")
    assert device.caps.subgroup_shuffle >= (32 if device.caps.vendor == "nvidia" else 4)


def test_more_than_it_has_is_refused(device: Any) -> None:
    size = device.caps.subgroup_shuffle
    if size > 1:
        assert "subgroupShuffleXor" in device.source(exchange(size // 2))
    if size == 32:
        pytest.skip(f"{device.info.name} has as many as the language")
    with pytest.raises(KernelError, match=r"kernel exchange: a shuffle.*caps\.subgroup_shuffle"):
        device.source(exchange(max(1, size)))


def test_the_probe_s_kernels_are_not_counted(device: Any) -> None:
    assert device.compiled == 0


def test_a_dialect_of_the_caller_s_is_not_probed(open_device: Callable[..., Any]) -> None:
    assert open_device(dialect=WgslDialect()).caps.subgroup_shuffle == 0


# A forked child releases nothing that wgpu made for its parent, not even garbage: wgpu would wait
# for threads of its driver's that only the parent has.


PROGRAM = """
import gc, os, sys, time
import wgpu
from tflgpu import GpuDelegate

class Circle:
    pass

gc.disable()
delegate = GpuDelegate(backend="wgpu")
assert delegate.device is not None
if sys.argv[1] == "gone":
    delegate.close()
    del delegate
left = Circle()
left.itself = left
device = wgpu.gpu.request_adapter_sync().request_device_sync()
usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST
left.buffer = device.create_buffer(size=1 << 20, usage=usage)
device.queue.write_buffer(left.buffer, 0, bytes(1 << 20))
del left, device
gc.enable()
child = os.fork()
if not child:
    gc.collect()
    os._exit(0 if gc.isenabled() else 1)
assert gc.isenabled() and not gc.get_freeze_count()
end = time.monotonic() + 20
while time.monotonic() < end:
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        sys.exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.01)
os.kill(child, 9)
sys.exit("the child hangs")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.needs("wgpu")
@pytest.mark.parametrize("delegate", ["open", "gone"])
def test_a_child_collects_none_of_it(delegate: str) -> None:
    program = [sys.executable, "-c", PROGRAM, delegate]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
