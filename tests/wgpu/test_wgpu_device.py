"""What is WebGPU's own about its device; what every device must do is asked by level 0 of the
conformance suite (`tests/conformance/test_suite.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from tflgpu.compiler.plan import ArenaRef, InputRef, OutputRef
from tflgpu.conformance.plans import add, affine, biased, chain, chain_expected, dispatch, io, plan
from tflgpu.errors import CompileError
from tflgpu.language.kernel import Kernel


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

    def test_a_later_time_that_is_smaller(self, require_backend: Callable[[str], Any]) -> None:
        require_backend("wgpu")
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
            def source(self, kernel: Kernel, *, writable: bool = False) -> str:
                return "@compute @workgroup_size(1) fn main() { undeclared_thing(); }"

        with pytest.raises(CompileError) as caught:
            open_device(dialect=Broken()).load(biased(8))
        message = str(caught.value)
        assert "refused kernel add" in message
        log, source = message.split("--- source\n")
        assert "undeclared_thing" in source
        assert "undeclared_thing" in log.split("--- log\n")[1]

    def test_source_is_what_is_compiled(self, open_device: Callable[..., Any]) -> None:
        from tflgpu_wgpu.dialect import WgslDialect

        seen: list[str] = []

        class Spy:
            def source(self, kernel: Kernel, *, writable: bool = False) -> str:
                seen.append(WgslDialect().source(kernel, writable=writable))
                return seen[-1]

        open_device(dialect=Spy()).load(biased(8))
        assert seen == [open_device().source(add(8))]
