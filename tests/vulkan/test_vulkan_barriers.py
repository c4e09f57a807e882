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


def test_what_a_barrier_orders(require_backend: Any) -> None:
    """Drivers that run on a CPU do without; those of GPUs do what the masks say."""
    require_backend("vulkan")
    from tflgpu.backend_kit.run_commands import Between
    from tflgpu_vulkan.api import vk
    from tflgpu_vulkan.barriers import _ENDS

    shader, copies = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, vk.VK_PIPELINE_STAGE_TRANSFER_BIT
    host = vk.VK_PIPELINE_STAGE_HOST_BIT
    written, read = vk.VK_ACCESS_SHADER_WRITE_BIT, vk.VK_ACCESS_SHADER_READ_BIT
    stored = shader, written
    copied = copies, vk.VK_ACCESS_TRANSFER_WRITE_BIT
    looked_at = host, vk.VK_ACCESS_HOST_READ_BIT
    assert _ENDS[Between.DISPATCHES] == (stored, (shader, read | written))
    assert _ENDS[Between.UPLOADS_AND_DISPATCHES] == (copied, (shader, read | written))
    fetched = copies, vk.VK_ACCESS_TRANSFER_READ_BIT
    assert _ENDS[Between.DISPATCHES_AND_DOWNLOADS] == (stored, fetched)
    assert _ENDS[Between.DOWNLOADS_AND_HOST] == (copied, looked_at)
    assert _ENDS[Between.DISPATCHES_AND_HOST] == (stored, looked_at)
