"""Barriers in recorded command buffers: where `tflgpu.backend_kit.hazards` asks for one, and
nowhere else."""

from __future__ import annotations

from typing import Any


def test_a_chain_is_recorded_with_its_barriers(open_device: Any, monkeypatch: Any) -> None:
    from tflgpu.backend_kit.run_commands import Between
    from tflgpu.compiler.plan import InputRef, OutputRef
    from tflgpu.conformance.plans import affine, chain, dispatch, io, plan
    from tflgpu_vulkan.record import Writer

    counted: list[Any] = []
    original = Writer.barrier

    def barrier(writer: Writer, between: Between) -> None:
        if between is Between.DISPATCHES:
            counted.append(writer)
        original(writer, between)

    monkeypatch.setattr(Writer, "barrier", barrier)
    device = open_device()
    device.load(chain(64, device.alignment, steps=5))
    assert len(counted) == 4
    counted.clear()
    apart = [dispatch(affine(8), 8, [InputRef(0), OutputRef(i)]) for i in range(5)]
    device.load(plan(apart, [io("x", (8,))], [io(f"y{i}", (8,)) for i in range(5)]))
    assert not counted


def test_bound_buffers_are_read_behind_a_barrier(open_device: Any, monkeypatch: Any) -> None:
    """Waiting for a run makes what it wrote available; reading it on another queue takes a barrier
    there (Vulkan, "Memory Dependencies")."""
    from tflgpu.backend_kit.run_commands import Between
    from tflgpu.conformance.plans import chain
    from tflgpu_vulkan.record import Writer

    seen: list[Any] = []
    barrier, launch = Writer.barrier, Writer.launch

    def noted(writer: Writer, between: Between) -> None:
        seen.append(between)
        barrier(writer, between)

    def launched(writer: Writer, each: Any) -> None:
        seen.append("launch")
        launch(writer, each)

    monkeypatch.setattr(Writer, "barrier", noted)
    monkeypatch.setattr(Writer, "launch", launched)
    device = open_device()
    recording = device.load(chain(64, device.alignment, steps=2))
    assert Between.SUBMISSIONS not in seen
    buffer = device.allocate(256)
    seen.clear()
    recording.bind({0: buffer})
    assert seen[0] is Between.SUBMISSIONS
    assert seen.index("launch") > 0
    assert seen.count(Between.SUBMISSIONS) == 1
