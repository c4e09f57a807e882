"""What is Vulkan's own about its device; what every device must do is asked by level 0 of the
conformance suite (`tests/conformance/test_contract_ways.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.compiler.plan import ConstRef, OutputRef, Ref
from tflgpu.conformance.plans import (
    affine,
    chain,
    chain_expected,
    dispatch,
    io,
    plan,
)
from tflgpu.errors import DeviceError


def whole(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Whole numbers, which small sums and products keep exact."""
    return np.random.default_rng(seed).integers(-50, 50, count).astype(np.float32)


def test_constants_larger_than_a_piece_of_the_upload(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tflgpu.backend_kit import heaps

    monkeypatch.setattr(heaps, "PIECE", 1000)
    constants = [whole(1999, 1), whole(3, 2), whole(0), whole(507, 3)]
    refs: list[list[Ref]] = [[ConstRef(i), OutputRef(i)] for i in range(4)]
    made = plan(
        [dispatch(affine(c.size, 1, 0), c.size, r)
         for c, r in zip(constants, refs, strict=True)],
        outputs=[io(f"y{i}", (c.size,)) for i, c in enumerate(constants)],
        constants=constants,
    )  # fmt: skip
    recording = device.load(made)
    recording.run()
    for got, want in zip(recording.outputs, constants, strict=True):
        assert (got == want).all()


def test_halves_are_stored_and_dispatches_timed_everywhere(device: Any) -> None:
    assert device.caps.f16_storage
    assert len(device.load(chain(257, device.alignment, steps=4)).profile()) == 4


def test_a_queue_without_timestamps_runs_and_times_nothing(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = device.load(chain(257, device.alignment))
    monkeypatch.setattr(device._context, "details", attrs.evolve(device._context.details, tick=0.0))
    recording.inputs[0][...] = whole(257)
    said = recording.profile()
    assert "no timestamps" in said.reason
    assert (recording.outputs[0] == chain_expected(whole(257))).all()


def test_timestamps_begin_at_0_again(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Intel's have 36 bits, which last an hour."""
    from tflgpu_vulkan import record

    class Driver:
        @staticmethod
        def vkGetQueryPoolResults(*args: Any) -> int:
            args[5][0:4] = [2**36 - 2, 3, 7, 9]
            return 0

    details = attrs.evolve(device._context.details, tick=0.5, tick_bits=36)
    monkeypatch.setattr(device._context, "details", details)
    timers = record.Timers(device._context, 2)
    with monkeypatch.context() as patched:
        patched.setattr(record, "lib", Driver)
        assert timers.spans() == [(0.0, 2.5), (4.5, 1.0)]
    timers.release()


def test_more_memory_than_there_is(open_device: Callable[..., Any]) -> None:
    with pytest.raises(DeviceError, match="the arena takes 4611686018427387904 bytes"):
        open_device().load(plan([], arena=1 << 62))


def test_what_vulkan_guarantees(open_device: Callable[..., Any]) -> None:
    device = open_device()
    assert device.caps.max_workgroup >= 128
    assert device.caps.shared_bytes >= 16384
    assert device.caps.max_buffer_bytes >= 1 << 27
    assert device.caps.max_bindings >= 4


def test_a_buffer_larger_than_a_piece(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tflgpu.backend_kit import heaps

    monkeypatch.setattr(heaps, "PIECE", 1000)
    x = np.random.default_rng(0).standard_normal(4099).astype(np.float32)
    buffer = device.allocate(x.nbytes)
    found = np.ones_like(x)
    buffer.read(found)
    assert (found == 0).all()
    buffer.write(x)
    buffer.read(found)
    np.testing.assert_array_equal(found, x)
    buffer.close()


def test_it_says_what_a_run_copies(device: Any) -> None:
    recording = device.load(chain(257, device.alignment))
    own = 0 if device.in_place else 4 * 257
    assert recording.copies == (own, own)
    buffer = device.allocate(4 * 257)
    recording.bind({0: buffer})
    assert recording.copies == (0, own)
    recording.bind({0: None}, {0: buffer})
    assert recording.copies == (own, 0)
    recording.bind(outputs={0: None})
    assert recording.copies == (own, own)
    recording.close()
    buffer.close()


def test_what_it_does_not_import(open_device: Callable[..., Any]) -> None:
    device = open_device()
    buffer = device.allocate(64)
    handles = buffer.export()
    for wrong, why in (
        (attrs.evolve(handles, offset=handles.offset + 4), "no multiple of"),
        (attrs.evolve(handles, nbytes=18), "a multiple of 4"),
        (attrs.evolve(handles, nbytes=12), "from 16 on"),
        (attrs.evolve(handles, device=handles.buffer), "another VkDevice"),
        (np.zeros(4097, np.uint8)[1:], "must begin at a multiple of"),
        ("text", "a str has no buffer protocol"),
    ):
        assert why in device.import_buffer(wrong).reason
    odd = device.allocate(19)  # is exported to a whole word, so that it can be imported
    again = device.import_buffer(odd.export())
    assert again.nbytes == 20
    assert odd.span[:2] == again.span[:2]
    again.close()
    odd.close()
    buffer.close()
