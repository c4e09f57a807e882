"""Barriers in recorded command buffers: where `tflgpu.contract.hazards` asks for one, and nowhere else."""

from __future__ import annotations

from typing import Any


def test_a_chain_is_recorded_with_its_barriers(open_device: Any, monkeypatch: Any) -> None:
    from tflgpu.compiler.plan import InputRef, OutputRef
    from tflgpu.conformance.plans import affine, chain, dispatch, io, plan
    from tflgpu.contract.run_commands import Between
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
